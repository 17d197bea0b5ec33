from __future__ import annotations

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, health, resumed, session

RESUME = "POST /v1/sessions/billing/resume"


def test_it_says_from_where_how_much_and_predicted_against_actual(cli: Cli, daemon: Daemon) -> None:
    daemon.answers |= {"GET /health": health(), RESUME: resumed()}
    ran = cli("resume", "billing")
    facts = dict(
        line.split(maxsplit=1) for line in ran.out.splitlines() if "Read again" not in line
    )
    assert facts["From"] == "disk"
    assert facts["Ready"] == "41,133 tokens"
    assert facts["Took"] == "412 ms, 390 ms predicted"
    assert "Read again  1 token\n" in ran.out
    assert (ran.code, ran.err) == (0, "")


def test_it_says_why_old_tokens_were_read_again(cli: Cli, daemon: Daemon) -> None:
    miss = {"cause": "damaged", "message": "a block on disk is damaged", "tokens": 256}
    daemon.answers |= {"GET /health": health(), RESUME: resumed(source="ledger", miss=miss)}
    assert "a block on disk is damaged (256 tokens)" in cli.quick("resume", "billing").out


def test_json_is_the_report(cli: Cli, daemon: Daemon) -> None:
    daemon.answers |= {"GET /health": health(), RESUME: resumed()}
    ran = cli("resume", "billing", "--json")
    assert ran.json == resumed()
    assert ran.err == ""


def loading(daemon: Daemon, *then: object) -> None:
    waiting = [(503, health("loading", loading_progress=share)) for share in (0.1, 0.6)]
    daemon.answers |= {"GET /health": [*waiting, *then], RESUME: resumed()}
    daemon.answers["GET /v1/sessions/billing"] = session()


def test_it_waits_while_the_model_loads_silently_in_a_pipe(cli: Cli, daemon: Daemon) -> None:
    loading(daemon, health())
    ran = cli("resume", "billing", "--json")
    assert ran.json["source"] == "disk"
    assert ran.err == ""
    assert len(daemon.asked("GET /health")) == 3
    assert len(daemon.asked(RESUME)) == 1


def test_a_model_that_was_unloaded_is_said_to_be_loaded_again(cli: Cli, daemon: Daemon) -> None:
    daemon.answers |= {"GET /health": health("unloaded"), RESUME: resumed()}
    ran = cli("resume", "billing", "--json")
    assert (ran.json["source"], len(daemon.asked(RESUME))) == ("disk", 1)
    assert "loaded again" in ran.err


def test_it_shows_progress_on_a_terminal(cli: Cli, daemon: Daemon) -> None:
    loading(daemon, health())
    with cli.terminal("resume", "billing") as terminal:
        terminal.expect("The model is loading")
        assert terminal.finish() == 0
    assert "41,133 tokens" in terminal.screen


def test_an_unknown_session_is_said_before_the_model_is_there(cli: Cli, daemon: Daemon) -> None:
    loading(daemon, health())
    daemon.answers["GET /v1/sessions/billing"] = (404, failure("session_not_found", "no"))
    assert cli.quick("resume", "billing").code == 4
    assert daemon.asked(RESUME) == []


def test_a_model_that_cannot_be_loaded_is_not_waited_for(cli: Cli, daemon: Daemon) -> None:
    loading(daemon, (503, health("failed", detail="not a GGUF file")))
    ran = cli.quick("resume", "billing")
    assert ran.code == 1
    assert "not a GGUF file" in ran.err
    assert daemon.asked(RESUME) == []


def test_a_stopping_daemon_is_not_waited_for(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /health"] = (503, health("draining"))
    ran = cli.quick("resume", "billing")
    assert (ran.code, ran.out) == (1, "")
    assert "stopping" in ran.err


def test_chat_and_json_exclude_each_other(cli: Cli, daemon: Daemon) -> None:
    ran = cli.quick("resume", "billing", "--chat", "--json")
    assert ran.code == 2
    assert daemon.requests == []
