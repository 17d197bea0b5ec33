"""`sessiond new`, `park` and `rm`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import print_json
from sessiond.cli.rules import NoPinnedFront, PinnedFront, Policy, patterns, rules
from sessiond.client import Client

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def new(
    name: Name,
    policy: Policy = None,
    pinned_front: PinnedFront = None,
    no_pinned_front: NoPinnedFront = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Make an empty session."""
    pinned = patterns(pinned_front, no_pinned_front)
    with Client(url) as client:
        session = client.create(name, policy, pinned)
    if as_json:
        print_json(asdict(session))
        return
    print(f"Made {session.name} ({rules(session)}). Talk to it: sessiond resume {name} --chat")


def park(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Save a session to disk and free the model's memory for others.

    Nothing is lost: the next request or `sessiond resume` brings it back.
    """
    with Client(url) as client:
        session = client.park(name)
    if as_json:
        print_json(asdict(session))
        return
    stored = f"{words.counted(session.tokens, 'token')}, {words.size(session.bytes)} on disk"
    print(f"Parked {session.name}: {stored}, back in {words.back_in(session)}")


def rm(name: Name, yes: Yes = False, as_json: AsJson = False, url: Url = None) -> None:
    """Delete a session for good: its conversation and its saved state."""
    with Client(url) as client:
        if not yes:
            _confirm(client, name)
        client.delete(name)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        print(f"Removed {name}")


def _confirm(client: Client, name: str) -> None:
    """Asks on stderr. Raises Exit where the answer is no, UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask on: give --yes to delete")
    session = client.session(name)
    what = f"{words.counted(session.turns, 'turn')}, {words.counted(session.tokens, 'token')}"
    if not typer.confirm(f"Delete {name} ({what}) for good?", err=True):
        print("Nothing removed.", file=sys.stderr)
        raise typer.Exit(1)
