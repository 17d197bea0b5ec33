"""State of anything else is never loaded: one factor of the fingerprint at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from sessiond.engine.fake import FakeModel
from sessiond.engine.fingerprint import Fingerprint, file_digest, fingerprint
from sessiond.engine.settings import ContextSettings
from tests.rig import Rig
from tests.rig.rig import real
from tests.sessions.kinds import rig_of
from tests.sessions.talk import Talk

LIBRARIES = ("libllama.so", "libggml.so")
INFO = replace(FakeModel().info, n_ctx_orig=8192)
SETTINGS = ContextSettings(Path("a.gguf"), n_ctx=4096, n_seq_max=6)

FACTORS: dict[str, tuple[dict[str, Any], str]] = {
    "other weights": ({"weights": "2"}, "model_changed"),
    "other model file": ({"model": Path("b.gguf")}, "model_changed"),
    "other build of a library": ({"build": "2"}, "settings_changed"),
    "a library more": ({"libraries": (*LIBRARIES, "libcuda.so")}, "settings_changed"),
    "a library fewer": ({"libraries": LIBRARIES[:1]}, "settings_changed"),
    "type of keys": ({"type_k": "q8_0"}, "settings_changed"),
    "type of values": ({"type_v": "q8_0"}, "settings_changed"),
    "flash attention": ({"flash_attn": False}, "settings_changed"),
    "the long side of a long-rope model": ({"n_ctx": 16384}, "settings_changed"),
    "rope base": ({"extra": {"rope_freq_base": 1e6}}, "settings_changed"),
    "rope scale": ({"extra": {"rope_freq_scale": 0.5}}, "settings_changed"),
    "rope scaling type": ({"extra": {"rope_scaling_type": 2}}, "settings_changed"),
    "yarn factor": ({"extra": {"yarn_ext_factor": 1.0}}, "settings_changed"),
    "yarn original length": ({"extra": {"yarn_orig_ctx": 2048}}, "settings_changed"),
    "overridden metadata": ({"extra": {"kv_overrides": "window=32"}}, "settings_changed"),
    "cache on the device or not": ({"extra": {"offload_kqv": False}}, "settings_changed"),
}


def marks(
    libraries: tuple[str, ...] = LIBRARIES, weights: str = "1", build: str = "1", **changes: Any
) -> Fingerprint:
    def digest(path: Path) -> str:
        return f"{path} {build if path.suffix == '.so' else weights}"

    settings = replace(SETTINGS, **changes)
    return fingerprint(settings, INFO, [Path(name) for name in libraries], digest)


@pytest.fixture
async def saved(state_dir: Path) -> tuple[Rig, Talk]:
    """A talk whose state is on disk."""
    rig, talk = rig_of("hybrid+swa", state_dir), Talk("hybrid+swa")
    rig.fingerprint = marks()
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    return rig, talk


def test_there_are_enough_factors() -> None:
    assert len({marks(**changes).value for changes, _ in FACTORS.values()} | {marks().value}) == 17


@pytest.mark.parametrize("factor", FACTORS)
async def test_state_of_another_world_is_never_loaded(saved: tuple[Rig, Talk], factor: str) -> None:
    """1. Save. 2. Start with one factor changed: a turn. 3. Start as before: the same turn.

    Result: nothing is restored in step 2 and it is said why; in step 3 all comes from disk.
    """
    rig, talk = saved
    changes, cause = FACTORS[factor]
    rig.fingerprint = marks(**changes)
    async with rig.daemon(kill=True) as daemon:
        report = (await talk.copy().say(daemon, "Who are you?")).report
        assert (report.restored_tokens, report.cached_tokens) == (0, 0)
        assert report.miss is not None
        assert report.miss.cause == cause
    rig.fingerprint = marks()
    standing = talk.standing
    async with rig.daemon() as daemon:
        report = (await talk.say(daemon, "And you?")).report
        assert (report.source, report.cached_tokens) == ("disk", standing)


def perturbed(source: Path, target: Path) -> None:
    """The same model in name, shape and size, with one byte of one tensor changed."""
    shutil.copyfile(source, target)
    tensor = next(t for t in GGUFReader(source).tensors if t.name == "blk.1.attn_norm.weight")
    with target.open("r+b") as file:
        file.seek(int(tensor.data_offset))
        (byte,) = file.read(1)
        file.seek(int(tensor.data_offset))
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    "kind", ["hybrid", pytest.param("recurrent", marks=pytest.mark.proof_durability)]
)
async def test_state_of_the_same_model_with_other_weights_is_never_loaded(
    models: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    other = tmp_path / "other.gguf"
    perturbed(models(kind), other)
    assert other.stat().st_size == models(kind).stat().st_size

    def rig(model: Path) -> Rig:
        settings = ContextSettings(model, n_ctx=1024, n_seq_max=6)
        mark = fingerprint(settings, INFO, [], file_digest)
        opener = real(model, n_ctx=1024, n_batch=64, n_ubatch=64)
        return Rig(tmp_path, opener, fingerprint=mark)

    messages = [{"role": "user", "content": "Tell the old rule. " * 10}]
    more = [*messages, {"role": "assistant", "content": ""}, {"role": "user", "content": "And?"}]
    async with rig(models(kind)).daemon() as daemon:
        more[1]["content"] = (await daemon.say("talk", messages, max_tokens=3)).text
    async with rig(other).daemon() as daemon:
        report = (await daemon.say("talk", more, max_tokens=3)).report
        assert (report.restored_tokens, report.cached_tokens) == (0, 0)
        assert report.miss is not None
        assert report.miss.cause == "model_changed"
    async with rig(models(kind)).daemon() as daemon:
        report = (await daemon.say("talk", more, max_tokens=3)).report
        assert report.source == "disk"
        assert report.cached_tokens > 0
