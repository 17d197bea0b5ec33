"""The program: runs a command and turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sessiond.cli import exits
from sessiond.cli.commands import Commands
from sessiond.errors import SessiondError

HELP = """\
Keeps long conversations with a local language model ready to go on, also after a restart.

Start the daemon with `sessiond serve --model FILE`, point any OpenAI client at it, and give each
conversation (a session) a name. `sessiond list` shows the sessions, `sessiond resume` goes on with
one.
"""


def app(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, sys.argv by default. Returns the exit code; see `exits`."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = program().main(arguments, prog_name="sessiond", standalone_mode=False)
    except (typer.TyperException, SessiondError) as error:
        return exits.report(error)
    except typer.Abort:
        return exits.INTERRUPTED
    return code if isinstance(code, int) else exits.DONE


def program() -> TyperGroup:
    # Rich's panels crop long option names at 80 columns.
    root = typer.Typer(help=HELP, rich_markup_mode=None)
    root.callback(invoke_without_command=True)(_no_command)
    group = get_command(root)
    if not isinstance(group, TyperGroup):
        raise TypeError("typer did not make a group of the commands")
    group.commands = Commands()
    return group


def _no_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from sessiond.cli.version import version as show_version

        show_version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
