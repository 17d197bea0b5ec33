"""`sessiond fork`: go on from any turn of a session, under another name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import print_json
from sessiond.client import Client

New = Annotated[str, typer.Argument(metavar="NEW", help="The new session's name.")]
At = Annotated[
    int | None,
    typer.Option(
        "--at",
        min=1,
        metavar="TURN",
        help="The turn to go on from, as `sessiond show` numbers them. Without it: the end of "
        "the main line.",
    ),
]


def fork(name: Name, new: New, at: At = None, as_json: AsJson = False, url: Url = None) -> None:
    """Make a new session that goes on from a turn of another one.

    What the model has read is shared, not copied or read again. Both go on independently.
    """
    with Client(url) as client:
        session = client.fork(name, new, at)
    if as_json:
        print_json(asdict(session))
        return
    turns = f"{words.counted(session.turns, 'turn')}, {words.counted(session.tokens, 'token')}"
    print(f"Made {session.name} from {name} ({turns}), back in {words.back_in(session)}.")
    print(f"Talk to it: sessiond resume {session.name} --chat")
