"""Who makes a request: the owner of its key, or the administrator, who may act for any owner."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from sessiond.api.errors import Forbidden
from sessiond.api.keys import is_owner
from sessiond.errors import InvalidRequest
from sessiond.sessions.naming import HOUSE

OWNER_HEADER = "X-Sessiond-Owner"
_IN_SCOPE = "sessiond.visitor"


@dataclass(frozen=True, slots=True)
class Visitor:
    """`owner` is the one whose sessions the request is about.

    `everybody`: an administrator who did not say for whom: lists tell of all owners' sessions.
    """

    owner: str
    administrator: bool = False
    everybody: bool = False


STRANGER = Visitor("?")
"""Without a key, on a route that needs none. No owner has this name, so no session is theirs."""


def visitor_of(owner: str | None, headers: Headers) -> Visitor:
    """`owner` of the key; the house's is the administrator, None has shown no key.

    Raises Forbidden where an owner acts for another, InvalidRequest for a name that none can have.
    """
    asked = headers.get(OWNER_HEADER)
    if owner != HOUSE:
        if asked is not None and asked != owner:
            raise Forbidden(
                f"Only the administrator may send {OWNER_HEADER}.",
                hint="Leave it out: the key says who you are.",
            )
        return STRANGER if owner is None else Visitor(owner)
    if asked is None:
        return Visitor(HOUSE, administrator=True, everybody=True)
    if not is_owner(asked):
        raise InvalidRequest(
            f"{OWNER_HEADER} is not an owner's name.",
            hint="A name has 1 to 64 of A-Z a-z 0-9 . _ -",
            param=OWNER_HEADER,
        )
    return Visitor(asked, administrator=True)


def enter(scope: Scope, visitor: Visitor) -> None:
    scope[_IN_SCOPE] = visitor


def visitor_in(scope: Scope) -> Visitor:
    """Raises KeyError for a request that did not come through the guard."""
    visitor: Visitor = scope[_IN_SCOPE]
    return visitor
