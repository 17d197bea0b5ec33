"""The format of an export: what is whole is read, and everything else is refused as a whole."""

from __future__ import annotations

import base64
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.errors import InvalidExport
from sessiond.sessions.transfer import verifying
from sessiond.sessions.transfer.container import END, opening
from sessiond.sessions.transfer.exporting import file_of
from sessiond.sessions.transfer.filename import file_name
from sessiond.sessions.transfer.manifest import PART
from sessiond.sessions.transfer.verifying import Export, read_export
from sessiond.store.store import Store
from tests.sessions.files import (
    LONG,
    Members,
    file_with,
    joined,
    members_of,
    sealed,
    small_contents,
    small_tree,
    with_head,
    with_turns,
)

GOLDEN = Path(__file__).parent / "golden" / "session-v1.sessiond"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    place = tmp_path_factory.mktemp("store")
    store = Store(
        place / "cache", place / "index.sqlite", fingerprint="print", quota=1 << 30, keep_free=0
    )
    yield store
    store.close()


@pytest.fixture(scope="module")
def file(store: Store) -> bytes:
    return joined(small_contents(store))


@pytest.fixture(scope="module")
def members(file: bytes) -> Members:
    return members_of(file)


def read(file: bytes) -> Export:
    return read_export(io.BytesIO(file))


def refused(file: bytes, match: str | None = None) -> None:
    with pytest.raises(InvalidExport, match=match):
        read(file)


def test_what_was_written_is_read(file: bytes) -> None:
    export = read(file)
    assert (export.head.session.name, export.head.session.policy) == ("x", "fork")
    for found, wanted in zip(export.tree, small_tree(), strict=True):
        assert (found.number, found.parent, found.content) == (
            wanted.number,
            wanted.parent,
            wanted.content,
        )
        assert found.prompt_tokens.tolist() == wanted.prompt_tokens.tolist()
        assert found.reply_tokens.tolist() == wanted.reply_tokens.tolist()
        assert (found.stats, found.created) == (wanted.stats, wanted.created)
    spans = [(one.told.kind, one.told.start, one.told.end) for one in export.state]
    assert spans == [
        ("block", 0, 256),
        ("block", 256, 512),
        ("snapshot", 0, LONG),
        ("block", 512, LONG + 6),
    ]


def test_any_tar_program_reads_it_and_finds_no_surprise(file: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(file)) as tar:
        listed = tar.getmembers()
    assert all(one.isreg() and one.mode == 0o600 for one in listed)
    names = [one.name for one in listed]
    states = [f"state/{number:06}" for number in range(1, 5)]
    rest = ["manifest.json", "manifest.sha256"]
    assert names == ["session.json", "turns/000001.jsonl", *states, *rest]


def test_a_file_is_sealed_again_as_it_was(file: bytes, members: Members) -> None:
    """What the tests below make of it is read, so they are refused for what they say."""
    assert file_with(members) == file
    assert len(read(sealed(members)).tree) == 3


def test_no_part_is_longer_than_promised(store: Store) -> None:
    """A block of three parts and a bit."""
    contents = small_contents(store)
    tokens = small_tree().path_tokens(2)
    store.put_snapshot(tokens, b"s" * (3 * PART + 5))
    more = small_contents(store)
    assert len(more.pieces) == len(contents.pieces) + 1
    sizes = [len(part) for part in file_of(more)]
    assert max(sizes) == PART
    assert sum(sizes) > 3 * PART


# --- damage


def test_a_flipped_bit_anywhere(file: bytes) -> None:
    for at in range(0, len(file), 11):
        refused(_flipped(file, at, at % 8))


@settings(max_examples=150)
@given(data=st.data())
def test_a_flipped_bit_anywhere_else(file: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(file) - 1))
    refused(_flipped(file, at, data.draw(st.integers(0, 7))))


