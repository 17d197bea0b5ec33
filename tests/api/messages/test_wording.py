"""Usage, the reason of the end, and the cache's diagnostics, from a turn's report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.messages.marks import lifetime
from sessiond.api.messages.reply import MessagesReply, Wish
from sessiond.api.messages.wording import diagnostics, input_usage, stop
from sessiond.sessions.cause import Cause
from sessiond.sessions.parts import Called, Part
from sessiond.sessions.turn import Finished, Miss, TurnReport
from tests.api.scripted import REPORT

ANTHROPICS = {
    "model_changed",
    "system_changed",
    "tools_changed",
    "messages_changed",
    "unavailable",
}
OWN = ("settings_changed", "damaged", "evicted", "not_saved", "no_snapshot")


def finished(report: TurnReport = REPORT, parts: tuple[Part, ...] = ()) -> Finished:
    return Finished("", report, parts, 2)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([None, "5m", "1h"]))
def test_the_three_kinds_of_input_are_all_of_it(cached: int, new: int, kept: Any) -> None:
    told = input_usage(cached + new, cached, kept)
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(told[kind] for kind in kinds) == cached + new
    assert told["cache_read_input_tokens"] == cached
    assert told["cache_creation_input_tokens"] == (new if kept else 0)
    assert sum(told["cache_creation"].values()) == told["cache_creation_input_tokens"]
    assert told["cache_creation"]["ephemeral_1h_input_tokens"] == (new if kept == "1h" else 0)


MARK = {"type": "ephemeral"}
HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({}, None),
        ({"cache_control": None}, None),
        ({"cache_control": MARK}, "5m"),
        ({"cache_control": "x"}, None),
        ({"system": "cache_control"}, None),
        ({"system": [{"type": "text", "text": "x", "cache_control": MARK}]}, "5m"),
        ({"tools": [{"name": "ls", "cache_control": {**MARK, "ttl": "1h"}}]}, "1h"),
        ({"messages": [{"role": "user", "content": [{"cache_control": MARK}, "x"]}]}, "5m"),
        ({"tools": [{"cache_control": {**MARK, "ttl": "1h"}}], "cache_control": MARK}, "5m"),
    ],
)
def test_marks(body: dict[str, Any], kept: str | None) -> None:
    assert lifetime({"messages": [HI], **body}) == kept


@pytest.mark.parametrize(
    ("report", "parts", "reason", "by"),
    [
        ({}, (), "end_turn", None),
        ({"finish_reason": "length"}, (), "max_tokens", None),
        ({"finish_reason": "length"}, (Called("1", "ls", "{}"),), "max_tokens", None),
        ({"finish_reason": "cancelled"}, (), "max_tokens", None),
        ({"stopped_by": "END"}, (), "stop_sequence", "END"),
        ({}, (Called("1", "ls", "{}"),), "tool_use", None),
        ({"stopped_by": "END"}, (Called("1", "ls", "{}"),), "tool_use", None),
    ],
)
def test_why_it_ended(
    report: dict[str, Any], parts: tuple[Part, ...], reason: str, by: str | None
) -> None:
    told = stop(finished(replace(REPORT, **report), parts))
    assert told == {"stop_reason": reason, "stop_sequence": by}


@pytest.mark.parametrize("cause", [*get_args(Cause), *OWN, "model_changed"])
def test_every_miss_has_one_of_anthropics_reasons(cause: Any) -> None:
    miss = Miss(cause, "Something happened.", 7)
    told = diagnostics(replace(REPORT, miss=miss))
    assert told is not None
    reason = told["cache_miss_reason"]
    assert reason["type"] in ANTHROPICS
    assert reason["cache_missed_input_tokens"] == 7
    assert (reason["cause"], reason["message"]) == (cause, "Something happened.")


@pytest.mark.parametrize(
    ("miss", "reason"),
    [
        (Miss("clock", "The system prompt changed (clock 10:02 → 10:03).", 7), "system_changed"),
        (Miss("clock", "Message 3 changed (clock 10:02 → 10:03).", 7), "messages_changed"),
        (Miss("tools_changed", "The tool definitions changed.", 7), "tools_changed"),
        (Miss("front_trimmed", "The oldest messages were left out.", 7), "messages_changed"),
        (Miss("evicted", "Their saved state was removed.", 7), "unavailable"),
    ],
)
def test_the_nearest_reason(miss: Miss, reason: str) -> None:
    told = diagnostics(replace(REPORT, miss=miss))
    assert told is not None
    assert told["cache_miss_reason"]["type"] == reason


def test_diagnostics_are_told_to_those_who_ask() -> None:
    missed = finished(replace(REPORT, miss=Miss("evicted", "Gone.", 7)))
    asked = MessagesReply(lambda: "m", Wish(diagnostics=True))
    unasked = MessagesReply(lambda: "m", Wish())
    assert unasked.whole(missed, None)["diagnostics"] is None
    assert asked.whole(finished(), None)["diagnostics"] is None
    assert asked.whole(missed, None)["diagnostics"]["cache_miss_reason"]["cause"] == "evicted"
    assert unasked.whole(missed, None)["sessiond"]["miss"] == missed.report.miss
