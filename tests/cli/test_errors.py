"""Exit codes, and one line on stderr that says what, why and what to do."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Ran
from tests.cli.fake_daemon import Daemon, failure, free_url, serving, session

UNKNOWN = (404, failure("session_not_found", "No such session."))
COMMANDS = (
    ("list",),
    ("show", "billing"),
    ("resume", "billing"),
    ("new", "billing"),
    ("set", "billing", "--policy", "fork"),
    ("fork", "billing", "new"),
    ("explain", "billing"),
    ("park", "billing"),
    ("rm", "billing", "--yes"),
    ("verify",),
)


def assert_one_line(ran: Ran) -> None:
    assert ran.out == ""
    assert ran.err.startswith("sessiond: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_an_unreachable_daemon_is_75_and_says_how_to_start_it(
    cli: Cli, command: tuple[str, ...]
) -> None:
    url = free_url()
    ran = cli(*command, "--url", url)
    assert ran.code == 75
    assert_one_line(ran)
    assert url in ran.err
    assert "sessiond serve" in ran.err


@pytest.mark.parametrize(
    ("command", "request_line"),
    [
        (("show", "x"), "GET /v1/sessions/x"),
        (("park", "x"), "POST /v1/sessions/x/park"),
        (("rm", "x", "--yes"), "DELETE /v1/sessions/x"),
    ],
    ids=["show", "park", "rm"],
)
def test_no_such_session_is_4(
    cli: Cli, daemon: Daemon, command: tuple[str, ...], request_line: str
) -> None:
    daemon.answers[request_line] = UNKNOWN
    ran = cli.quick(*command)
    assert ran.code == 4
    assert_one_line(ran)
    assert '"x"' in ran.err
    assert "sessiond list" in ran.err


def test_a_failure_of_the_daemon_is_1(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /v1/sessions"] = (500, failure("ledger_failed", "The\nledger is broken."))
    ran = cli.quick("list")
    assert (ran.code, ran.err) == (1, "sessiond: The ledger is broken.\n")


def test_a_missing_key_is_said_with_the_variable_that_holds_it(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /v1/sessions"] = (401, failure("unauthorized", "No valid key."))
    ran = cli.quick("list")
    assert ran.code == 1
    assert "SESSIOND_API_KEY" in ran.err


def test_the_key_is_sent(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /v1/sessions"] = {"sessions": []}
    cli.quick("list")
    assert "Authorization" not in daemon.headers[0]
    cli.env["SESSIOND_API_KEY"] = "secret"
    cli.quick("list")
    assert daemon.headers[1]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("answer", [(200, ["not", "sessiond"]), (404, {"detail": "Not Found"})])
def test_another_server_at_the_address_is_recognised(
    cli: Cli, daemon: Daemon, answer: object
) -> None:
    daemon.answers["GET /v1/sessions"] = answer
    ran = cli.quick("list")
    assert ran.code == 1
    assert_one_line(ran)
    assert "--url" in ran.err


def test_an_answer_without_a_needed_field_is_an_error_not_a_crash(cli: Cli, daemon: Daemon) -> None:
    entry = session()
    del entry["tokens"]
    daemon.answers["GET /v1/sessions"] = {"sessions": [entry]}
    ran = cli.quick("list")
    assert ran.code == 1
    assert_one_line(ran)
    assert "tokens" in ran.err


@pytest.mark.parametrize(
    "command",
    [("lst",), ("list", "--jsn"), ("show",), ("show", "a", "b"), ("list", "--url", "ftp://x")],
    ids=" ".join,
)
def test_wrong_usage_is_2(cli: Cli, command: tuple[str, ...]) -> None:
    ran = cli.quick(*command)
    assert ran.code == 2
    assert_one_line(ran)


def test_a_wrong_word_is_answered_with_the_right_one(cli: Cli) -> None:
    assert "'list'" in cli.quick("lst").err


def test_an_interruption_is_130(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        process = cli.start("list", "--url", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        connection, _ = deaf.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_a_daemon_that_breaks_off_is_75(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = cli.start("list", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        connection.recv(10_000)
        connection.close()
        _, err = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "broke off" in err


@pytest.mark.parametrize("variable", ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"])
def test_the_runtime_socket_is_found(cli: Cli, tmp_path: Path, variable: str) -> None:
    with serving(tmp_path / "sessiond.sock") as daemon:
        daemon.answers["GET /v1/sessions"] = {"sessions": [session("over-the-socket")]}
        cli.env[variable] = str(tmp_path)
        assert "over-the-socket" in cli("list").out


def test_the_url_wins_over_the_variable_and_both_over_the_socket(cli: Cli, tmp_path: Path) -> None:
    cli.env["XDG_RUNTIME_DIR"] = str(tmp_path)
    with serving(tmp_path / "sessiond.sock") as by_socket, serving() as first, serving() as second:
        for name, daemon in (("socket", by_socket), ("first", first), ("second", second)):
            daemon.answers["GET /v1/sessions"] = {"sessions": [session(name)]}
        cli.env["SESSIOND_URL"] = first.url
        assert "first" in cli.quick("list").out
        assert "second" in cli.quick("list", "--url", f"{second.url}/v1").out
        assert "socket" in cli.quick("list", "--url", by_socket.url).out


def test_proxies_are_for_the_outside(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /v1/sessions"] = {"sessions": []}
    cli.env |= {"HTTP_PROXY": free_url(), "http_proxy": free_url()}
    assert cli.quick("list").code == 0


def test_a_reader_that_leaves_is_no_crash(cli: Cli, daemon: Daemon) -> None:
    many = [session(f"s{number}", title="t" * 500) for number in range(500)]
    daemon.answers["GET /v1/sessions"] = {"sessions": many}
    process = cli.start("list")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("NAME")
    process.stdout.close()
    process.wait(20)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()
