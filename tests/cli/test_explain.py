from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, rewrite, turn

MISS = {"cause": "evicted", "message": "Its state was removed to make room.", "tokens": 40980}


def give(daemon: Daemon, *rewrites: object, turns: tuple[object, ...] = ()) -> None:
    daemon.answers["GET /v1/sessions/billing/explain"] = {"rewrites": list(rewrites)}
    daemon.answers["GET /v1/sessions/billing/turns"] = {"turns": list(turns)}


def test_a_refusal_is_told_in_full(cli: Cli, daemon: Daemon) -> None:
    give(daemon, rewrite())
    ran = cli("explain", "billing")
    assert (ran.code, ran.err) == (0, "")
    for told in (
        "3 min ago",
        "refused: nothing was sent",
        "clock",
        "The system prompt changed (clock 10:02 → 10:03).",
        "messages[0].content (system), character 412, token 97",
        "…It is 10:02 in Berlin…",
        "…It is 10:03 in Berlin…",
        "41,133 in the session, 97 of them reusable, 41,036 not",
        "~88 s to read the rest again",
        "Start a new chat.",
        "sessiond set billing --policy fork",
    ):
        assert told in ran.out
    assert "\x1b" not in ran.out
    assert cli.quick("why", "billing").out == ran.out


def test_the_newest_comes_last_and_its_ways_on_stand_once(cli: Cli, daemon: Daemon) -> None:
    sentences = [f"Message {number} was changed." for number in range(8)]
    ways = [[f"Way {number}."] for number in range(8)]
    give(daemon, *(rewrite(sentence=s, ways=w) for s, w in zip(sentences, ways, strict=True)))
    out = cli.quick("explain", "billing").out
    assert re.findall(r"Message \d was changed\.", out) == sentences[-5:]
    assert re.findall(r"Way \d", out) == ["Way 7"]
    fewer = cli.quick("explain", "billing", "--last", "2").out
    assert re.findall(r"Message \d was changed\.", fewer) == sentences[-2:]


def test_what_was_let_through_says_as_what(cli: Cli, daemon: Daemon) -> None:
    give(
        daemon,
        *(
            rewrite(turn=number, outcome=outcome)
            for number, outcome in enumerate(("forked", "compacted", "rewound", "unheard-of"), 7)
        ),
    )
    out = cli.quick("explain", "billing").out
    for told in ("turn 7", "turn 10", "beside the old line", "compaction", "little", "unheard-of"):
        assert told in out
    assert "refused" not in out
    assert "What you can do" not in out


def test_turns_that_read_again_are_told_unless_a_rewrite_explains_them(
    cli: Cli, daemon: Daemon
) -> None:
    give(
        daemon,
        rewrite(turn=39, outcome="forked"),
        turns=(turn(38, miss=MISS), turn(39, miss=MISS), turn(40)),
    )
    lines = cli.quick("explain", "billing").out.splitlines()
    heading = next(index for index, line in enumerate(lines) if line.startswith("TURN"))
    (row,) = lines[heading + 1 :]
    assert row.split()[0] == "38"
    for told in ("evicted", "40,980", "Its state was removed to make room."):
        assert told in row


def test_nothing_to_explain_is_said_plainly(cli: Cli, daemon: Daemon) -> None:
    give(daemon, turns=(turn(39), turn(40)))
    ran = cli.quick("explain", "billing")
    assert ran.code == 0
    assert ran.out.startswith("Nothing to explain")
    assert cli.quick("explain", "billing", "--json").json == {"rewrites": [], "misses": []}


def test_json_holds_the_daemons_rewrites_and_the_turns_that_missed(
    cli: Cli, daemon: Daemon
) -> None:
    told, missed = rewrite(), turn(39, miss=MISS)
    give(daemon, told, turns=(missed, turn(40)))
    assert cli("explain", "billing", "--json").json == {"rewrites": [told], "misses": [missed]}


def test_it_fits_a_terminal_of_80_columns(cli: Cli, daemon: Daemon) -> None:
    long = "sessiond set billing --pinned-front clock --pinned-front date   (the first one stays)"
    give(
        daemon,
        rewrite(before="x" * 82, after="y " * 41, ways=[long]),
        turns=(turn(38, miss=MISS | {"message": "word " * 20}),),
    )
    with cli.terminal("explain", "billing", NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
    assert max(map(len, terminal.lines())) <= 80
    assert "\x1b" not in terminal.screen
    assert terminal.screen.count("x") >= 82


def test_what_clients_wrote_cannot_steer_the_terminal(cli: Cli, daemon: Daemon) -> None:
    give(daemon, rewrite(before="\x1b[2Jgone\r", after="", ways=["\x1b]0;title\x07"]))
    out = cli.quick("explain", "billing").out
    assert "\x1b" not in out
    assert "\r" not in out
    assert "(empty)" in out


def test_a_session_that_is_not_there_is_4(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /v1/sessions/billing/explain"] = (404, failure("session_not_found", "No."))
    ran = cli.quick("explain", "billing")
    assert (ran.code, ran.out) == (4, "")
    assert "sessiond list" in ran.err


def test_an_explanation_without_a_needed_field_is_an_error_not_a_crash(
    cli: Cli, daemon: Daemon
) -> None:
    broken = rewrite()
    del broken["first_diff"]["char"]
    give(daemon, broken)
    ran = cli.quick("explain", "billing")
    assert (ran.code, ran.out) == (1, "")
    assert "char" in ran.err


@pytest.mark.parametrize("arguments", [(), ("billing", "--last", "0")])
def test_wrong_usage_is_2(cli: Cli, daemon: Daemon, arguments: tuple[str, ...]) -> None:
    assert cli.quick("explain", *arguments).code == 2
    assert daemon.requests == []
