#!/usr/bin/env bash
# Installs sessiond as a systemd service, or updates it: running it again is safe and does what is
# missing. Everything it does is one of the lines that --dry-run prints.
#
#   sudo scripts/install.sh [--gpu cuda|vulkan|rocm] [--model FILE]     for the whole machine
#   scripts/install.sh --user [...]                                     for your account only
#   sudo scripts/install.sh --uninstall [--purge]                       (or with --user)
#
# DESTDIR=DIR puts everything below DIR and starts nothing: to look at it first.
set -euo pipefail
umask 022

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
gpu='' model='' mode=system action=install purge='' dry='' destdir=${DESTDIR:-} python=${PYTHON:-python3}

usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
say() { echo "sessiond: $*" >&2; }
fail() { say "$*"; exit 1; }
run() { if [[ $dry ]]; then printf '%q ' "$@"; echo; else "$@"; fi; }

read_arguments() {
    while (($#)); do
        case $1 in
            --gpu | --model) (($# > 1)) || { say "$1 needs a value."; exit 2; } ;;&
            --gpu) gpu=$2; shift ;;
            --model) model=$(realpath -m "$2"); shift ;;
            --user) mode=user ;;
            --uninstall) action=uninstall ;;
            --purge) purge=yes ;;
            --dry-run) dry=yes ;;
            -h | --help) usage; exit 0 ;;
            *) usage >&2; say "$1 is not an option."; exit 2 ;;
        esac
        shift
    done
    case $gpu in '' | cpu | cuda | vulkan | rocm) ;; *) say "--gpu $gpu is not known."; exit 2 ;; esac
    [[ -z $purge || $action == uninstall ]] || { say "--purge goes with --uninstall."; exit 2; }
    [[ -z $model || -f $model || $action == uninstall ]] || fail "there is no file $model. Give --model the path of a GGUF."
}

# Where things go. The unit files name the same places.
choose_places() {
    if [[ $mode == system ]]; then
        home=/opt/sessiond bin=/usr/local/bin units=/etc/systemd/system
        config=/etc/sessiond state=/var/lib/sessiond cache=/var/cache/sessiond
        control=(systemctl)
    else
        home=${XDG_DATA_HOME:-$HOME/.local/share}/sessiond bin=$HOME/.local/bin
        units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
        config=${XDG_CONFIG_HOME:-$HOME/.config}/sessiond
        state=${XDG_STATE_HOME:-$HOME/.local/state}/sessiond
        cache=${XDG_CACHE_HOME:-$HOME/.cache}/sessiond
        control=(systemctl --user)
    fi
    venv=$destdir$home/venv
    # An update keeps the kind of build that is installed.
    [[ $gpu ]] || gpu=$(cd "$venv" 2>/dev/null && compgen -G '.llama-*' | head -n 1 | cut -d - -f 2) || true
    gpu=${gpu:-cpu}
}

