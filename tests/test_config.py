from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from sessiond.config import Config, Model, Preset, load_config
from sessiond.config.sources import all_keys, variable_of
from sessiond.directories import StateDirs, runtime_socket
from sessiond.errors import ConfigError
from sessiond.units import GIB, MIB, Share

CONTRACT = """
[server]
host = "127.0.0.1"
port = 8484
uds = ""
allowed_hosts = []
max_body = "32MiB"
queue = 64
load_wait = "10m"
drain = "10s"
[auth]
keys_file = ""
[model]
path = ""
name = ""
n_ctx = 0
n_batch = 512
n_ubatch = 512
n_gpu_layers = -1
threads = 0
type_k = "f16"
type_v = "f16"
flash_attn = true
chat_template_file = ""
tool_format = ""
strict_name = false
unload_after = "0"
[model.extra]
[sessions]
max_active = 0
policy = "append-only"
auto_policy = "fork"
max_rewind_tokens = 2048
reasoning = "keep"
step_budget = "200ms"
park = "pressure"
pinned_front = []
warm = 16
keep = "30d"
[presets]
[checkpoints]
ram = "auto"
[store]
dir = ""
quota = "auto"
keep_free = "5GiB"
[log]
level = "info"
format = "auto"
"""


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs the tests."""
    for variable in os.environ:
        if variable.startswith(("SESSIOND_", "XDG_")) or variable.endswith("_DIRECTORY"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.toml"


def test_the_defaults_are_those_of_the_contract(file: Path) -> None:
    written = Config().model_dump(mode="json")
    assert written["server"].pop("state_dir") == ""
    assert written == tomllib.loads(CONTRACT)
    file.write_text(CONTRACT)
    assert load_config(file=str(file)) == Config() == load_config()


def test_values_are_read_in_units_that_need_no_thought(file: Path) -> None:
    file.write_text(
        '[server]\nmax_body = "1MiB"\nload_wait = "1h30m"\n[sessions]\npark = "10m"\n'
        '[checkpoints]\nram = "2GiB"\n[store]\nquota = "20%"\nkeep_free = 7\n'
    )
    config = load_config(file=str(file))
    assert config.server.max_body == MIB
    assert config.server.load_wait == 5400
    assert config.sessions.park == 600
    assert config.checkpoints.ram == 2 * GIB
    assert config.store.quota == Share(20)
    assert config.store.keep_free == 7


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        setattr(Config().server, "port", 1)  # noqa: B010  (read-only for the type checker too)


def test_flag_environment_file_default_in_this_order(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[server]\nport = 1\nqueue = 1\nload_wait = '1s'\n[model.extra]\na = 1\nb = 1")
    monkeypatch.setenv("SESSIOND_SERVER__PORT", "2")
    monkeypatch.setenv("SESSIOND_SERVER__QUEUE", "2")
    monkeypatch.setenv("SESSIOND_MODEL__EXTRA__B", "2")
    config = load_config({"server": {"port": 3}, "model": {"extra": {"c": 3}}}, file=str(file))
    assert (config.server.port, config.server.queue, config.server.load_wait) == (3, 2, 1.0)
    assert config.model.extra == {"a": 1, "b": 2, "c": 3}
    assert config.server.host == "127.0.0.1"


def test_the_common_variables_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"MODEL": "/m.gguf", "HOST": "::1", "PORT": "9", "STATE_DIR": "/srv"}
    for name, value in short.items():
        monkeypatch.setenv(f"SESSIOND_{name}", value)
    config = load_config()
    assert config.model.path == "/m.gguf"
    assert (config.server.host, config.server.port) == ("::1", 9)
    assert config.server.state_dir == "/srv"
    monkeypatch.setenv("SESSIOND_SERVER__PORT", "10")
    assert load_config().server.port == 10


def test_every_key_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {key for key in all_keys() if _is_heard(key, monkeypatch)}
    texts = {
        "server.host",
        "server.uds",
        "server.state_dir",
        "server.allowed_hosts",
        "auth.keys_file",
        "model.path",
        "model.name",
        "model.chat_template_file",
        "model.tool_format",
        "sessions.pinned_front",
        "store.dir",
    }
    tables = {"model.extra", "presets"}
    assert bad >= set(all_keys()) - texts - tables


def _is_heard(key: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether nonsense in the variable is refused under the key's name."""
    with monkeypatch.context() as patch:
        patch.setenv(variable_of(key), "%nonsense%")
        try:
            load_config()
        except ConfigError as error:
            return error.param == key and variable_of(key) in str(error)
    return False


