"""Commands that only ask the daemon load none of the daemon."""

from __future__ import annotations

import subprocess
import sys

from sessiond import __version__
from tests.cli.conftest import ROOT, Cli

HEAVY = ("llama_cpp", "fastapi", "uvicorn", "sqlalchemy", "sqlmodel", "numpy", "jinja2")


def test_list_imports_nothing_of_the_daemon(cli: Cli) -> None:
    script = (
        "import sys; from sessiond.cli.main import app; code = app(['list', '--url', sys.argv[1]]);"
        "print(code, [m for m in sys.argv[2:] if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "http://127.0.0.1:1", *HEAVY],
        cwd=ROOT,
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "75 []\n"


def test_the_version_is_said_in_three_ways(cli: Cli) -> None:
    assert cli("version").out.startswith(f"sessiond {__version__},")
    assert cli.quick("--version").out == cli.quick("version").out
    assert cli.quick("version", "--json").json["sessiond"] == __version__


def test_without_a_command_there_is_help(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0
    shown = ("serve", "list", "show", "resume", "new", "set", "fork", "park", "rm", "explain")
    for command in (*shown, "env", "verify", "top", "version"):
        assert f"  {command} " in ran.out
    for alias in ("ls", "why"):
        assert f"  {alias} " not in ran.out
    assert ran.out == cli.quick("--help").out


def test_every_command_explains_itself(cli: Cli) -> None:
    for command in ("show", "resume", "set", "fork", "explain", "why", "env", "verify", "top"):
        ran = cli.quick(command, "--help")
        assert ran.code == 0
        assert "--json" in ran.out