def _flipped(file: bytes, at: int, bit: int) -> bytes:
    return file[:at] + bytes([file[at] ^ 1 << bit]) + file[at + 1 :]


def test_cut_off_at_every_block(file: bytes) -> None:
    """Every member begins and ends at a block, so its boundaries are among these."""
    for length in range(0, len(file), 512):
        refused(file[:length])
    refused(file[:-1], "cut off")


@pytest.mark.parametrize("tail", [b"\0", bytes(512), b"x" * 1024])
def test_something_behind_the_end(file: bytes, tail: bytes) -> None:
    refused(file + tail, "behind the end")


def test_members_in_another_order(members: Members) -> None:
    for at in range(len(members) - 1):
        swapped = [*members[:at], members[at + 1], members[at], *members[at + 2 :]]
        refused(file_with(swapped))


def test_a_member_too_few_or_twice(members: Members) -> None:
    for at in range(len(members)):
        refused(file_with([*members[:at], *members[at + 1 :]]))
        refused(file_with([*members[: at + 1], *members[at:]]))


ODD = ["../x", "/etc/passwd", "state/../../x", "a\\b", "state/000005 ", "turns/2.jsonl", "x" * 99]


@pytest.mark.parametrize("name", ODD)
def test_a_member_with_an_odd_name(members: Members, name: str) -> None:
    """Whoever wrote it tells of it in the manifest, too."""
    for at in range(len(members) - 1):
        more = [*members[:at], (name, b"x"), *members[at:]]
        refused(sealed(more))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
)
def test_a_member_that_is_no_file(file: bytes, kind: bytes) -> None:
    link = tarfile.TarInfo("state/000005")
    link.type, link.linkname, link.mode = kind, "/etc/passwd", 0o600
    at = file.index(b"manifest.json\0")
    refused(file[:at] + link.tobuf(tarfile.GNU_FORMAT) + file[at:], "no plain file")


@pytest.mark.parametrize("size", [1, 10**6, 10**12, 2**62])
def test_a_size_that_is_not_true(file: bytes, size: int) -> None:
    at = file.index(b"state/000002\0")
    refused(file[:at] + opening("state/000002", size) + file[at + 512 :])


def test_a_negative_size(file: bytes) -> None:
    at = file.index(b"state/000002\0")
    header = bytearray(file[at : at + 512])
    header[124:136] = b"\xff" * 12
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    refused(file[:at] + bytes(header) + file[at + 512 :], "altered")


def test_very_many_members_are_not_looked_at(members: Members) -> None:
    """Nobody reads on behind the first one that does not belong."""
    junk = opening("junk", 0) * 50_000
    file = io.BytesIO(file_with(members[:2])[: -len(END)] + junk + END)
    with pytest.raises(InvalidExport, match="does not belong at place 2"):
        read_export(file)
    assert file.tell() < 20_000


def test_more_members_than_any_session_has(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "MOST_MEMBERS", len(members))
    read(file_with(members))
    monkeypatch.setattr(verifying, "MOST_MEMBERS", len(members) - 1)
    refused(file_with(members), "does not belong")


def test_more_turns_than_memory(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "MOST_TURN_BYTES", 100)
    refused(file_with(members), "more than 100 bytes")


# --- what is well sealed and wrong


@pytest.mark.parametrize("content", [b"", b"hello", bytes(10240), b"PK\x03\x04" * 500])
def test_a_file_that_is_something_else(content: bytes) -> None:
    refused(content)


def test_a_newer_format_is_said_whatever_else_it_has(members: Members) -> None:
    head = json.dumps({"format": "sessiond-export", "version": 2}).encode()
    newer = file_with([("session.json", head), ("shards/1", b"x")])
    refused(newer, "format 2; this sessiond reads up to 1. A newer sessiond wrote it")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": "1"},
        {"session": None},
        {"state_of": {"fingerprint": 5}},
    ],
    ids=str,
)
def test_a_head_that_is_none(members: Members, change: Json) -> None:
    refused(with_head(members, lambda head: head.update(change)))


