"""`sessiond key`: makes keys, shows whose there are, takes them away. The rest stays."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from sessiond.api.keys import Keys
from sessiond.cli import key as command
from sessiond.cli import key_file
from sessiond.cli.key_file import KeyFile
from sessiond.errors import ConfigError
from tests.cli.conftest import Cli


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "api-keys"


@pytest.fixture(autouse=True)
def no_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "UNIT_FILE", tmp_path / "unit" / "api-keys")


def owner_of(file: Path, key: str) -> str | None:
    return Keys.read(file).owner_of(Headers({"authorization": f"Bearer {key}"}))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_key_is_printed_once_and_works(cli: Cli, file: Path) -> None:
    before = os.umask(0)
    try:
        made = cli.quick("key", "new", "alice", "--file", str(file))
    finally:
        os.umask(before)
    key = made.out.strip()
    assert (made.code, made.out) == (0, f"{key}\n")
    assert key.startswith("sk-sessiond-")
    assert owner_of(file, key) == "alice"
    assert key not in file.read_text()
    assert str(file) in made.err
    assert "systemctl reload sessiond" in made.err
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    again = cli.quick("key", "new", "alice", "--file", str(file)).out.strip()
    assert again != key
    assert owner_of(file, key) == owner_of(file, again) == "alice"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_json_has_the_key_and_where_it_is_known(cli: Cli, file: Path) -> None:
    made = cli.quick("key", "new", "al.ice-2_", "--json", "--file", str(file))
    key = made.json["key"]
    assert made.json == {"owner": "al.ice-2_", "digest": made.json["digest"], "key": key} | {
        "file": str(file)
    }
    assert owner_of(file, key) == "al.ice-2_"
    listed = cli.quick("key", "list", "--json", "--file", str(file)).json
    assert listed == {"keys": [{"owner": "al.ice-2_", "digest": made.json["digest"]}]}


def test_comments_and_other_lines_stay(cli: Cli, file: Path) -> None:
    file.parent.mkdir()
    file.write_text("# mine\nsk-house   # the tv\nbob sk-bob")
    file.chmod(0o644)
    cli.quick("key", "new", "alice", "--file", str(file))
    first = file.read_text().splitlines()
    assert first[:3] == ["# mine", "sk-house   # the tv", "bob sk-bob"]
    assert mode(file) == 0o640
    removed = cli.quick("key", "rm", "bob", "--file", str(file))
    assert (removed.code, removed.out) == (0, f"Removed 1 key from {file}\n")
    assert file.read_text().splitlines() == [first[0], first[1], first[3]]


def test_a_key_is_removed_by_its_digest_or_with_all_of_its_owner(cli: Cli, file: Path) -> None:
    keys = [cli.quick("key", "new", "alice", "--json", "--file", str(file)).json for _ in range(3)]
    gone = cli.quick("key", "rm", keys[1]["digest"], "--json", "--file", str(file))
    assert gone.json == {
        "removed": [{"owner": "alice", "digest": keys[1]["digest"]}],
        "file": str(file),
    }
    assert [owner_of(file, key["key"]) for key in keys] == ["alice", None, "alice"]
    assert cli.quick("key", "rm", "alice", "--file", str(file)).out.startswith("Removed 2 keys")
    assert not Keys.read(file)


@pytest.mark.parametrize("which", ["nobody", "", "a", "0"])
def test_what_is_not_there_is_not_removed(cli: Cli, file: Path, which: str) -> None:
    file.parent.mkdir()
    file.write_text("sk-house\nalice sk-1\n")
    ran = cli.quick("key", "rm", which, "--file", str(file))
    assert ran.code == 1
    assert "sessiond key list" in ran.err
    assert file.read_text() == "sk-house\nalice sk-1\n"


def test_the_list_shows_owners_and_no_keys(cli: Cli, file: Path) -> None:
    assert cli.quick("key", "list", "--file", str(file)).out == ""
    file.parent.mkdir()
    file.write_text("alice sk-1\nsk-2\n")
    shown = cli.quick("key", "list", "--file", str(file)).out.splitlines()
    assert [line.split()[0] for line in shown] == ["OWNER", "alice", "(house)"]
    assert "sk-" not in "".join(shown)


@pytest.mark.parametrize("owner", ["a b", "a/b", "", "ä", "a" * 65, "a\n"])
def test_an_owner_that_none_can_be_is_a_usage_error(cli: Cli, file: Path, owner: str) -> None:
    ran = cli.quick("key", "new", owner, "--file", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert not file.exists()


def test_without_a_place_for_keys_the_setting_to_make_is_said(cli: Cli) -> None:
    for arguments in (("new", "alice"), ("list",), ("rm", "alice")):
        ran = cli.quick("key", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert "keys_file" in ran.err
        assert "[auth]" in ran.err


def test_the_configured_file_is_the_one_also_before_it_is_there(
    cli: Cli, file: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text(f'[server]\nhost = "0.0.0.0"\n[auth]\nkeys_file = "{file}"\n')
    cli.env["SESSIOND_CONFIG"] = str(settings)
    key = cli.quick("key", "new", "alice").out.strip()
    assert owner_of(file, key) == "alice"


def test_the_file_of_the_systemd_unit_is_taken_where_there_is_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr(command, "UNIT_FILE", file)
    key = cli.quick("key", "new", "alice").out.strip()
    assert owner_of(file, key) == "alice"


def test_a_file_with_a_bad_line_is_not_changed(cli: Cli, file: Path) -> None:
    file.parent.mkdir()
    file.write_text("one two SECRET\n")
    ran = cli.quick("key", "new", "alice", "--file", str(file))
    assert (ran.code, ran.out) == (1, "")
    assert "line 1" in ran.err
    assert "SECRET" not in ran.err
    assert file.read_text() == "one two SECRET\n"


def test_a_link_stays_and_what_it_leads_to_is_changed(cli: Cli, file: Path) -> None:
    file.parent.mkdir()
    real = file.with_name("real")
    real.write_text("bob sk-1\n")
    file.symlink_to(real)
    cli.quick("key", "new", "alice", "--file", str(file))
    assert file.is_symlink()
    assert len(real.read_text().splitlines()) == 2


def test_a_write_that_fails_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir()
    file.write_text("bob sk-1\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_file.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        KeyFile(file).add("alice")
    assert file.read_text() == "bob sk-1\n"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_keys_that_are_made_at_once_are_all_there(file: Path) -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(KeyFile(file).add(f"o{n}")[0]))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(filter(None, (owner_of(file, key) for key in made))) == [
        f"o{n}" for n in range(8)
    ]
