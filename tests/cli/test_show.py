from __future__ import annotations

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, session, turn

MISS = {"cause": "model_changed", "message": "the model file is another one", "tokens": 40980}


def give(daemon: Daemon, *turns: object) -> None:
    daemon.answers["GET /v1/sessions/billing"] = session(title="Invoices")
    daemon.answers["GET /v1/sessions/billing/turns"] = {"turns": list(turns)}


def test_it_shows_the_session_and_why_a_turn_was_slow(cli: Cli, daemon: Daemon) -> None:
    slow = {"cached_tokens": 7, "prefilled_tokens": 40973, "ttft_ms": 88_123.0, "source": "ledger"}
    give(daemon, turn(38), turn(39, miss=MISS, **slow), turn(40, finish_reason="cancelled"))
    ran = cli("show", "billing")
    assert (ran.code, ran.err) == (0, "")
    assert "Invoices" in ran.out
    assert "1.5 GiB" in ran.out
    fast, missed, cancelled = ran.out.splitlines()[-3:]
    assert fast.split()[-3:] == ["85", "ms", "133"]
    for figure in ("ledger", "7", "40,973", "88 s", "the model file is another one"):
        assert figure in missed
    assert cancelled.split()[-2:] == ["133", "cancelled"]


def test_it_shows_the_last_turns_only(cli: Cli, daemon: Daemon) -> None:
    give(daemon, *(turn(number) for number in range(1, 31)))
    table = cli.quick("show", "billing").out.split("\n\n")[1].splitlines()[1:]
    assert [line.split()[0] for line in table] == [str(number) for number in range(21, 31)]
    ran = cli.quick("show", "billing", "--turns", "1", "--json")
    assert [entry["turn"] for entry in ran.json["turns"]] == [30]
    assert "TTFT" not in cli.quick("show", "billing", "--turns", "0").out


def test_json_holds_both_the_session_and_its_turns(cli: Cli, daemon: Daemon) -> None:
    given = turn(40, miss=MISS)
    give(daemon, given)
    ran = cli("show", "billing", "--json")
    assert ran.json["session"]["tokens"] == 41133
    assert ran.json["turns"] == [given]


def test_it_fits_a_terminal_of_80_columns(cli: Cli, daemon: Daemon) -> None:
    give(daemon, turn(39, miss=MISS), turn(40, finish_reason="cancelled"))
    with cli.terminal("show", "billing", NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
    assert max(map(len, terminal.lines())) <= 80
    assert "another one" in terminal.screen


def test_any_name_reaches_the_daemon_as_one_path_segment(cli: Cli, daemon: Daemon) -> None:
    encoded = {
        "a b:ü?#%": "/v1/sessions/a%20b%3A%C3%BC%3F%23%25",
        "..": "/v1/sessions/%2E%2E",
        ".hidden": "/v1/sessions/.hidden",
    }
    for name, path in encoded.items():
        daemon.answers[f"GET {path}"] = session(name)
        daemon.answers[f"GET {path}/turns"] = {"turns": []}
        assert cli.quick("show", name, "--json").json["session"]["name"] == name
