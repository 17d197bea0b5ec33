"""State that cannot be used: the next turn answers rightly, says why it was slow, and heals."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.errors import RestoreRefused
from sessiond.sessions.turn import Miss
from tests.rig import Rig
from tests.sessions.kinds import CONTRASTS, KINDS, MEMORIES, prompt_of, rig_of
from tests.sessions.talk import Talk

each_kind = pytest.mark.parametrize("kind", KINDS)
contrasts = pytest.mark.parametrize("kind", CONTRASTS)


async def stopped_talk(rig: Rig, kind: str, turns: int = 2) -> Talk:
    talk = Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, turns)
    return talk


async def next_miss(rig: Rig, talk: Talk) -> Miss | None:
    """Of the next turn; the one after it has none any more."""
    async with rig.daemon() as daemon:
        miss = (await talk.say(daemon, "And now?")).report.miss
        assert (await talk.say(daemon, "And then?")).report.miss is None
    return miss


def files(rig: Rig) -> Iterator[Path]:
    for shelf in ("blocks", "snapshots"):
        yield from sorted(f for f in (rig.directory / "cache" / shelf).rglob("*") if f.is_file())


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    file.write_bytes(raw)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def empty(file: Path) -> None:
    file.write_bytes(b"")


MARKS = {
    "model_changed": [Fingerprint("another model", "library", "settings")],
    "settings_changed": [
        Fingerprint("model", "another library", "settings"),
        Fingerprint("model", "library", "other settings"),
    ],
}


@contrasts
@pytest.mark.parametrize(("marks", "cause"), [(m, cause) for cause in MARKS for m in MARKS[cause]])
async def test_state_of_another_model_or_setting_is_not_used(
    state_dir: Path, kind: str, marks: Fingerprint, cause: str
) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    last = talk.replies[-1].report
    rig.fingerprint = marks
    miss = await next_miss(rig, talk)
    assert miss is not None
    assert miss.cause == cause
    assert miss.tokens == last.prompt_tokens + last.completion_tokens - 1


@contrasts
async def test_the_old_model_finds_its_state_again(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    standing, first = talk.standing, rig.fingerprint
    rig.fingerprint = Fingerprint("another model", "library", "settings")
    async with rig.daemon() as daemon:
        await talk.copy().say(daemon, "With the other model?")
    rig.fingerprint = first
    async with rig.daemon() as daemon:
        report = (await talk.say(daemon, "With the first again?")).report
    assert (report.miss, report.cached_tokens) == (None, standing)


@each_kind
async def test_another_context_size_is_no_miss(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    rig.open_engine = rig_of(kind, state_dir, n_ctx=5000, lines=2).open_engine
    assert await next_miss(rig, talk) is None


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        *((kind, flip) for kind in KINDS),
        *itertools.product(CONTRASTS, [truncate, empty, Path.unlink]),
    ],
)
async def test_harmed_files_are_evaluated_again(
    state_dir: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    for file in files(rig):
        harm(file)
    miss = await next_miss(rig, talk)
    assert miss is not None
    assert (miss.cause, miss.tokens > 300) == ("damaged", True)
    async with rig.daemon() as daemon:
        standing = talk.standing
        report = (await talk.say(daemon, "And at last?")).report
        assert (report.miss, report.cached_tokens) == (None, standing)


@each_kind
async def test_one_harmed_file_costs_no_more_than_it_held(state_dir: Path, kind: str) -> None:
    """The file of the last snapshot, or of attention that of the last block."""
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind, turns=3)
    async with rig.daemon() as daemon:
        stored = daemon.machine.store.lookup(prompt_of(talk.messages))
        last = (stored.snapshots or stored.blocks)[-1].key
        flip(next(file for file in files(rig) if file.name == last))
        report = (await talk.say(daemon, "And now?")).report
    assert report.miss is not None
    assert report.miss.cause == "damaged"
    assert report.cached_tokens >= 256


@each_kind
async def test_a_dropped_cache_costs_prefill_only(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    shutil.rmtree(rig.directory / "cache")
    for index in rig.directory.glob("index.sqlite*"):
        index.unlink()
    miss = await next_miss(rig, talk)
    assert miss is not None
    assert miss.cause == "not_saved"


@contrasts
async def test_state_beyond_the_quota_is_evicted(state_dir: Path, kind: str) -> None:
    """The daemon comes back with a quota that one of two sessions fits into."""
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    size = sum(file.stat().st_size for file in files(rig))
    other = Talk(kind, session="other")
    other.messages[0]["content"] = "Another front. " * 25
    async with rig.daemon() as daemon:
        await other.turns(daemon, 2)
    rig.quota = size + size // 2
    miss = await next_miss(rig, talk)
    assert miss is not None
    assert miss.cause == "evicted"


@contrasts
async def test_a_quota_too_small_for_anything_harms_no_turn(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir)
    rig.quota = 100
    talk = await stopped_talk(rig, kind)
    async with rig.daemon() as daemon:
        report = (await talk.say(daemon, "And now?")).report
        assert report.miss is not None
        assert report.miss.cause == "not_saved"
        assert daemon.machine.store.usage().bytes <= 100


@each_kind
async def test_a_snapshot_that_was_superseded_is_named(state_dir: Path, kind: str) -> None:
    """Five turns leave the snapshots of the last two: going back to the first is a miss."""
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind, turns=5)
    first = talk.copy(1)
    async with rig.daemon() as daemon:
        report = (await first.say(daemon, "Back to the beginning?")).report
    if not MEMORIES[kind].needs_snapshot:
        assert report.miss is None
    else:
        assert report.miss is not None
        assert report.miss.cause == "no_snapshot"


@contrasts
async def test_a_state_that_llama_refuses_is_evaluated_again(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise RestoreRefused("No.")

    async with rig.daemon() as daemon:
        codec = daemon.machine.engine.core.codec
        monkeypatch.setattr(codec, "import_block", refuse)
        monkeypatch.setattr(codec, "import_snapshot", refuse)
        report = (await talk.say(daemon, "And now?")).report
        assert report.cached_tokens == 0
        assert report.miss is not None
        assert report.miss.cause == "other"


class OtherVocabulary(FakeModel):
    """Letters have other numbers, so that the tokens of the first vocabulary mean nothing."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
        return as_tokens([token ^ 1 if token < 128 else token for token in tokens.tolist()])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return super().piece(token ^ 1 if token < 128 else token, special=special)


