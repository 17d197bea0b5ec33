from __future__ import annotations

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, verified


def test_a_sound_store_ends_with_0(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["POST /v1/verify"] = verified()
    ran = cli("verify")
    assert ran.out == "All sound: 120 blocks and 14 snapshots (1.5 GiB), 40 turns\n"
    assert ran.code == 0
    assert cli("verify", "--json").json == verified()


def test_damage_is_listed_and_ends_with_1(cli: Cli, daemon: Daemon) -> None:
    bad = verified(damaged=["b-77"], missing=["s-12"], clean=False)
    daemon.answers["POST /v1/verify"] = bad
    ran = cli("verify")
    assert ran.code == 1
    assert ran.out.splitlines()[:2] == ["damaged  b-77", "missing  s-12"]
    as_json = cli.quick("verify", "--json")
    assert (as_json.code, as_json.json) == (1, bad)


def test_turns_that_are_not_on_disk_are_said(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["POST /v1/verify"] = verified(unsaved_turns=3)
    assert "3 turns not on disk yet" in cli.quick("verify").out
