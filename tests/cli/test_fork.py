from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, session

FORK = "POST /v1/sessions/billing/fork"


def test_it_says_what_was_made_and_how_to_go_on(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[FORK] = (201, session("try", turns=12, tokens=3123))
    ran = cli("fork", "billing", "try", "--at", "12")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "Made try from billing (12 turns, 3,123 tokens), back in 0.4 s.\n"
        "Talk to it: sessiond resume try --chat\n"
    )
    assert daemon.asked(FORK) == [{"name": "try", "at": 12}]


def test_without_a_turn_the_daemon_takes_the_end_of_the_main_line(cli: Cli, daemon: Daemon) -> None:
    made = session("try")
    daemon.answers[FORK] = (201, made)
    ran = cli.quick("fork", "billing", "try", "--json")
    assert ran.code == 0
    assert ran.json == made
    assert daemon.asked(FORK) == [{"name": "try"}]


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [(404, "session_not_found", 4), (404, "not_found", 1), (409, "conflict", 1)],
    ids=["no session", "no turn", "name taken"],
)
def test_what_cannot_be_forked_is_said_in_one_line(
    cli: Cli, daemon: Daemon, status: int, code: str, exit_code: int
) -> None:
    daemon.answers[FORK] = (status, failure(code, "It is not to be."))
    ran = cli.quick("fork", "billing", "try", "--at", "99")
    assert (ran.code, ran.out) == (exit_code, "")
    assert ran.err.startswith("sessiond: ")
    assert ran.err.count("\n") == 1
    assert ('"billing"' in ran.err) == (exit_code == 4)


@pytest.mark.parametrize(
    "arguments",
    [("billing",), ("billing", "try", "--at", "0"), ("billing", "try", "--at", "last")],
    ids=" ".join,
)
def test_wrong_usage_asks_the_daemon_nothing(
    cli: Cli, daemon: Daemon, arguments: tuple[str, ...]
) -> None:
    assert cli.quick("fork", *arguments).code == 2
    assert daemon.requests == []
