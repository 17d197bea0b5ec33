from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessiond.cli.listing import SHOWN
from tests.cli.conftest import ROOT, Cli
from tests.cli.fake_daemon import Daemon, health, serving, session

LONG = "home:8f3c9a4e-1111-2222-3333-123456789abc"
HOSTILE = "Fix the \x1b[31mred\n boiler"


def give(daemon: Daemon, *sessions: object) -> None:
    daemon.answers["GET /v1/sessions"] = {"sessions": list(sessions)}


@pytest.mark.parametrize("command", ["list", "ls"])
def test_a_pipe_gets_a_line_a_session_with_everything_whole(
    cli: Cli, daemon: Daemon, command: str
) -> None:
    title = "a title of many words " * 5
    give(
        daemon,
        session("billing", state="resident", back_in_ms=0, title=title),
        session(LONG, state="ledger", back_in_ms=41_000, reason="model changed", last_used=0),
    )
    ran = cli(command)
    header, first, second = ran.out.splitlines()
    assert header.split() == ["NAME", "AGENT", "TITLE", "LAST", "SIZE", "BACK", "IN"]
    assert first.startswith("billing ")
    assert title.strip() in first
    assert first.endswith("41,133  now")
    assert "3 min ago" in first
    assert " d ago" in second
    assert second.startswith(f"{LONG}  opencode")
    assert second.endswith("~41 s needs re-reading: model changed")
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out


def test_a_terminal_of_80_columns_is_never_overrun_and_keeps_names_whole(
    cli: Cli, daemon: Daemon
) -> None:
    give(
        daemon,
        session("billing", title="a title of many words " * 5),
        session(LONG, reason="model changed", back_in_ms=41_000, state="ledger"),
    )
    with cli.terminal("list", NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
        lines = terminal.lines()
    assert "\x1b" not in terminal.screen
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(LONG) for line in lines)
    assert "~41 s needs re-reading: model changed" in " ".join(" ".join(lines).split())


def test_a_terminal_shows_colours_unless_told_not_to(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session(state="resident"))
    with cli.terminal("list") as terminal:
        assert terminal.finish() == 0
    assert "\x1b[" in terminal.screen
    assert "now" in terminal.screen


def test_the_title_and_phrase_share_a_terminal(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session("billing", agent="pi", title="a title of many words " * 5))
    with cli.terminal("list", NO_COLOR="1") as terminal:
        terminal.finish()
    assert "a title of many words" in terminal.screen
    assert "…" in terminal.screen


def test_a_terminal_gets_those_used_last_and_a_pipe_gets_all(cli: Cli, daemon: Daemon) -> None:
    now = time.time()
    give(daemon, *(session(f"s{n}", last_used=now - n) for n in range(SHOWN + 1_000)))
    with cli.terminal("list", NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
    lines = terminal.lines()
    assert [line.split()[0] for line in lines[1 : SHOWN + 1]] == [f"s{n}" for n in range(SHOWN)]
    assert "… and 1,000 more: sessiond list --all" in lines[SHOWN + 1]
    with cli.terminal("list", "--all", NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
    assert len(terminal.lines()) == len(cli.quick("list").out.splitlines()) == 1 + SHOWN + 1_000
    assert len(cli.quick("list", "--json").json["sessions"]) == SHOWN + 1_000


def test_a_pipe_costs_no_import_of_what_a_terminal_needs(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session(state="resident"), session("other", reason="model changed"))
    script = (
        "import sys; from sessiond.cli.main import app; app(['list']);"
        "print([m for m in sys.argv[1:] if sys.modules.get(m)])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "rich", "pygments", "click", "httpx._main", "numpy"],
        cwd=ROOT,
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "other" in ran.stdout
    assert ran.stdout.endswith("\n[]\n")


def test_json_is_one_document_with_the_keys_of_the_contract(cli: Cli, daemon: Daemon) -> None:
    given = session(a_field_of_the_future=1)
    give(daemon, given)
    ran = cli("list", "--json")
    (entry,) = ran.json["sessions"]
    assert entry == {key: value for key, value in given.items() if key != "a_field_of_the_future"}
    assert (ran.code, ran.err) == (0, "")


def test_with_no_sessions_it_says_what_to_do_next(cli: Cli, daemon: Daemon) -> None:
    give(daemon)
    ran = cli.quick("list")
    assert f"{daemon.url}/s/NAME/v1" in ran.out
    assert "sessiond new NAME" in ran.out
    assert cli.quick("list", "--json").json == {"sessions": []}


def test_over_the_socket_it_names_no_address_that_agents_cannot_use(
    cli: Cli, tmp_path: Path
) -> None:
    with serving(tmp_path / "sessiond.sock") as daemon:
        give(daemon)
        cli.env["SESSIOND_URL"] = daemon.url
        out = cli.quick("list").out
    assert "the daemon's address, then /s/NAME/v1" in out
    assert "localhost" not in out


def test_sessions_of_a_group_stand_together_latest_first(cli: Cli, daemon: Daemon) -> None:
    now = time.time()
    give(
        daemon,
        session("g:old", group="g", last_used=now - 9000),
        session("alone", last_used=now - 500),
        session("g:new", group="g", last_used=now - 10),
        session("older", last_used=now - 10000),
    )
    names = [line.split()[0] for line in cli.quick("list").out.splitlines()[1:]]
    assert names == ["g:new", "g:old", "alone", "older"]


def test_a_title_cannot_steer_the_terminal(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session(title=HOSTILE))
    ran = cli.quick("list")
    assert len(ran.out.splitlines()) == 2
    assert "\x1b" not in ran.out
    assert "boiler" in ran.out


def test_unsaved_turns_are_said_on_stderr(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session("billing", saved=False), session("other"))
    ran = cli("list")
    assert "billing" in ran.err
    assert "other" not in ran.err
    assert cli.quick("list", "--json").err == ""


def test_why_something_cannot_be_saved_is_said_on_stderr(cli: Cli, daemon: Daemon) -> None:
    give(daemon, session("billing"))
    daemon.answers["GET /health"] = health(detail="Model state is not saved: 0 Bytes free in /x.")
    ran = cli("list")
    assert ran.code == 0
    assert "Model state is not saved: 0 Bytes free in /x." in ran.err
    assert "Model state" not in ran.out
    assert cli.quick("list", "--json").err == ""