def test_lists_and_tables_are_set_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIOND_SERVER__ALLOWED_HOSTS", "a.lan, b.lan")
    monkeypatch.setenv("SESSIOND_PRESETS__FAST__TEMPERATURE", "0.7")
    monkeypatch.setenv("SESSIOND_PRESETS__FAST__ENABLE_THINKING", "false")
    monkeypatch.setenv("SESSIOND_PRESETS__FAST__CHAT_TEMPLATE_KWARGS__DEPTH", "3")
    monkeypatch.setenv("SESSIOND_MODEL__EXTRA__TENSOR_SPLIT", "[0.5, 0.5]")
    monkeypatch.setenv("SESSIOND_MODEL__EXTRA__ROPE", "yarn")
    config = load_config()
    assert config.server.allowed_hosts == ("a.lan", "b.lan")
    told = Preset(temperature=0.7, enable_thinking=False, chat_template_kwargs={"depth": 3})
    assert config.presets == {"fast": told}
    assert config.model.extra == {"tensor_split": [0.5, 0.5], "rope": "yarn"}


@pytest.mark.parametrize(
    ("text", "key", "way_out"),
    [
        ("[server]\nprot = 1", "server.prot", "server.port"),
        ("[server]\nzzzz = 1", "server.zzzz", "server.host, server.port"),
        ("[servr]\nport = 1", "servr", "server"),
        ("port = 1", "port", "server.port"),
        ('[server]\nport = "x"', "server.port", "integer"),
        ("[server]\nport = 70000", "server.port", "65535"),
        ('[server]\nmax_body = "8G"', "server.max_body", "8GiB"),
        ("[server]\nload_wait = 30", "server.load_wait", "30s"),
        ('[model]\ntype_k = "q9"', "model.type_k", "q8_0"),
        ('[sessions]\npolicy = "strict"', "sessions.policy", "append-only"),
        ('[store]\nquota = "120%"', "store.quota", "100%"),
        ("[model]\nn_batch = 64", "model.n_ubatch", "at most 64"),
        ('[model]\ntype_v = "q8_0"\nflash_attn = false', "model.type_v", "flash_attn = true"),
        ("[model.extra.deep]\na = 1", "model.extra.deep", "true or false"),
        ("[presets.fast]\ntop = [1]", "presets.fast.top", "presets.fast.top_p"),
        ("[presets.fast]\nzzzz = 1", "presets.fast.zzzz", "presets.fast.temperature, "),
        ("[presets.fast]\ntop_p = 2", "presets.fast.top_p", "less than or equal to 1"),
        ('[presets.fast]\nseed = "x"', "presets.fast.seed", "integer"),
        ('[presets.""]\nseed = 1', "presets.", "printable"),
        ("[presets]\nfast = 1", "presets.fast", "table"),
        ("server = 3", "server", "table"),
        ('[auth]\nkeys_file = "/none"', "auth.keys_file", "/none does not exist"),
        ('[model]\nchat_template_file = "/"', "model.chat_template_file", "not a file"),
        ('[server]\nhost = "0.0.0.0"', "server.host", "auth.keys_file"),
        ('[server]\nhost = "nas.lan"', "server.host", "127.0.0.1"),
        ('[server]\nhost = ""', "server.host", "127.0.0.1"),
        ("[server\n", "config", "line 1"),
        ("\x00", "config", "TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_the_way_out(
    file: Path, text: str, key: str, way_out: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=str(file))
    assert caught.value.param == key
    assert way_out in str(caught.value)
    if key != "model.n_ubatch":
        assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("SESSIOND_MODLE", "SESSIOND_MODEL"),
        ("SESSIOND_SERVER__PROT", "server.port"),
        ("SESSIOND_SERVR__PORT", "server"),
        ("SESSIOND_SERVER", "SESSIOND_"),
    ],
)
def test_an_unknown_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, named: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert variable in str(caught.value)
    assert named in caught.value.hint


