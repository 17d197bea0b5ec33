"""What requests about sessions may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import model_validator

from sessiond.api.fields import Count, Name, Patterns, Policy
from sessiond.api.identity import session_name
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
    """At least one of them; "default" and ["default"] mean what the configuration says.

    `name` is what it is called from now on, `pinned`: neither its turns nor its state go by
    themselves.
    """

    policy: Policy | Literal["default"] | None = None
    pinned_front: Patterns | None = None
    name: Name | None = None
    pinned: bool | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(value is None for value in (self.policy, self.pinned_front, self.name, self.pinned)):
            raise InvalidRequest(
                "There is nothing to change.",
                hint="Give policy, pinned_front, name or pinned.",
                param="policy",
            )
        return self

    def change(self) -> SessionChange:
        name = None if self.name is None else session_name(self.name, param="name")
        rules = _change(self.policy, self.pinned_front)
        return replace(rules, name=name, pinned=self.pinned)


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
