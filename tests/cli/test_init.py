"""`sessiond init`: the file says all that can be set, and loads as what it says."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.cli.choosing import TOKENS, Machine, choose, gpu_layers
from sessiond.cli.found_models import FoundModel
from sessiond.cli.init import default_path, write_private
from sessiond.cli.machine import Memory
from sessiond.config import Checkpoints, Config, Log, Model, Preset, Server, Sessions, Store
from sessiond.config.sources import all_keys, load_config
from sessiond.config.written import written
from sessiond.engine.gguf_model import Cells, GgufModel
from sessiond.engine.memory import MemoryKind
from sessiond.errors import ConfigError
from sessiond.units import GIB, format_duration
from tests.cli.conftest import Cli
from tests.gguf_files import write
from tests.test_config import CONTRACT


def keys_in(text: str) -> list[str]:
    """Set or commented out."""
    section, found = "", []
    for line in text.splitlines():
        if heading := re.fullmatch(r"(?:# )?\[([^\]]+)\]", line):
            section = heading[1]
        elif key := re.match(r"(?:# )?([a-z_]+) = ", line):
            found.append(f"{section}.{key[1]}")
    return found


def test_every_setting_stands_in_it_once_with_its_meaning() -> None:
    text = written(Config())
    tables = ("model.extra.", "presets.")
    found = [key for key in keys_in(text) if not key.startswith(tables)]
    assert found == [key for key in all_keys() if key not in ("model.extra", "presets")]
    for key in ("# [model.extra]", "# [presets.fast]"):
        assert key in text
    joined = re.sub(r"\n## ", " ", text)
    for section in Config.model_fields.values():
        for field in getattr(section.annotation, "model_fields", {}).values():
            assert str(field.description) in joined


def test_it_has_the_keys_of_the_contract_with_their_defaults() -> None:
    """Uncommented, the lines of defaults are the contract's."""
    text = re.sub(r"(?m)^# (?=[a-z_]+ = |\[)", "", written(Config()))
    told = tomllib.loads(text)
    told["model"]["extra"], told["presets"] = {}, {}
    for section, keys in tomllib.loads(CONTRACT).items():
        assert keys.items() <= told[section].items(), section


def test_defaults_are_commented_out() -> None:
    assert load_text(written(Config())) == Config()
    assert tomllib.loads(written(Config())) == {
        name: {} for name in Config.model_fields if name != "presets"
    }


def load_text(text: str) -> Config:
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return load_config(file=file.name)