def test_where_a_bad_value_came_from_is_said(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text('[server]\nport = "x"')
    with pytest.raises(ConfigError, match=f"file {file}"):
        load_config(file=str(file))
    monkeypatch.setenv("SESSIOND_PORT", "y")
    with pytest.raises(ConfigError, match="variable SESSIOND_PORT"):
        load_config(file=str(file))
    with pytest.raises(ConfigError, match="flag --server-port"):
        load_config({"server": {"port": "z"}}, file=str(file))


@pytest.mark.parametrize("kind", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_quantised_values_need_flash_attention(kind: str) -> None:
    Model(type_v=kind)
    Model(type_k=kind, flash_attn=False)
    with pytest.raises(ConfigError) as caught:
        Model(type_v=kind, flash_attn=False)
    assert caught.value.param == "model.type_v"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    load_config({"server": {"host": host}})


def test_other_hosts_need_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "api-keys"
    keys.write_text("secret\n")
    server = {"server": {"host": "0.0.0.0"}}
    load_config({**server, "auth": {"keys_file": str(keys)}})
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    load_config(server)
    keys.write_text("\n")
    with pytest.raises(ConfigError) as caught:
        load_config(server)
    assert caught.value.param == "server.host"


def test_the_first_file_found_is_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("flag", "variable", "xdg/sessiond/config.toml")]
    for number, path in enumerate(files, 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[server]\nport = {number}")
    assert load_config().server.port == 8484
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert load_config().server.port == 3
    monkeypatch.setenv("SESSIOND_CONFIG", str(files[1]))
    assert load_config().server.port == 2
    assert load_config(file=str(files[0])).server.port == 1
    monkeypatch.setenv("SESSIOND_CONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="SESSIOND_CONFIG"):
        load_config()


def test_a_model_must_be_there_to_be_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Model().required_path()
    assert caught.value.param == "model.path"
    assert "--model" in str(caught.value)
    with pytest.raises(ConfigError, match=r"none\.gguf does not exist"):
        Model(path=str(tmp_path / "none.gguf")).required_path()


def test_the_unix_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def socket(uds: str) -> Path | None:
        return load_config({"server": {"uds": uds}}).server.socket()

    assert socket("") is None
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert socket("") == Path("/run/user/7/sessiond.sock") == runtime_socket()
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/sessiond:/run/other")
    assert socket("") == Path("/run/sessiond/sessiond.sock")
    assert socket("/tmp/s.sock") == Path("/tmp/s.sock")
    assert socket("off") is None


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert StateDirs.resolve() == StateDirs(
        home / ".local/state/sessiond", home / ".cache/sessiond"
    )
    monkeypatch.setenv("XDG_STATE_HOME", "/x/state")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert StateDirs.resolve() == StateDirs(Path("/x/state/sessiond"), Path("/x/cache/sessiond"))
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/sessiond")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/sessiond")
    systemd = StateDirs(Path("/var/lib/sessiond"), Path("/var/cache/sessiond"))
    assert StateDirs.resolve() == systemd
    assert StateDirs.resolve(store_dir="/kv") == StateDirs(systemd.state, Path("/kv"))
    given = load_config({"server": {"state_dir": "/srv/d"}}).directories()
    assert given == StateDirs(Path("/srv/d"), Path("/srv/d/cache"))


def test_directories_are_for_this_user_only_and_backups_skip_the_cache(tmp_path: Path) -> None:
    open_to_all = tmp_path / "d"
    open_to_all.mkdir(mode=0o755)
    dirs = StateDirs.resolve(str(open_to_all))
    dirs.make()
    dirs.make()
    assert [stat.S_IMODE(d.stat().st_mode) for d in (dirs.state, dirs.cache)] == [0o700, 0o700]
    tag = (dirs.cache / "CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        StateDirs.resolve(str(tmp_path / "file" / "d")).make()
    assert caught.value.param == "server.state_dir"
    assert "--state-dir" in caught.value.hint


HOLDER = """
import sys
from sessiond.directories import StateDirs
with StateDirs.resolve(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=pipe,
        stdout=pipe,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


def test_a_second_daemon_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    dirs = StateDirs.resolve(str(tmp_path))
    dirs.make()
    with held(tmp_path) as holder:
        with pytest.raises(ConfigError) as caught, dirs.locked(wait=0.05):
            pytest.fail("two daemons in one directory")
        assert f"pid {holder.pid}" in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_a_daemon_waits_for_the_one_before_to_end(tmp_path: Path) -> None:
    dirs = StateDirs.resolve(str(tmp_path))
    dirs.make()
    with held(tmp_path) as holder:
        threading.Timer(0.2, holder.kill).start()
        with dirs.locked(wait=20):
            assert (tmp_path / "daemon.pid").read_text() == f"{os.getpid()}\n"
    with dirs.locked(wait=0):
        pass
    assert not (tmp_path / "daemon.pid").exists()


def test_a_preset_is_a_table_of_what_it_sets(file: Path) -> None:
    file.write_text(
        "[presets.fast]\ntemperature = 0.7\nenable_thinking = false\n"
        '[presets."Deep 2.0"]\nreasoning_effort = "high"\nmax_tokens = 9\n'
        '[presets."Deep 2.0".chat_template_kwargs]\nstyle = "long"\n'
    )
    presets = load_config(file=str(file)).presets
    assert presets["Deep 2.0"].max_tokens == 9
    assert presets["Deep 2.0"].chat_template_kwargs == {"style": "long"}
    assert Config(presets=presets).model_dump(mode="json")["presets"] == {
        "fast": {"temperature": 0.7, "enable_thinking": False},
        "Deep 2.0": {
            "reasoning_effort": "high",
            "max_tokens": 9,
            "chat_template_kwargs": {"style": "long"},
        },
    }
