"""`sessiond rename`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import print_json
from sessiond.client import Client

New = Annotated[str, typer.Argument(metavar="NEW", help="Its name from now on.")]


def rename(name: Name, new: New, as_json: AsJson = False, url: Url = None) -> None:
    """Give a session another name. Nothing else about it changes, and its state stays.

    An agent that still uses the old name starts a new session under it.
    """
    with Client(url) as client:
        session = client.update(name, new=new)
    if as_json:
        print_json(asdict(session))
    else:
        print(f"{name} is {session.name} now. Agents that still say {name} start a new session.")
