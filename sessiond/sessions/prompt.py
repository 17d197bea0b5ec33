"""How the sessions layer gets tokens from messages, without knowing of templates or models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sessiond.engine.constraint import Constraint
from sessiond.engine.memory import Tokens
from sessiond.errors import ContextLengthExceeded, InvalidRequest
from sessiond.sessions.parts import ReplyParser
from sessiond.sessions.transcript import Chat, Content, Text
from sessiond.sessions.turn import TurnRequest

LAST_USERS = 4
MOST_MARKS = 4
"""As many as Anthropic's API takes."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where messages begin in a prompt: positions in its tokens.

    So much of the prompt stays the same when the message is replaced by another one and the rest
    is left out. `front` is the end of the system messages and tools; `users` are the starts of up
    to LAST_USERS user messages, ascending, `marked` those of messages that the client marked.
    """

    front: int | None = None
    users: tuple[int, ...] = ()
    marked: tuple[int, ...] = ()


class PromptRenderer(Protocol):
    """Any thread may call these. `now` is the session's frozen clock."""

    @property
    def shown(self) -> frozenset[int]:
        """Control tokens that a reply cannot be read without."""
        ...

    def written(self, chat: Chat, now: datetime) -> str:
        """As `full`, as text. Raises TemplateError."""
        ...

    def full(self, chat: Chat, now: datetime) -> Tokens:
        """The whole conversation with the generation prompt at its end. Raises TemplateError."""
        ...

    def suffix(self, chat: Chat, matched: int, now: datetime, rest: str = "") -> Tokens | None:
        """What follows the content of message `matched - 1`, an assistant message, in `full`.

        It is appended to a path that ends with that reply; `rest` is put before it. None where the
        template does not allow the cut: then the whole conversation has to be rendered. Raises
        TemplateError.
        """
        ...

    def boundaries(
        self,
        chat: Chat,
        prompt_tokens: Tokens,
        first_message: int,
        now: datetime,
        marked: Sequence[int] = (),
    ) -> Boundaries:
        """Those of messages from `first_message` on; `marked` are numbers of messages.

        `prompt_tokens` end as the rendered `chat` ends; what comes before `first_message` may be
        the ledger's and spell something else. What cannot be found is left out.
        """
        ...

    def cut(self, reply: Tokens, characters: int) -> tuple[int, str]:
        """How many tokens of a reply lie within its first characters, and what is left of them."""
        ...

    def front(self, chat: Chat, now: datetime) -> int:
        """Tokens before the words of the first user message; 0 where nothing stands before it."""
        ...

    def text(self, prompt: str, first: bool) -> Tokens:
        """A raw prompt; `first` if nothing comes before it."""
        ...

    def parser(self, chat: Chat, prompt: Tokens, request: TurnRequest) -> ReplyParser:
        """For the reply to `prompt`, which `chat` was made into."""
        ...

    def constraint(
        self, content: Content, prompt: Tokens, request: TurnRequest
    ) -> Constraint | None:
        """What the reply must look like; None where it may be anything. May take tenths of a
        second. Raises InvalidRequest.
        """
        ...


def check_length(tokens: int, limit: int, content: Content) -> None:
    """Raises ContextLengthExceeded, or InvalidRequest for no token at all. Both in tokens."""
    param = "prompt" if isinstance(content, Text) else "messages"
    if not tokens:
        raise InvalidRequest(f"'{param}' has no tokens.", hint="Say something.", param=param)
    if tokens > limit:
        raise ContextLengthExceeded(
            f"The prompt of {tokens} tokens exceeds the available context size of {limit} tokens.",
            tokens=tokens,
            limit=limit,
            hint="Start a new chat, let the agent compact, or set a larger model.n_ctx.",
            param=param,
        )
