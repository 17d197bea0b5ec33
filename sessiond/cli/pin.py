"""`sessiond pin` and `unpin`."""

from __future__ import annotations

from dataclasses import asdict

from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import print_json
from sessiond.client import Client


def pin(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Keep a session however long it is unused: its turns, and its saved state.

    What is pinned counts against the store's quota and makes room for nothing else.
    """
    told = "It and its saved state stay until it is unpinned or removed."
    _set(name, True, f"Pinned {name}. {told}", as_json, url)


def unpin(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Treat a session as any other again: its state makes room for what is used later."""
    _set(name, False, f"Unpinned {name}.", as_json, url)


def _set(name: str, pinned: bool, told: str, as_json: bool, url: str | None) -> None:
    with Client(url) as client:
        session = client.update(name, pinned=pinned)
    if as_json:
        print_json(asdict(session))
    else:
        print(told)
