"""`sessiond key new`, `list` and `rm`: who may call the daemon over the network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sessiond.api.keys import SHORT_DIGEST, Key, is_owner
from sessiond.cli import words
from sessiond.cli.exits import FAILED
from sessiond.cli.key_file import KeyFile
from sessiond.cli.options import AsJson
from sessiond.cli.output import Cell, Column, note, print_json, print_table
from sessiond.config.sources import load_config

UNIT_FILE = Path("/etc/sessiond/api-keys")
"""What the systemd unit gives the daemon as its credential."""
HOUSE_SHOWN = "(house)"
HELP = """\
API keys: who may call the daemon over the network, and whose sessions they see.

Keys of one owner share their sessions and what the model has read; nobody else sees them.
"""

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)
Owner = Annotated[
    str | None,
    typer.Argument(metavar="OWNER", help="Whose key: 1 to 64 of A-Z a-z 0-9 . _ - ."),
]
House = Annotated[
    bool,
    typer.Option(
        "--house",
        help="A key of nobody in particular: for the sessions made without keys, and for all.",
    ),
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="OWNER|DIGEST", help="An owner: all keys. A digest from list: that key."
    ),
]
File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Keys file. Without it: the configured one."),
]


@app.command("new")
def new(
    owner: Owner = None, house: House = False, file: File = None, as_json: AsJson = False
) -> None:
    """Make a key and print it, once: the file only has its SHA-256."""
    if (owner is None) != house:
        raise typer.BadParameter("give an owner, or --house instead", param_hint="OWNER")
    if owner is not None and not is_owner(owner):
        raise typer.BadParameter(
            f'"{words.clean(owner)}" is not 1 to 64 of A-Z a-z 0-9 . _ -', param_hint="OWNER"
        )
    keys = KeyFile(_path(file))
    secret, key = keys.add(owner or "")
    if as_json:
        print_json({**_facts(key), "key": secret, "file": str(keys.path)})
    else:
        print(secret)
    note(f"Added to {keys.path}. The key is shown only now; keep it where its user can read it.")
    note(_counts_when(keys.path))


@app.command("list")
def list_keys(file: File = None, as_json: AsJson = False) -> None:
    """Whose keys there are, with the beginning of each key's SHA-256."""
    keys = KeyFile(_path(file)).keys()
    if as_json:
        print_json({"keys": [_facts(key) for key in keys]})
        return
    if not keys:
        note("No keys yet. Make one: sessiond key new OWNER")
        return
    columns = (Column("OWNER", shrink="crop", least=12), Column("DIGEST"))
    print_table(columns, [(Cell(key.owner or HOUSE_SHOWN), Cell(key.short)) for key in keys])


@app.command("rm")
def rm(which: Which, file: File = None, as_json: AsJson = False) -> None:
    """Take keys away. Their owner's sessions stay."""
    keys = KeyFile(_path(file))
    gone = keys.remove(which)
    if as_json:
        print_json({"removed": [_facts(key) for key in gone], "file": str(keys.path)})
    elif gone:
        print(f"Removed {words.counted(len(gone), 'key')} from {keys.path}")
    if not gone:
        note(f'No key in {keys.path} is of "{words.clean(which)}". See: sessiond key list')
        raise typer.Exit(FAILED)
    note(_counts_when(keys.path))


def _path(file: Path | None) -> Path:
    """Raises BadParameter where nobody said which file."""
    if file is not None:
        return file.expanduser()
    configured = load_config(check=False).auth.keys_file
    if configured:
        return Path(configured).expanduser()
    if UNIT_FILE.exists():
        return UNIT_FILE
    raise typer.BadParameter(
        'no keys file is set: write keys_file = "/path/to/api-keys" under [auth] in the settings '
        "file, or give one here",
        param_hint="--file",
    )


def _counts_when(file: Path) -> str:
    """systemd copies the service's own keys file when it starts it, not at a reload."""
    if file == UNIT_FILE:
        return f"It counts when the service has started again: {_systemctl('restart')}."
    return f"It counts once the daemon reads the file again: {_systemctl('reload')}, or restart it."


def _systemctl(verb: str) -> str:
    return f"{'sudo ' if os.geteuid() else ''}systemctl {verb} sessiond"


def _facts(key: Key) -> dict[str, str]:
    return {"owner": key.owner, "digest": key.digest.hex()[:SHORT_DIGEST]}
