"""`sessiond export` and `import`, against a whole daemon but for its model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.living import living
from tests.cli.conftest import PROGRAM, ROOT, Cli

GOLDEN = ROOT / "tests" / "sessions" / "golden" / "session-v1.sessiond"


@pytest.fixture(scope="module")
def daemon_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with living(tmp_path_factory.mktemp("daemon")) as url:
        body = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 2}
        for name in ("work", "a b"):
            path = f"{url}/s/{name}/v1/chat/completions"
            assert httpx.post(path, json=body, trust_env=False).status_code == 200
        yield url


@pytest.fixture
def there(cli: Cli, daemon_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run."""
    cli.env["SESSIOND_URL"] = daemon_url
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_to_a_file_and_back(cli: Cli, there: Path) -> None:
    ran = cli.quick("export", "a b")
    assert (ran.code, ran.err) == (0, "")
    file = there / "a_b.sessiond"
    assert ran.out == f"Exported a b to a_b.sessiond ({_size(file)}).\n"
    assert file.stat().st_mode & 0o777 == 0o600
    back = cli.quick("import", str(file), "--name", "again")
    assert (back.code, back.err) == (0, "")
    assert back.out.startswith("Imported again (1 turn, ")
    assert back.out.endswith("s.\n")
    assert [path.name for path in there.iterdir()] == ["a_b.sessiond"]


def _size(file: Path) -> str:
    from sessiond.cli import words

    return words.size(file.stat().st_size)


def test_a_file_that_is_there_is_not_replaced_unasked(cli: Cli, there: Path) -> None:
    file = there / "x.sessiond"
    file.write_bytes(b"precious")
    ran = cli.quick("export", "work", str(file))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"sessiond: {file} is there already. Give --force to replace it.\n"
    assert file.read_bytes() == b"precious"
    assert cli.quick("export", "work", str(file), "--force").code == 0
    assert file.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("export", "nobody", "f"), 4, 'no session named "nobody"'),
        (("export", "work", "no/such/folder/f"), 1, "cannot be written"),
        (("import", "no-such-file"), 1, "cannot be read"),
        (("import", "."), 1, "cannot be read"),
        (("import",), 2, "FILE"),
        (("export", "work", "-", "--json"), 2, "stdout"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_one_line(
    cli: Cli, there: Path, arguments: tuple[str, ...], code: int, told: str
) -> None:
    ran = cli.quick(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert list(there.iterdir()) == []


def test_a_bad_file_and_a_taken_name(cli: Cli, there: Path) -> None:
    cut = there / "cut"
    cut.write_bytes(GOLDEN.read_bytes()[:-100])
    ran = cli.quick("import", str(cut))
    assert (ran.code, ran.out, ran.err) == (1, "", "sessiond: The file is cut off.\n")
    taken = cli.quick("import", str(GOLDEN), "--name", "work")
    assert (taken.code, taken.err) == (1, "sessiond: There is a session 'work' already.\n")


def test_a_large_file_for_a_taken_name_is_not_sent_for_nothing(cli: Cli, there: Path) -> None:
    """The daemon says so while it is being sent, and is heard."""
    large = there / "large"
    with large.open("wb") as file:
        file.truncate(1 << 28)
    ran = cli("import", str(large), "--name", "work")
    assert (ran.code, ran.err) == (1, "sessiond: There is a session 'work' already.\n")


def test_as_json(cli: Cli, there: Path) -> None:
    ran = cli.quick("export", "work", "w", "--json", "--no-state")
    size = (there / "w").stat().st_size
    assert ran.json == {"session": "work", "file": "w", "bytes": size, "state": False}
    back = cli.quick("import", "w", "--name", "json", "--json").json
    assert (back["session"]["name"], back["turns"], back["state_taken"]) == ("json", 1, 0)


def test_state_that_was_not_taken_is_a_remark(cli: Cli, there: Path) -> None:
    ran = cli.quick("import", str(GOLDEN), "--name", "remark", "--no-state")
    assert ran.code == 0
    assert ran.err.endswith(
        "state files were not taken (not asked for): their tokens are read again on use.\n"
    )
    assert cli.quick("import", str(GOLDEN), "--name", "other", "--no-state", "--json").err == ""


def test_through_a_pipe_from_one_to_the_other(cli: Cli, there: Path, tmp_path: Path) -> None:
    """As with ssh in between: nothing but the file goes over it."""
    (tmp_path / "other").mkdir()
    with living(tmp_path / "other") as other:
        env = {**cli.env, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [*PROGRAM, "export", "work", "-"], env=env, stdout=pipe, stderr=pipe
        ) as sender:
            taken = subprocess.run(
                [*PROGRAM, "import", "-", "--json"],
                env={**env, "SESSIOND_URL": other},
                stdin=sender.stdout,
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert sender.stderr is not None
            remark = sender.stderr.read().decode()
        assert (sender.returncode, taken.returncode, taken.stderr) == (0, 0, b"")
        assert remark.startswith("Exported work (")
        assert remark.count("\n") == 1
        assert json.loads(taken.stdout)["session"]["name"] == "work"
        turns = [
            httpx.get(f"{url}/v1/sessions/work/turns", trust_env=False).json()
            for url in (cli.env["SESSIOND_URL"], other)
        ]
        assert turns[0] == turns[1]


def test_with_nobody_there(cli: Cli, there: Path, free_port: int) -> None:
    cli.env["SESSIOND_URL"] = f"http://127.0.0.1:{free_port}"
    for arguments in (("export", "work", "f"), ("import", str(GOLDEN))):
        assert cli.quick(*arguments).code == 75
    assert list(there.iterdir()) == []


def test_on_a_terminal_it_says_how_far_it_is_and_takes_no_file(cli: Cli, there: Path) -> None:
    with cli.terminal("export", "work", "-") as screen:
        assert screen.finish() == 2
        assert "would go to the terminal" in screen.screen
    with cli.terminal("import", "-") as screen:
        assert screen.finish() == 2
    with cli.terminal("export", "work", str(there / "shown")) as screen:
        assert screen.finish() == 0
        size = _size(there / "shown")
        assert f"\r\x1b[KExported {size}\r\x1b[KExported work to " in screen.screen


def test_a_daemon_that_breaks_off_leaves_no_file(
    cli: Cli, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sessiond.client import Client, Unreachable

    def broken(self: Client, name: str, *, state: bool = True) -> Iterator[bytes]:
        yield b"x" * 1000
        raise Unreachable("It went silent.")

    monkeypatch.setattr(Client, "export", broken)
    ran = cli.quick("export", "work", "f")
    assert (ran.code, ran.out) == (75, "")
    assert list(there.iterdir()) == []
