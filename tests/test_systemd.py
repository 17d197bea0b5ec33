"""The unit files and the installer: what systemd itself says of them, and an installation in an
empty directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SYSTEMD = ROOT / "systemd"
INSTALL = ROOT / "scripts" / "install.sh"
UNITS = (SYSTEMD / "sessiond.service", SYSTEMD / "user" / "sessiond.service")
DROP_INS = sorted((SYSTEMD / "sessiond.service.d").glob("*.conf"))


def test_the_units_have_no_fault_that_systemd_knows_of(tmp_path: Path) -> None:
    for unit in UNITS:
        done = _analyze("verify", "--recursive-errors=no", _placed(unit, tmp_path))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.name)
def test_each_drop_in_fits_to_the_unit(drop_in: Path, tmp_path: Path) -> None:
    unit = _placed(UNITS[0], tmp_path)
    shutil.copy(drop_in, _made(tmp_path / "sessiond.service.d") / drop_in.name)
    done = _analyze("verify", "--recursive-errors=no", unit)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_misspelt_key_would_be_seen(tmp_path: Path) -> None:
    """The checks above can fail: without the flag systemd passes over unknown keys."""
    unit = _placed(UNITS[0], tmp_path)
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert _analyze("verify", "--recursive-errors=no", unit).returncode != 0


def test_the_unit_exposes_little(tmp_path: Path) -> None:
    unit = _placed(UNITS[0], tmp_path)
    done = _analyze("security", "--offline=yes", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout


def test_gpus_and_page_locked_memory_stay_within_reach() -> None:
    """What hardening of other units takes away: see the drop-ins for what a GPU needs beside it."""
    unit = UNITS[0].read_text()
    for line in ("PrivateDevices=no", "DeviceAllow=char-nvidia* rw", "DeviceAllow=char-drm rw"):
        assert line in unit
    assert "DeviceAllow=char-kfd rw" in unit and "LimitMEMLOCK=infinity" in unit
    assert "ProcSubset=pid" not in unit and "memfd_create" not in unit


def test_the_account_can_be_made() -> None:
    program = _program("systemd-sysusers")
    found = subprocess.run(
        [program, "--dry-run", SYSTEMD / "sysusers.d" / "sessiond.conf"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpu", "cpu"),
        ("--user",),
        ("--uninstall",),
        ("--uninstall", "--purge"),
        ("--user", "--uninstall"),
    ],
    ids=" ".join,
)
def test_a_dry_run_changes_nothing(arguments: Sequence[str], tmp_path: Path) -> None:
    """1. It prints commands. 2. Nothing is written. Result: a newcomer can read what would be."""
    done = _install(tmp_path, "--dry-run", *arguments, destdir=None)
    assert done.returncode == 0, done.stderr
    assert "sessiond.service" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "abacus"), "--gpu abacus is not known"),
        (("--model", "/no/such.gguf"), "there is no file /no/such.gguf"),
        (("--purge",), "--purge goes with --uninstall"),
        (("--frobnicate",), "--frobnicate is not an option"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(
    arguments: Sequence[str], said: str, tmp_path: Path
) -> None:
    done = _install(tmp_path, *arguments, destdir=None)
    assert done.returncode in (1, 2) and said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["system", "user"])
def test_install_again_and_uninstall(mode: str, tmp_path: Path) -> None:
    """1. Install into an empty directory. 2. Change the settings, install again. 3. Uninstall.

    Result: everything is in its place and the program runs; the second run changes no setting;
    what remains at the end is what a person made.
    """
    flags = ["--user"] if mode == "user" else []
    places = _Places(tmp_path, mode)
    _prepared_environment(places.home / "venv")
    model = (ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").resolve()
    first = _install(tmp_path, *flags, "--model", str(model))
    assert first.returncode == 0, first.stderr
    assert places.unit.read_text() == (SYSTEMD / places.source).read_text()
    assert _version(places) == _version_here()
    assert str(model) in places.config.read_text()
    if mode == "system":
        assert (tmp_path / "etc/sessiond/api-keys").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "etc/sysusers.d/sessiond.conf").is_file()

    places.config.write_text(places.config.read_text() + "# mine\n")
    before = places.config.read_text()
    if mode == "system":  # the same code as for a user, and each run takes seconds
        second = _install(tmp_path, *flags)
        assert second.returncode == 0, second.stderr
    assert places.config.read_text() == before

    gone = _install(tmp_path, *flags, "--uninstall")
    assert gone.returncode == 0, gone.stderr
    assert not places.unit.exists() and not places.home.exists()
    assert not places.program.is_symlink()
    assert places.config.read_text() == before
    _install(tmp_path, *flags, "--uninstall", "--purge")
    assert not places.config.exists()


def test_a_model_in_a_home_directory_is_shown_to_the_unit(tmp_path: Path) -> None:
    model = Path("/root/models/m.gguf") if os.access("/root", os.W_OK) else None
    if model is None:
        pytest.fail("this test makes a file below /root: run it as root")
    model.parent.mkdir(exist_ok=True)
    model.touch()
    try:
        done = _install(tmp_path, "--dry-run", "--model", str(model), destdir=None)
    finally:
        model.unlink()
        if not any(model.parent.iterdir()):
            model.parent.rmdir()
    assert 'BindReadOnlyPaths=\\"-/root/models\\"' in done.stdout
    assert "ProtectHome=tmpfs" in (SYSTEMD / "sessiond.service.d/20-models-home.conf").read_text()


class _Places:
    def __init__(self, root: Path, mode: str) -> None:
        user = root / "home"
        if mode == "system":
            self.home, self.program = root / "opt/sessiond", root / "usr/local/bin/sessiond"
            self.config = root / "etc/sessiond/config.toml"
            self.unit = root / "etc/systemd/system/sessiond.service"
            self.source = "sessiond.service"
        else:
            below = Path(str(root) + str(user))
            self.home = below / ".local/share/sessiond"
            self.program = below / ".local/bin/sessiond"
            self.config = below / ".config/sessiond/config.toml"
            self.unit = below / ".config/systemd/user/sessiond.service"
            self.source = "user/sessiond.service"


def _install(
    root: Path, *arguments: str, destdir: str | None = ""
) -> subprocess.CompletedProcess[str]:
    """In `root` with DESTDIR, unless `destdir` is None."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    placed = {} if destdir is None else {"DESTDIR": str(root)}
    environment = {**kept, **placed, "HOME": str(root / "home"), "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", INSTALL, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def _prepared_environment(venv: Path) -> None:
    """One in which llama.cpp is built already: building it takes minutes."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "prepared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pin = re.search(r"^llama[_-]cpp[_-]python==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pin
    (venv / f".llama-cpu-{pin[1]}").touch()


def _version(places: _Places) -> str:
    program = places.home / "venv/bin/sessiond"
    assert places.program.is_symlink()
    done = subprocess.run([program, "--version"], capture_output=True, text=True, cwd="/")
    return done.stdout


def _version_here() -> str:
    program = [sys.executable, "-m", "sessiond", "--version"]
    return subprocess.run(program, capture_output=True, text=True).stdout


def _placed(unit: Path, folder: Path) -> Path:
    """A copy that names a program that is there: systemd looks for it."""
    program = folder / "sessiond"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit.read_text(), flags=re.M)
    placed = folder / unit.name
    placed.write_text(text)
    return placed


def _analyze(verb: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = _program("systemd-analyze")
    return subprocess.run([program, verb, *arguments], capture_output=True, text=True)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"there is no {name}: apt install systemd")
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