@pytest.mark.parametrize(
    "change",
    [
        {"created": 1e300},
        {"created": -1},
        {"created": "x"},
        {"policy": "strict"},
        {"pinned_front": "clock"},
        {"name": 5},
        {"title": "t" * (PART + 1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_session_that_is_none(members: Members, change: Json) -> None:
    refused(with_head(members, lambda head: head["session"].update(change)))


def _packed(*tokens: int) -> str:
    return base64.b64encode(struct.pack(f"<{len(tokens)}i", *tokens)).decode()


WRONG_TURNS: list[Json] = [
    {"number": 1},
    {"number": 0},
    {"number": 2**40},
    {"number": "two"},
    {"parent": 3},
    {"parent": -1},
    {"kept": LONG + 99},
    {"kept": -1},
    {"prompt_tokens": "no base64"},
    {"prompt_tokens": base64.b64encode(b"abc").decode()},
    {"reply_tokens": _packed(-1)},
    {"finish_reason": "bored"},
    {"content": None},
    {"content": {"prompt": "raw, under a chat"}},
    {"content": {"messages": [{"role": "root", "content": "x"}]}},
    {"content": {"messages": [{"role": "user", "content": ["x"]}]}},
    {"content": {"messages": [], "tools": ["no json"]}},
    {"content": {"messages": [], "tools": ["[]"]}},
    {"content": {"messages": [], "template_options": [["a"]]}},
    {"stats": {}},
    {"created": 1e30},
    {"replaces": 0},
    {"tokenizer": "t" * 5000},
    {"response_id": "r", "response": "{}"},
    {"response_id": ""},
    {"response_id": ".."},
    {"response_id": "\x00"},
    {"number": 2.0},
    {"number": "2"},
    {"opened": "o" * 5000},
    {"replaces": 2},
    {"replaces": 1},
    {"replaces": 4},
]


@pytest.mark.parametrize("wrong", WRONG_TURNS, ids=lambda wrong: str(wrong)[:60])
def test_a_turn_that_no_daemon_has_written(members: Members, wrong: Json) -> None:
    refused(with_turns(members, lambda turns: turns[1].update(wrong)))


def test_a_count_beyond_all_bounds(members: Members) -> None:
    refused(with_turns(members, lambda turns: turns[0]["stats"].update(cached=2**60)), "stats")


@pytest.mark.parametrize("wrong", [{"number": True}, {"number": 1.0}, {"kept": "0"}], ids=str)
def test_nothing_is_taken_for_what_it_is_not(members: Members, wrong: Json) -> None:
    refused(with_turns(members, lambda turns: turns[0].update(wrong)))


@pytest.mark.parametrize("tokens", [-5, 2**63, 2**60, True, "5"])
def test_a_miss_of_impossible_tokens(members: Members, tokens: object) -> None:
    refused(with_turns(members, lambda turns: turns[0]["stats"].update(miss=_miss(tokens=tokens))))


def test_why_tokens_were_read_again_can_be_shown(members: Members) -> None:
    long = _miss(message="m" * 1_000_000)
    refused(with_turns(members, lambda turns: turns[0]["stats"].update(miss=long)))
    odd = _miss(message="\x1b[31m\x00no")
    export = read(with_turns(members, lambda turns: turns[0]["stats"].update(miss=odd)))
    miss = export.tree[1].stats.miss
    assert miss is not None
    assert miss.message == " [31m no"


def _miss(**wrong: object) -> Json:
    return {"cause": "evicted", "message": "x", "tokens": 5, **wrong}


def test_two_lines_that_replace_each_other(members: Members) -> None:
    def swap(turns: list[Json]) -> None:
        turns[1]["replaces"], turns[2]["replaces"] = 4, 2

    refused(with_turns(members, swap), "not before it")


def test_what_is_replaced_is_known_or_gone(members: Members) -> None:
    """A line that was compacted may have been pruned since."""
    for gone, told in ((2, 2), (3, None)):
        export = read(with_turns(members, lambda turns: turns[2].update(replaces=gone)))  # noqa: B023
        assert export.tree[4].replaces == told


def test_more_turns_than_any_session_has(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "MOST_TURNS", 3)
    read(file_with(members))
    monkeypatch.setattr(verifying, "MOST_TURNS", 2)
    refused(file_with(members), "more than 2 turns")


def test_two_turns_with_the_same_response(members: Members) -> None:
    kept = json.dumps({"fields": {}, "output": [], "reasoning_tokens": 0})

    def answer(turns: list[Json]) -> None:
        for turn in turns:
            turn |= {"response_id": "resp_1", "response": kept}

    refused(with_turns(members, answer), "response")


def test_a_parent_with_a_later_number(members: Members) -> None:
    """Turns are read from the ledger by their numbers."""

    def turned(turns: list[Json]) -> None:
        turns[0]["number"] = turns[1]["parent"] = turns[2]["parent"] = 9

    refused(with_turns(members, turned), "before its parent")


def test_a_child_before_its_parent(members: Members) -> None:
    refused(with_turns(members, lambda turns: turns.reverse()), "does not fit")


WRONG_STATES: list[Json] = [
    {"turn": 3},
    {"turn": 10**9},
    {"start": 255},
    {"start": -256, "end": 0},
    {"end": 0},
    {"end": 10**6},
    {"end": 300},
    {"kind": "soul"},
    {"kind": "snapshot", "start": 256},
]


@pytest.mark.parametrize("wrong", WRONG_STATES, ids=str)
def test_state_of_what_the_session_has_not(members: Members, wrong: Json) -> None:
    refused(sealed(members, **{"state/000001": wrong}))


def test_state_without_a_byte(members: Members) -> None:
    emptied = [(name, b"" if name == "state/000001" else data) for name, data in members]
    refused(sealed(emptied))


@pytest.mark.parametrize("lie", [{"bytes": 2999}, {"sha256": sha256(b"").hexdigest()}], ids=str)
def test_a_manifest_that_lies(members: Members, lie: Json) -> None:
    refused(sealed(members, **{"state/000001": lie}))


@settings(max_examples=100)
@given(data=st.data())
def test_no_turn_makes_the_reader_fail(members: Members, data: st.DataObject) -> None:
    """Any field of any turn says anything: it is read, or refused, and nothing else."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=6,
    )
    field = data.draw(st.sampled_from(sorted(_a_turn(members))))
    value = data.draw(anything)
    change: Callable[[list[Json]], object] = lambda turns: turns[-1].update({field: value})  # noqa: E731
    try:
        read(with_turns(members, change))
    except InvalidExport as error:
        assert str(error)


def _a_turn(members: Members) -> Json:
    turn: Json = json.loads(dict(members)["turns/000001.jsonl"].splitlines()[0])
    return turn


# --- for ever


def test_the_first_version_is_read_for_ever() -> None:
    """Do not make this file anew: files like it are on people's disks."""
    export = read(GOLDEN.read_bytes())
    assert (export.head.version, export.head.session.name) == (1, "golden")
    assert [turn.number for turn in export.tree] == [1, 2, 3]
    assert {one.told.kind for one in export.state} == {"block", "snapshot"}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("work", "work.sessiond"),
        ("grüße an alle", "gr_e_an_alle.sessiond"),
        ("../../etc", "etc.sessiond"),
        ("...", "session.sessiond"),
        ("a\\b:c*?", "a_b_c.sessiond"),
        ("x" * 200, "x" * 100 + ".sessiond"),
        ("-rf", "rf.sessiond"),
    ],
)
def test_a_file_name_is_safe_everywhere(name: str, file: str) -> None:
    assert file_name(name) == file
