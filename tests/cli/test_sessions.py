from __future__ import annotations

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, session

BILLING = "/v1/sessions/billing"


def test_new_makes_a_session_under_a_policy(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["POST /v1/sessions"] = session(policy="fork")
    ran = cli("new", "billing", "--policy", "fork")
    assert (ran.code, ran.err) == (0, "")
    assert "sessiond resume billing --chat" in ran.out
    assert cli.quick("new", "billing", "--json").json["policy"] == "fork"
    assert daemon.asked("POST /v1/sessions") == [
        {"name": "billing", "policy": "fork"},
        {"name": "billing"},
    ]


def test_new_refuses_a_policy_there_is_not(cli: Cli, daemon: Daemon) -> None:
    ran = cli.quick("new", "billing", "--policy", "strict")
    assert ran.code == 2
    assert "append-only" in ran.err
    assert daemon.requests == []


def test_new_says_that_a_name_is_taken(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["POST /v1/sessions"] = (409, failure("conflict", "The name is taken."))
    ran = cli.quick("new", "billing")
    assert (ran.code, ran.err) == (1, "sessiond: The name is taken.\n")


def test_park_says_what_it_saved(cli: Cli, daemon: Daemon) -> None:
    parked = session(state="disk", back_in_ms=400)
    daemon.answers[f"POST {BILLING}/park"] = parked
    assert cli("park", "billing").out == (
        "Parked billing: 41,133 tokens, 1.5 GiB on disk, back in 0.4 s\n"
    )
    assert cli("park", "billing", "--json").json == parked


def test_rm_in_a_pipe_needs_yes(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[f"DELETE {BILLING}"] = (204, None)
    ran = cli("rm", "billing", stdin="y\n")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert daemon.requests == []
    assert cli("rm", "billing", "--yes").out == "Removed billing\n"
    assert cli.quick("rm", "billing", "--yes", "--json").json == {
        "name": "billing",
        "removed": True,
    }
    assert len(daemon.asked(f"DELETE {BILLING}")) == 2


def test_rm_on_a_terminal_asks(cli: Cli, daemon: Daemon) -> None:
    daemon.answers |= {f"DELETE {BILLING}": (204, None), f"GET {BILLING}": session()}
    with cli.terminal("rm", "billing") as terminal:
        terminal.expect("Delete billing (40 turns, 41,133 tokens) for good?")
        terminal.type("n\n")
        assert terminal.finish() == 1
    assert daemon.asked(f"DELETE {BILLING}") == []
    with cli.terminal("rm", "billing") as terminal:
        terminal.expect("for good?")
        terminal.type("y\n")
        assert terminal.finish() == 0
    assert len(daemon.asked(f"DELETE {BILLING}")) == 1