words = st.text(st.characters(codec="utf-8"), max_size=12)
milliseconds = st.integers(0, 10**10).map(lambda ms: format_duration(ms / 1000))
sizes = st.integers(0, 1 << 45)
shares = st.integers(0, 1000).map(lambda tenths: f"{tenths / 10}%")
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
scalars = st.booleans() | numbers | words
names = st.lists(
    words.filter(lambda name: name == name.strip() and name and "," not in name), max_size=3
).map(tuple)
options = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2)
)
preset_names = words.filter(lambda name: bool(name.strip()) and name.isprintable())
presets = st.builds(
    Preset,
    temperature=st.none() | st.floats(0, 100),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    enable_thinking=st.none() | st.booleans(),
    reasoning_effort=st.none() | words,
    chat_template_kwargs=st.none() | st.dictionaries(words, options, max_size=2),
)
configs = st.builds(
    Config,
    server=st.builds(
        Server,
        port=st.integers(0, 65535),
        uds=words,
        allowed_hosts=names,
        max_body=sizes,
        load_wait=milliseconds,
    ),
    model=st.builds(
        Model,
        path=words,
        n_ctx=st.integers(0, 10**7),
        n_gpu_layers=st.integers(-1, 200),
        type_k=st.sampled_from(["f16", "q8_0", "iq4_nl"]),
        strict_name=st.booleans(),
        unload_after=milliseconds,
        extra=st.dictionaries(words, scalars | st.lists(scalars, max_size=3), max_size=3),
    ),
    sessions=st.builds(
        Sessions,
        policy=st.sampled_from(["append-only", "fork"]),
        park=st.just("pressure") | milliseconds,
        pinned_front=names,
        keep=milliseconds,
    ),
    checkpoints=st.builds(Checkpoints, ram=st.just("auto") | sizes | shares),
    store=st.builds(Store, quota=st.just("auto") | sizes | shares, keep_free=sizes | shares),
    log=st.builds(Log, level=st.sampled_from(["debug", "error"])),
    presets=st.dictionaries(preset_names, presets, max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(configs, st.sets(st.sampled_from([key for key in all_keys() if key.count(".")])))
def test_whatever_is_set_loads_as_it_was(config: Config, chosen: set[str]) -> None:
    text = written(config, dict.fromkeys(chosen - {"model.extra"}, "a reason\nof two lines"))
    assert load_text(text) == config
    assert max(map(len, text.splitlines()), default=0) < 4000


def model(size: int = 4 * GIB, **changes: Any) -> GgufModel:
    fields = {
        "title": "M",
        "architecture": "llama",
        "kind": MemoryKind.ATTENTION,
        "parameters": 1,
        "quant": "Q4_K_M",
        "size": size,
        "n_ctx_train": 131072,
        "layers": 40,
        "cells": Cells(16384, 16384),  # 64 KiB a token: 2 GiB for 32,768
        "template": "{{ messages }}",
    }
    return GgufModel(**(fields | changes))  # type: ignore[arg-type]


def found(name: str, **changes: Any) -> FoundModel:
    return FoundModel(name, Path(f"/m/{name}.gguf"), "LM Studio", model(**changes))


def machine(available: int, *models: FoundModel, **changes: Any) -> Machine:
    fields = {"cores": 6, "disk_free": 100 * GIB} | changes
    return Machine(Memory(2 * available, available, fields.pop("vram", 0)), models=models, **fields)


def test_the_largest_model_that_fits_and_can_chat_is_chosen() -> None:
    models = [
        found("small", size=2 * GIB),
        found("good"),
        found("mute", size=5 * GIB, template=""),
        found("large", size=15 * GIB),
    ]
    chosen = choose(machine(16 * GIB, *models))
    assert chosen.config.model.path == "/m/good.gguf"
    assert chosen.config.model.threads == 6
    assert chosen.config.model.type_k == "f16"
    assert chosen.config.server.host == "127.0.0.1"
    assert chosen.config.store.quota == 20 * GIB
    assert set(chosen.reasons) == {"server.host", "model.path", "model.threads", "store.quota"}
    assert chosen.remarks == ()
    assert "model.path" not in choose(machine(GIB, *models)).reasons


def test_a_model_that_is_large_for_the_memory_gets_a_smaller_cache() -> None:
    chosen = choose(machine(5 * GIB + GIB // 2, found("good")))
    assert (chosen.config.model.type_k, chosen.config.model.type_v) == ("q8_0", "q8_0")
    assert f"{TOKENS:,}" in chosen.reasons["model.type_k"]


def test_layers_go_to_a_gpu_that_the_build_can_use() -> None:
    def layers(**changes: Any) -> int | None:
        chosen = choose(machine(16 * GIB, found("good"), **changes))
        told = "model.n_gpu_layers" in chosen.reasons
        return chosen.config.model.n_gpu_layers if told else None

    assert layers() is None
    assert layers(gpu="cuda") is None
    assert layers(gpu="cuda", uses_gpu=True) == -1
    assert layers(gpu="cuda", uses_gpu=True, vram=24 * GIB) == -1
    assert layers(gpu="cuda", uses_gpu=True, vram=4 * GIB) == 23
    assert gpu_layers(model(), 0) == 0
    (remark,) = choose(machine(16 * GIB, gpu="rocm")).remarks
    assert "make run GPU=rocm" in remark


def test_a_small_disk_gets_a_small_quota() -> None:
    def quota(free: int) -> object:
        return choose(machine(GIB, disk_free=free)).config.store.quota

    assert quota(1000 * GIB) == 50 * GIB
    assert quota(GIB) == GIB // 5
    assert quota(0) == "auto"


def test_it_is_written_for_this_user_only_and_loads(cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path / 'odd "name".gguf')
    target = tmp_path / "new/config.toml"
    old = os.umask(0)
    try:
        ran = cli.quick("init", "--file", str(target), "--model", str(file))
    finally:
        os.umask(old)
    assert ran.code == 0, ran.err
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    assert load_config(file=str(target)).model.path == str(file)
    assert [entry.name for entry in target.parent.iterdir()] == ["config.toml"]
    assert ran.out.startswith(f"Wrote {target}\n")
    assert f"sessiond doctor --config {target}" in ran.out
    assert f"sessiond serve --config {target}" in ran.out


def test_nothing_is_overwritten_without_force(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "config.toml"
    target.write_text("[server]\nport = 1\n")
    target.chmod(0o644)
    ran = cli.quick("init", "--file", str(target))
    assert ran.code == 1
    assert "--force" in ran.err
    assert target.read_text() == "[server]\nport = 1\n"
    assert cli.quick("init", "--file", str(target), "--force").code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert "[checkpoints]" in target.read_text()


def test_a_file_that_appears_meanwhile_is_not_overwritten_either(tmp_path: Path) -> None:
    target = tmp_path / "c.toml"
    target.write_text("mine")
    with pytest.raises(ConfigError, match="there already"):
        write_private(target, "new", force=False)
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    link = tmp_path / "c.toml"
    link.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError):
        write_private(link, "new", force=False)
    write_private(link, "new", force=True)
    assert (link.read_text(), (tmp_path / "other").read_text()) == ("new", "mine")


def test_a_place_that_cannot_be_written_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = cli.quick("init", "--file", str(tmp_path / "file/c.toml"))
    assert ran.code == 1
    assert "--file" in ran.err


def test_a_model_that_is_none_is_refused_and_nothing_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>")
    for name in ("page.gguf", "none.gguf"):
        ran = cli.quick("init", "--file", str(tmp_path / "c"), "--model", str(tmp_path / name))
        assert ran.code == 1
        assert name in ran.err
    assert not (tmp_path / "c").exists()


def test_what_was_chosen_is_told_as_json(cli: Cli, tmp_path: Path) -> None:
    file, target = write(tmp_path / "m.gguf"), tmp_path / "c.toml"
    ran = cli.quick("init", "--file", str(target), "--model", str(file), "--json")
    told = {each["key"]: each["value"] for each in ran.json["chosen"]}
    assert ran.json["file"] == str(target)
    assert told["model.path"] == str(file)
    assert told["server.host"] == "127.0.0.1"


def test_root_writes_for_the_system_and_others_for_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_path() == Path("/etc/sessiond/config.toml")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_path() == tmp_path / "sessiond/config.toml"
