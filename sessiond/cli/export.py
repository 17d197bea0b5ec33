"""`sessiond export`: a session as one file, or on its way to another machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sessiond.cli import amount, words
from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import note, print_json
from sessiond.client import Client
from sessiond.errors import SessiondError
from sessiond.sessions.transfer.filename import file_name

File = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|-]", help="Where to; - is stdout. Without it: NAME.sessiond here."
    ),
]
NoState = Annotated[
    bool, typer.Option("--no-state", help="Only the conversation, not what the model has read.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")]


class FileTrouble(SessiondError):
    """A file on this side cannot be read or written."""

    code = "file_trouble"


@dataclass(frozen=True, slots=True)
class Written:
    session: str
    file: str
    bytes: int
    state: bool


def export(
    name: Name,
    file: File = None,
    no_state: NoState = False,
    force: Force = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Write a session to one file: every line of it, and the saved state of the model.

    sessiond export work - | ssh other sessiond import -
    """
    target = Path(file or file_name(name))
    if file == "-":
        _refuse_terminal(as_json)
    elif target.exists() and not force:
        raise FileTrouble(f"{target} is there already.", hint="Give --force to replace it.")
    with Client(url) as client, closing(client.export(name, state=not no_state)) as parts:
        shown = amount.told(parts, "Exported")
        size = _to_stdout(shown) if file == "-" else _to_file(shown, target)
    written = Written(name, "-" if file == "-" else str(target), size, not no_state)
    if as_json:
        print_json(written)
    elif file == "-":
        note(f"Exported {name} ({words.size(size)}).")
    else:
        print(f"Exported {name} to {target} ({words.size(size)}).")


def _refuse_terminal(as_json: bool) -> None:
    if as_json:
        raise typer.BadParameter("--json and - both want stdout")
    if sys.stdout.isatty():
        raise typer.BadParameter("the file would go to the terminal: give a FILE, or a pipe")


def _to_stdout(parts: Iterable[bytes]) -> int:
    size = 0
    for part in parts:
        size += sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    return size


def _to_file(parts: Iterable[bytes], target: Path) -> int:
    """Under another name until it is whole. Raises FileTrouble."""
    partial, size = target.with_name(f".{target.name}.{os.getpid()}.part"), 0
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                size += file.write(part)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        why = error.strerror or error
        raise FileTrouble(f"{target} cannot be written: {why}.") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return size
