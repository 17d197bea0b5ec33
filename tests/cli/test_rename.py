"""`sessiond rename`, `pin` and `unpin`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, session

PATCH = "PATCH /v1/sessions/billing"
STAYS = "It and its saved state stay until it is unpinned or removed."


def test_rename_says_what_agents_do(cli: Cli, daemon: Daemon) -> None:
    daemon.answers[PATCH] = session("march")
    ran = cli.quick("rename", "billing", "march")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == ("billing is march now. Agents that still say billing start a new session.\n")
    assert daemon.asked(PATCH) == [{"name": "march"}]


@pytest.mark.parametrize(
    ("command", "pinned", "told"),
    [
        (
            "pin",
            True,
            "Pinned billing. It and its saved state stay until it is unpinned or removed.\n",
        ),
        ("unpin", False, "Unpinned billing.\n"),
    ],
)
def test_pin_and_unpin(cli: Cli, daemon: Daemon, command: str, pinned: bool, told: str) -> None:
    daemon.answers[PATCH] = session(pinned=pinned)
    ran = cli.quick(command, "billing")
    assert (ran.code, ran.out, ran.err) == (0, told, "")
    assert daemon.asked(PATCH) == [{"pinned": pinned}]


@pytest.mark.parametrize("command", [("rename", "billing", "x"), ("pin", "billing")], ids=" ".join)
def test_as_json(cli: Cli, daemon: Daemon, command: tuple[str, ...]) -> None:
    answer = session(pinned=True, owner="")
    daemon.answers[PATCH] = answer
    assert cli.quick(*command, "--json").json == answer


@pytest.mark.parametrize(
    ("status", "code", "exit_code"), [(404, "session_not_found", 4), (409, "conflict", 1)]
)
@pytest.mark.parametrize(
    "command", [("rename", "billing", "x"), ("unpin", "billing")], ids=" ".join
)
def test_a_refusal_is_one_line(
    cli: Cli, daemon: Daemon, command: tuple[str, ...], status: int, code: str, exit_code: int
) -> None:
    daemon.answers[PATCH] = (status, failure(code, "It is not to be."))
    ran = cli.quick(*command)
    assert (ran.code, ran.out, ran.err.count("\n")) == (exit_code, "", 1)


def test_a_list_shows_what_is_pinned(cli: Cli, daemon: Daemon) -> None:
    listed = [session("kept", pinned=True), session("other")]
    daemon.answers["GET /v1/sessions"] = {"sessions": listed}
    names = [line[:8] for line in cli.quick("list").out.splitlines()[1:]]
    assert sorted(names) == ["kept *  ", "other   "]


def test_wrong_usage_asks_nothing(cli: Cli, daemon: Daemon) -> None:
    for arguments in (("rename", "billing"), ("pin",), ("unpin", "a", "b")):
        assert cli.quick(*arguments).code == 2
    assert daemon.requests == []
