"""A model's memory is trusted with blocks only after it has shown that it obeys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sessiond
from sessiond.engine.context import Payload
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.memory import Memory
from sessiond.engine.probe import Verdict, examine, probe
from sessiond.engine.settings import ContextSettings
from tests.engine.worlds import FAKE_MEMORY

SWA, HYBRID = FAKE_MEMORY["fake-swa"], FAKE_MEMORY["fake-hybrid"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child finds this sessiond, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(Path(sessiond.__file__).parent.parent))


def settings_of(path: Path) -> ContextSettings:
    return ContextSettings(path, n_ctx=0, n_seq_max=0, threads=1)


def test_every_kind_of_model_gets_blocks(memory_kind: str, model_path: Path) -> None:
    verdict = probe(settings_of(model_path))
    assert (verdict.codec, verdict.detail) == ("blocks", "")
    assert (verdict.token_bytes > 0) == (memory_kind != "recurrent")
    assert (verdict.snapshot_bytes > 0) == (memory_kind in ("recurrent", "hybrid"))
    assert (verdict.window_token_bytes > 0) == (memory_kind == "swa")


# --- children that die


def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, timeout: float = 60) -> str:
    """What the verdict says when the child is this shell script."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    verdict = probe(settings_of(tmp_path / "m.gguf"), timeout)
    assert verdict == Verdict("whole", verdict.detail, 0, 0, 0)
    return verdict.detail


def test_an_abort_kills_the_child_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'echo "x.cpp:1: GGML_ASSERT(full) failed" >&2; echo "#0 main" >&2; kill -ABRT $$'
    detail = child(monkeypatch, tmp_path, script)
    assert "GGML_ASSERT(full) failed" in detail
    assert "SIGABRT" in detail


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "exit status 3"),
        ("echo out of memory >&2; exit 1", "out of memory"),
        ("exit 0", "no answer"),
        ("echo '{\"codec\": 1}'", "no answer"),
        ("echo hello", "no answer"),
    ],
)
def test_a_child_without_an_answer_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str
) -> None:
    assert words in child(monkeypatch, tmp_path, script)


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "did not end" in child(monkeypatch, tmp_path, "exec sleep 60", timeout=0.2)


def test_a_child_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    verdict = probe(settings_of(tmp_path / "m.gguf"))
    assert verdict.codec == "whole"
    assert "could not be started" in verdict.detail


def test_a_broken_model_is_said_in_llama_cpps_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    verdict = probe(settings_of(broken))
    assert verdict.codec == "whole"
    assert f"cannot load {broken}" in verdict.detail


# --- what is looked for


def fake(kind: Callable[..., FakeContext], memory: Memory) -> FakeContext:
    return kind(FakeModel(memory), n_seq_max=4, n_batch=128)


def examined(kind: Callable[..., FakeContext], memory: Memory) -> Verdict:
    return examine(fake(kind, memory), fake(kind, memory), 256)


@pytest.mark.parametrize("name", sorted(FAKE_MEMORY))
def test_a_memory_that_obeys_gets_blocks(name: str) -> None:
    assert examined(FakeContext, FAKE_MEMORY[name]).codec == "blocks"


class PartialFirst(FakeContext):
    """Cells behind the window: a cut at the end would cut cells."""

    def get_state(self, seq: int, *, partial: bool) -> Payload:
        state, part = (super(PartialFirst, self).get_state(seq, partial=p) for p in (False, True))
        if partial:
            return part
        head, size = bytes(state[:8]), len(part) - 8
        return memoryview(head + bytes(part[8:]) + bytes(state[8 : len(state) - size]))

    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        raw = bytes(payload)
        if not partial:
            size = 4 + int.from_bytes(raw[8:12], "little")
            raw = raw[:8] + raw[8 + size :] + raw[8 : 8 + size]
        return super().set_state(seq, memoryview(raw), partial=partial)


class LosesCells(FakeContext):
    def seq_cp(self, source: int, target: int, start: int, stop: int) -> None:
        super().seq_cp(source, target, start, stop - 1 if stop > 0 else stop)


class RefusesStates(FakeContext):
    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        return seq != 0 and super().set_state(seq, payload, partial=partial)


class RefusesBlocks(FakeContext):
    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        return partial and super().set_state(seq, payload, partial=partial)


class ChangesStates(FakeContext):
    """What is restored is one token off."""

    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        done = super().set_state(seq, payload, partial=partial)
        cells = self._sequences[seq].cells
        for position in cells:
            cells[position] += 1
        return done


class ForgetsMeaning(FakeContext):
    """The bytes are right and the answers are not."""

    restored = False

    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        self.restored = self.restored or seq == 2
        return super().set_state(seq, payload, partial=partial)

    def _hidden(self, sequence: object, position: int) -> int:
        hidden = super()._hidden(sequence, position)  # type: ignore[arg-type]
        return hidden + 1 if self.restored else hidden


@pytest.mark.parametrize(
    ("kind", "memory", "words"),
    [
        (PartialFirst, SWA, "does not stand at the end"),
        (LosesCells, FAKE_MEMORY["fake-attention"], "refused|other bytes|does not end|off"),
        (LosesCells, HYBRID, "refused|other bytes|off"),
        (RefusesStates, HYBRID, "did not accept a snapshot"),
        (RefusesBlocks, FAKE_MEMORY["fake-attention"], "did not accept a block"),
        (ChangesStates, FAKE_MEMORY["fake-attention"], "exports to other bytes"),
        (ForgetsMeaning, FAKE_MEMORY["fake-attention"], "% off"),
    ],
)
def test_a_memory_that_does_not_obey_is_saved_in_one_piece(
    kind: Callable[..., FakeContext], memory: Memory, words: str
) -> None:
    verdict = examined(kind, memory)
    assert verdict.codec == "whole"
    assert any(word in verdict.detail for word in words.split("|")), verdict.detail


def test_where_the_snapshot_stands_matters_only_if_it_is_cut_off() -> None:
    assert examined(PartialFirst, HYBRID).codec == "blocks"
