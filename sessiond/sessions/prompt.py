"""How the sessions layer gets tokens from messages, without knowing of templates or models."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from sessiond.engine.memory import Tokens
from sessiond.sessions.transcript import Chat


class PromptRenderer(Protocol):
    """Any thread may call these. `now` is the session's frozen clock."""

    def full(self, chat: Chat, now: datetime) -> Tokens:
        """The whole conversation with the generation prompt at its end. Raises TemplateError."""
        ...

    def suffix(self, chat: Chat, matched: int, now: datetime) -> Tokens | None:
        """What follows the content of message `matched - 1`, an assistant message, in `full`.

        It is appended to a path that ends with that reply. None where the template does not
        allow the cut: then the whole conversation has to be rendered. Raises TemplateError.
        """
        ...

    def text(self, prompt: str, first: bool) -> Tokens:
        """A raw prompt; `first` if nothing comes before it."""
        ...
