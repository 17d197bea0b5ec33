"""What requests about sessions may say."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from sessiond.api.fields import Count, Name, Patterns, Policy
from sessiond.api.schemas import Schema
from sessiond.errors import InvalidRequest
from sessiond.sessions.turn import SessionChange


class SessionCreate(Schema):
    name: Name
    policy: Policy | None = None
    pinned_front: Patterns | None = None

    def change(self) -> SessionChange:
        return _change(self.policy, self.pinned_front)


class SessionUpdate(Schema):
    """At least one of them; "default" and ["default"] mean what the configuration says."""

    policy: Policy | Literal["default"] | None = None
    pinned_front: Patterns | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.policy is None and self.pinned_front is None:
            raise InvalidRequest(
                "There is nothing to change.", hint="Give policy or pinned_front.", param="policy"
            )
        return self

    def change(self) -> SessionChange:
        return _change(self.policy, self.pinned_front)


class SessionFork(Schema):
    """`at`: the turn to go on from; the end of the main line where it is left out."""

    name: Name
    at: Count | None = None


def _change(policy: str | None, pinned_front: list[str] | None) -> SessionChange:
    if pinned_front and "default" in pinned_front and len(pinned_front) > 1:
        raise InvalidRequest(
            "'default' stands alone.", hint="Leave it out, or the rest.", param="pinned_front"
        )
    return SessionChange(policy, None if pinned_front is None else tuple(pinned_front))
