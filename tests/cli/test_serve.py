from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sessiond.cli.serve import settings
from sessiond.config import Config
from tests.cli.conftest import Cli, Ran


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def serve(cli: Cli, *arguments: str, ended: int = 0) -> Ran:
    """The daemon itself is another layer's: here it says what it was started with."""
    stub = types.ModuleType("sessiond.daemon")
    vars(stub)["serve"] = lambda config, _read: print(config.model_dump_json()) or ended
    with mock.patch.dict(sys.modules, {"sessiond.daemon": stub}):
        return cli.quick("serve", *arguments)


def config_of(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_common_options_have_short_names(cli: Cli, model: str) -> None:
    config = config_of(
        serve(
            cli,
            *("--model", model, "--host", "::1", "--port", "9000", "--uds", "off"),
            *("--state-dir", "/srv/s", "--n-ctx", "4096", "--max-active", "3"),
        )
    )
    assert config["model"]["path"] == model
    assert config["model"]["n_ctx"] == 4096
    assert config["sessions"]["max_active"] == 3
    server = config["server"]
    assert (server["host"], server["port"], server["uds"]) == ("::1", 9000, "off")
    assert server["state_dir"] == "/srv/s"


@pytest.mark.parametrize("code", [0, 1])
def test_it_ends_with_the_code_of_the_daemon(cli: Cli, model: str, code: int) -> None:
    assert serve(cli, "--model", model, ended=code).code == code


def test_every_setting_is_an_option(cli: Cli) -> None:
    text = cli.quick("serve", "--help").out
    keys = [key for key, _, _ in settings()]
    sections = Config.model_fields
    assert len(keys) == sum(
        len(getattr(field.annotation, "model_fields", "x")) for field in sections.values()
    )
    for key in keys:
        assert f"--{key.replace('.', '-').replace('_', '-')}" in text


def test_every_option_says_what_it_does(cli: Cli) -> None:
    for key, field, _ in settings():
        assert field.description, key
        assert field.description.endswith("."), key


def test_options_of_every_kind_reach_the_settings(cli: Cli, model: str) -> None:
    config = config_of(
        serve(
            cli,
            *("--model-path", model, "--no-model-flash-attn", "--model-strict-name"),
            *("--server-max-body", "8MiB", "--sessions-keep", "1h30m", "--store-quota", "20%"),
            *("--sessions-policy", "fork", "--server-allowed-hosts", "a.lan"),
            *("--server-allowed-hosts", "b.lan", "--model-extra", "use_mlock=true"),
            *("--model-extra", "tensor_split=[0.5, 0.5]", "--presets", "fast.temperature=0.7"),
        )
    )
    assert config["model"]["flash_attn"] is False
    assert config["model"]["strict_name"] is True
    assert config["server"]["max_body"] == "8MiB"
    assert config["server"]["allowed_hosts"] == ["a.lan", "b.lan"]
    assert config["sessions"]["keep"] == "1h30m"
    assert config["sessions"]["policy"] == "fork"
    assert config["store"]["quota"] == "20%"
    assert config["model"]["extra"] == {"use_mlock": True, "tensor_split": [0.5, 0.5]}
    assert config["presets"] == {"fast": {"temperature": 0.7}}


def test_options_win_over_variables_and_these_over_the_file(
    cli: Cli, model: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'server = {{port = 1, queue = 1, host = "::1"}}\nmodel = {{path = "{model}"}}')
    cli.env |= {"SESSIOND_PORT": "2", "SESSIOND_SERVER__QUEUE": "2"}
    server = config_of(serve(cli, "--config", str(file), "--port", "3"))["server"]
    assert (server["port"], server["queue"], server["host"]) == (3, 2, "::1")


def test_without_a_model_it_refuses_and_says_how_to_give_one(cli: Cli, tmp_path: Path) -> None:
    ran = cli("serve")
    assert ran.code == 1
    assert ran.err.startswith("sessiond: model.path")
    assert "--model" in ran.err
    missing = tmp_path / "none.gguf"
    assert f"{missing} does not exist" in serve(cli, "--model", str(missing)).err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--port", "many"), 2, "--port"),
        (("--sessions-policy", "strict"), 2, "append-only"),
        (("--model-extra", "novalue"), 2, "KEY=VALUE"),
        (("--presets", "temperature=1"), 2, "NAME.KEY=VALUE"),
        (("--port", "70000"), 1, "server.port"),
        (("--server-max-body", "8G"), 1, "8GiB"),
        (("--host", "0.0.0.0"), 1, "auth.keys_file"),
        (("--model-type-v", "q8_0", "--no-model-flash-attn"), 1, "model.type_v"),
        (("--config", "/nowhere.toml"), 1, "/nowhere.toml"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_values_are_refused_in_one_line(
    cli: Cli, model: str, arguments: tuple[str, ...], code: int, named: str
) -> None:
    ran = serve(cli, "--model", model, *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    assert named in ran.err