check_machine() {
    [[ $mode == user || $(id -u) == 0 || $dry ]] || fail "run it with sudo, or with --user for your account only."
    [[ $mode == system || $(id -u) != 0 || $destdir || $dry || $HOME != /root ]] || say "note: --user as root installs for root."
    [[ $destdir || $dry ]] || command -v systemctl >/dev/null || fail "there is no systemctl: this needs systemd. Without it: make run."
    [[ $action == install ]] || return 0
    "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "$python must be 3.11 or newer and have venv. Do: apt install python3 python3-venv"
    case $mode-$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))') in
        system-/home/* | system-/root/*)
            [[ $destdir || $dry ]] || fail "$python lies in a home directory, which the service cannot see. Say: sudo PYTHON=/usr/bin/python3 $0" ;;
    esac
    "$python" "$source/scripts/build_llama.py" "$gpu" --check || [[ $dry ]] || exit 1
    [[ $gpu != cpu || ! -e /dev/nvidia0 ]] || say "note: there is an NVIDIA GPU. To use it: --gpu cuda"
    [[ $gpu != cpu || ! -e /dev/kfd ]] || say "note: there is an AMD GPU. To use it: --gpu rocm or --gpu vulkan"
}

# The program: a virtual environment with llama.cpp compiled for this machine, about 3 to 10 minutes.
install_program() {
    local pin stamp pip=("$venv/bin/python" -m pip install --quiet -c "$source/constraints.txt")
    pin=$(sed -n 's/^llama[_-]cpp[_-]python==//p' "$source/constraints.txt")
    stamp=$venv/.llama-$gpu-$pin
    run install -d "$destdir$home" "$destdir$bin"
    [[ -x $venv/bin/python ]] || run "$python" -m venv "$venv"
    if [[ ! -e $stamp ]]; then
        local again=''
        compgen -G "$venv/.llama-*" >/dev/null && again=--replace
        run "$venv/bin/python" "$source/scripts/build_llama.py" "$gpu" ${again:+"$again"}
        run rm -f "$venv"/.llama-*
        run touch "$stamp"
    fi
    run "${pip[@]}" --upgrade "$source"
    run ln -sfn "$home/venv/bin/sessiond" "$destdir$bin/sessiond"
}

install_account() {
    [[ $mode == system ]] || return 0
    run install -D -m 644 "$source/systemd/sysusers.d/sessiond.conf" "$destdir/etc/sysusers.d/sessiond.conf"
    [[ $destdir ]] || run systemd-sysusers /etc/sysusers.d/sessiond.conf
}

# Your settings and keys are made once and never touched again.
install_settings() {
    local asked=$model
    run install -d -m 755 "$destdir$config"
    if [[ ! -e $destdir$config/config.toml ]]; then
        run "$venv/bin/sessiond" init --file "$destdir$config/config.toml" ${model:+--model "$model"}
        [[ $mode == user ]] || run chmod 644 "$destdir$config/config.toml"
    fi
    [[ $mode == user || -e $destdir$config/api-keys ]] || run install -m 600 /dev/null "$destdir$config/api-keys"
    model=$(sed -n 's/^path = "\(.*\)"$/\1/p' "$destdir$config/config.toml" 2>/dev/null | head -n 1) || true
    model=${model:-$([[ -z $dry ]] || echo "$asked")}
    [[ -z $asked || $asked == "$model" ]] ||
        say "note: $config/config.toml is there already and keeps its model. Set [model] path = \"$asked\" in it."
}

install_units() {
    local dropins=$destdir$units/sessiond.service.d
    if [[ $mode == user ]]; then
        run install -D -m 644 "$source/systemd/user/sessiond.service" "$destdir$units/sessiond.service"
        [[ $home == "$HOME/.local/share/sessiond" ]] ||
            run sed -i "s|^ExecStart=[^ ]*|ExecStart=$home/venv/bin/sessiond|" "$destdir$units/sessiond.service"
        return
    fi
    run install -D -m 644 "$source/systemd/sessiond.service" "$destdir$units/sessiond.service"
    run install -d "$dropins"
    case $gpu in
        cuda) run install -m 644 "$source/systemd/sessiond.service.d/10-nvidia.conf" "$dropins" ;;
        rocm | vulkan) run install -m 644 "$source/systemd/sessiond.service.d/10-amd.conf" "$dropins" ;;
    esac
    case $model in /home/* | /root/*) show_models_folder "$dropins/20-models-home.conf" ;; esac
}

# The unit sees no home directories, so the folder of a model that lies in one is shown to it.
show_models_folder() {
    local folder
    folder=$(dirname "$model")
    case $folder in *[\"\\\&\|%]*) fail "the folder $folder has a character that a unit file cannot take: \" \\ & | %" ;; esac
    run install -m 644 "$source/systemd/sessiond.service.d/20-models-home.conf" "$1"
    run sed -i "s|^BindReadOnlyPaths=.*|BindReadOnlyPaths=\"-$folder\"|" "$1"
    say "note: the account sessiond must be allowed to read $model."
}

start_service() {
    [[ -z $destdir ]] || return 0
    run "${control[@]}" daemon-reload
    run "${control[@]}" enable sessiond.service
    if grep -q '^path = ' "$config/config.toml" 2>/dev/null || [[ $dry ]]; then
        run "${control[@]}" restart sessiond.service
        [[ $dry ]] || say "it runs. Look at it with: ${control[*]} status sessiond, sessiond list, $([[ $mode == user ]] || echo "sudo ")sessiond doctor"
        [[ $dry || $mode == user ]] || say "to use the commands without sudo and without a key: sudo adduser YOU sessiond, and log in again"
    else
        say "no model is set yet. Write [model] path into $config/config.toml, then: ${control[*]} restart sessiond"
    fi
    [[ $mode == system || $dry ]] || say "to have it run while you are logged out: loginctl enable-linger"
}

uninstall() {
    if [[ -z $destdir ]]; then
        run "${control[@]}" disable --now sessiond.service || say "note: the service was not there."
    fi
    run rm -f "$destdir$units/sessiond.service" "$destdir$bin/sessiond"
    run rm -f "$destdir$units"/sessiond.service.d/{10-nvidia,10-amd,20-models-home}.conf
    run rm -rf "$destdir$home"
    [[ $mode == user ]] || run rm -f "$destdir/etc/sysusers.d/sessiond.conf"
    [[ $destdir ]] || run "${control[@]}" daemon-reload
    if [[ $purge ]]; then
        run rm -rf "$destdir$units/sessiond.service.d" "$destdir$config" "$destdir$state" "$destdir$cache"
        [[ $mode == user || $destdir ]] || run userdel sessiond
    elif [[ -z $dry ]]; then
        say "kept: $config (settings, keys), $state (conversations), $cache. --purge removes them."
    fi
}

read_arguments "$@"
choose_places
check_machine
if [[ $action == uninstall ]]; then
    uninstall
else
    install_program
    install_account
    install_settings
    install_units
    start_service
fi
