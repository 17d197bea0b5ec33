"""The administrator's way to other owners' sessions: `owner/name` wherever a name is given."""

from __future__ import annotations

from sessiond.client.http import httpx
from sessiond.sessions.naming import called, owner_of

OWNER_HEADER = "X-Sessiond-Owner"
_SLASH = b"%2F"


def act_for_owner(request: httpx.Request) -> None:
    """A request about `owner/name` becomes one about the `name` of that owner.

    A name has no slash of its own, so one that is quoted in a path is between these two.
    """
    path, mark, query = request.url.raw_path.partition(b"?")
    before, slash, name = path.partition(_SLASH)
    if slash:
        start, _, owner = before.rpartition(b"/")
        request.headers[OWNER_HEADER] = owner.decode("ascii")
        request.url = request.url.copy_with(raw_path=start + b"/" + name + mark + query)


def beside(name: str, new: str) -> str:
    """`new` as it is written into a request about the session `name`: of the same owner."""
    return called(new) if owner_of(new) == owner_of(name) else new


def acting(owner: str) -> dict[str, str]:
    """The headers of a request that names the session in its body; none for the house."""
    return {OWNER_HEADER: owner} if owner else {}
