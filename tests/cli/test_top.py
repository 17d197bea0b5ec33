"""`sessiond top`: one picture in a pipe, a live one on a terminal."""

from __future__ import annotations

import re
import signal
import time

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, health, session

METRICS = """\
# HELP sessiond_evaluated_tokens_total Tokens
# TYPE sessiond_evaluated_tokens_total counter
sessiond_evaluated_tokens_total{{phase="prefill"}} {prefill}
sessiond_evaluated_tokens_total{{phase="decode"}} {decode}
sessiond_prompt_tokens_total{{source="prefill"}} 25.0
sessiond_prompt_tokens_total{{source="disk"}} 50.0
sessiond_prompt_tokens_total{{source="memory"}} 25.0
"""
EVERY = ("--every", "0.05")


def give(daemon: Daemon, *sessions: object, **changes: object) -> None:
    counted = [(0, 0), (1e6, 2e6)]
    daemon.answers |= {
        "GET /health": health(
            running=2,
            queued=1,
            resident_lines=3,
            max_lines=8,
            ring_bytes=16 << 20,
            ring_budget=64 << 20,
            disk_bytes=1 << 30,
            disk_quota=4 << 30,
            **changes,
        ),
        "GET /metrics": [METRICS.format(prefill=p, decode=d) for p, d in counted],
        "GET /v1/sessions": {"sessions": list(sessions)},
    }


def test_a_pipe_gets_one_picture(cli: Cli, daemon: Daemon) -> None:
    now = time.time()
    give(
        daemon,
        session("old", last_used=now - 9000, state="ledger"),
        session("new", last_used=now - 200, state="resident"),
    )
    ran = cli("top", *EVERY)
    lines = ran.out.splitlines()
    assert lines[0] == "sessiond  smol  ok"
    assert lines[1] == "Turns   2 running, 1 waiting"
    assert lines[2] == "Lines   [########............]  3 of 8 in memory"
    assert lines[3] == "Ring    [#####...............]  16.0 MiB of 64.0 MiB"
    assert lines[4] == "Disk    [#####...............]  1.0 GiB of 4.0 GiB"
    assert lines[5].endswith("75% hit rate")
    assert lines[7].split() == ["NAME", "TITLE", "STATE", "LAST", "SIZE", "HIT"]
    assert [line.split()[0] for line in lines[8:]] == ["new", "old"]
    assert "in memory" in lines[8]
    assert "3 min ago" in lines[8]
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out


def test_speed_is_what_was_evaluated_since_the_picture_before(cli: Cli, daemon: Daemon) -> None:
    """Result: a million tokens were read and two million written in the same time."""
    give(daemon, session())
    shown = cli.quick("top", "--json", *EVERY).json
    assert shown["decode_per_s"] == 2 * shown["prefill_per_s"] > 0
    assert shown["hit_rate"] == 0.75
    assert shown["health"]["resident_lines"] == 3
    assert [each["name"] for each in shown["sessions"]] == ["billing"]


def test_a_daemon_that_counts_from_0_again_has_no_negative_speed(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session())
    daemon.answers["GET /metrics"] = [METRICS.format(prefill=9, decode=9), "nothing 1.0\n"]
    shown = cli.quick("top", "--json", *EVERY).json
    assert (shown["prefill_per_s"], shown["decode_per_s"], shown["hit_rate"]) == (0, 0, 0)


def test_it_is_there_while_the_model_loads_and_without_sessions(cli: Cli, daemon: Daemon) -> None:
    loading = health("loading", model=None, loading_progress=0.5)
    give(daemon)
    daemon.answers["GET /health"] = (503, loading)
    ran = cli.quick("top", *EVERY)
    assert ran.out.splitlines()[0] == "sessiond  no model  loading 50%"
    assert "Ring    none" in ran.out
    assert "NAME" not in ran.out
    assert ran.code == 0


def test_it_says_that_the_model_is_unloaded_and_what_is_read_again(
    cli: Cli, daemon: Daemon
) -> None:
    give(daemon)
    daemon.answers["GET /health"] = health("unloaded", warming=2)
    shown = cli.quick("top", *EVERY).out.splitlines()
    assert shown[0].endswith("  unloaded")
    assert "Warming 2 sessions to be read again while nobody waits" in shown


def test_a_terminal_is_drawn_anew_until_q_and_then_as_it_was(cli: Cli, daemon: Daemon) -> None:
    """40 sessions with long names on 24 lines of 80. Result: no line too many or too long."""
    titles = [session(f"home:{n:040d}", title="words " * 20, tokens=n) for n in range(40)]
    give(daemon, *titles)
    with cli.terminal("top", *EVERY, NO_COLOR="1") as terminal:
        terminal.expect("hit rate")
        terminal.expect("hit rate")
        terminal.type("x")
        terminal.expect("hit rate")
        terminal.type("q")
        assert terminal.finish() == 0
    before, *pictures = terminal.screen.split("\x1b[H")
    assert before.endswith("\x1b[?1049h\x1b[?25l")
    assert terminal.screen.endswith("\x1b[?25h\x1b[?1049l")
    for picture in pictures:
        lines = re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", picture).replace("\r", "").split("\n")
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80


def test_ctrl_c_ends_it_with_130_and_leaves_the_terminal_as_it_was(
    cli: Cli, daemon: Daemon
) -> None:
    give(daemon, session())
    with cli.terminal("top", *EVERY) as terminal:
        terminal.expect("hit rate")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130
    assert "\x1b[?25h\x1b[?1049l" in terminal.screen
    assert "Traceback" not in terminal.screen


def test_once_on_a_terminal_leaves_the_picture_there(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session())
    with cli.terminal("top", "--once", *EVERY) as terminal:
        assert terminal.finish() == 0
    assert "\x1b[?1049h" not in terminal.screen
    assert "billing" in terminal.screen


def test_a_daemon_that_goes_away_ends_it_with_75(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session())
    cli.env["SESSIOND_URL"] = "http://127.0.0.1:1"
    assert cli.quick("top", "--once").code == 75


def test_unsaved_turns_are_said(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session(), unsaved_turns=3)
    assert "Unsaved 3 turns not on disk yet" in cli.quick("top", *EVERY).out


def test_a_name_cannot_steer_the_terminal(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session("a\x1b[2Jb"), detail="\x1b[31m\nred", status="failed")
    ran = cli.quick("top", *EVERY)
    assert "\x1b" not in ran.out
    assert "red" in ran.out.splitlines()[0]