def with_other_vocabulary(rig: Rig, kind: str) -> None:
    def open_() -> tuple[FakeModel, FakeContext]:
        model = OtherVocabulary(MEMORIES[kind])
        return model, FakeContext(model)

    rig.open_engine = open_
    rig.fingerprint = Fingerprint("other model", "library", "settings")
    rig.tokenizer = "other"


@each_kind
async def test_with_another_tokenizer_messages_are_rendered_anew_once(
    state_dir: Path, kind: str
) -> None:
    """
    1. A talk, then a model with another vocabulary.
    2. The next turn says that all of it had to be evaluated; the ones after it go on from that,
       also when they are asked for again, and after a restart.
    """
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    with_other_vocabulary(rig, kind)
    asked = [*talk.messages, {"role": "user", "content": "And now?"}]
    async with rig.daemon() as daemon:
        first = await daemon.say("talk", asked)
        assert first.report.cached_tokens == 0
        assert first.report.miss is not None
        assert first.report.miss.cause == "model_changed"
        assert first.report.miss.tokens == first.report.prompt_tokens - 1
        again = await daemon.say("talk", asked)
        assert (again.report.miss, again.report.prefilled_tokens) == (None, 1)
        assert again.text == first.text
    asked += [{"role": "assistant", "content": again.text}, {"role": "user", "content": "Then?"}]
    async with rig.daemon() as daemon:
        report = (await daemon.say("talk", asked)).report
        ended = again.report.prompt_tokens + again.report.completion_tokens
        assert report.cached_tokens >= ended - 1
        assert report.miss is None


@each_kind
async def test_what_a_resume_renders_anew_is_what_the_next_turn_begins_with(
    state_dir: Path, kind: str
) -> None:
    rig = rig_of(kind, state_dir)
    talk = await stopped_talk(rig, kind)
    with_other_vocabulary(rig, kind)
    async with rig.daemon() as daemon:
        resumed = await daemon.lifecycle.resume("talk")
        assert (resumed.source, resumed.restored_tokens) == ("ledger", 0)
        assert resumed.prefilled_tokens == resumed.tokens - 1
        assert resumed.miss is not None
        assert resumed.miss.cause == "model_changed"
        asked = [*talk.messages, {"role": "user", "content": "And now?"}]
        report = (await daemon.say("talk", asked)).report
        assert report.cached_tokens >= resumed.tokens - 1
