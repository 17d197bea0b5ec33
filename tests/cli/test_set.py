from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, session

PATCH = "PATCH /v1/sessions/billing"
NEW = "POST /v1/sessions"


def test_it_says_how_the_session_stands_now(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[PATCH] = session(policy="fork", pinned_front=["clock", r"^Door:.*"])
    ran = cli("set", "billing", "--policy", "fork")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Set billing: fork, pinned front: clock, ^Door:.*\n"
    told = cli.quick("set", "billing", "--policy", "fork", "--json").json
    assert (told["policy"], told["pinned_front"]) == ("fork", ["clock", r"^Door:.*"])


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (("--policy", "append-only"), {"policy": "append-only"}),
        (("--policy", "default"), {"policy": "default"}),
        (("--pinned-front", "clock"), {"pinned_front": ["clock"]}),
        (
            ("--pinned-front", "id", "--pinned-front", "^a.*,b$", "--pinned-front", "id"),
            {"pinned_front": ["id", "^a.*,b$"]},
        ),
        (("--pinned-front", "default"), {"pinned_front": ["default"]}),
        (("--no-pinned-front",), {"pinned_front": []}),
        (
            ("--no-pinned-front", "--policy", "fork"),
            {"policy": "fork", "pinned_front": []},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_only_what_was_given_is_sent(
    cli: Cli, daemon: Daemon, options: tuple[str, ...], sent: dict[str, Any]
) -> None:
    daemon.answers[PATCH] = session()
    assert cli.quick("set", "billing", *options).code == 0
    assert daemon.asked(PATCH) == [sent]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--policy", "strict"),
        ("--pinned-front",),
        ("--pinned-front", "clock", "--no-pinned-front"),
        ("--pinned-front", "default", "--pinned-front", "clock"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_asks_the_daemon_nothing(
    cli: Cli, daemon: Daemon, options: tuple[str, ...]
) -> None:
    ran = cli.quick("set", "billing", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "--p" in ran.err
    assert daemon.requests == []


def test_a_session_that_is_not_there_is_4(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[PATCH] = (404, failure("session_not_found", "No such session."))
    ran = cli.quick("set", "billing", "--policy", "fork")
    assert (ran.code, ran.out) == (4, "")
    assert '"billing"' in ran.err


def test_a_pattern_the_daemon_refuses_is_said_in_its_words(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[PATCH] = (400, failure("invalid_request", "'(' is no regular expression."))
    ran = cli.quick("set", "billing", "--pinned-front", "(")
    assert (ran.code, ran.err) == (1, "sessiond: '(' is no regular expression.\n")


def test_new_takes_the_same_options(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[NEW] = session(pinned_front=["clock", "date"])
    ran = cli.quick("new", "billing", "--pinned-front", "clock", "--pinned-front", "date")
    assert ran.out == (
        "Made billing (append-only, pinned front: clock, date). "
        "Talk to it: sessiond resume billing --chat\n"
    )
    assert cli.quick("new", "billing", "--no-pinned-front", "--json").code == 0
    assert daemon.asked(NEW) == [
        {"name": "billing", "pinned_front": ["clock", "date"]},
        {"name": "billing", "pinned_front": []},
    ]


def test_show_tells_what_was_set(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /v1/sessions/billing/turns"] = {"turns": []}
    daemon.answers["GET /v1/sessions/billing"] = session()
    plain = cli.quick("show", "billing").out
    assert "Pinned front" not in plain
    assert "let through" not in plain
    daemon.answers["GET /v1/sessions/billing"] = session(
        pinned_front=["clock", "date"], may_compact=True
    )
    told = cli.quick("show", "billing").out
    assert "clock, date" in told
    assert "append-only, the next rewrite is let through" in told
