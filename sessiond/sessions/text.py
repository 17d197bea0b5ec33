"""Text to tokens and back, and messages to a prompt, for those who want no reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from sessiond.errors import InvalidRequest
from sessiond.sessions.transcript import Chat, characters

if TYPE_CHECKING:
    # Commands that only ask the daemon come by here, and need nothing of an engine.
    from sessiond.engine.context import Model

LONG = 20_000
"""Characters, and tokens, that are not worked through on the event loop."""
T = TypeVar("T")


class Writer(Protocol):
    def written(self, chat: Chat, now: datetime) -> str:
        """The conversation as the model reads it. Any thread. Raises TemplateError."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """What is served: the model's name, its file, its chat template ("" for none). `n_ctx` are the
    most tokens of one line, `lines` how many can be active at once. `bos` and `eos` are the tokens
    that text begins and ends with, as they are written.
    """

    model: str
    path: str
    template: str
    n_ctx: int
    lines: int
    bos: str = ""
    eos: str = ""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Of the model that is loaded. Event loop only; what is long leaves it."""

    model: Model
    renderer: Writer
    served: Served

    async def tokens(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """`add_special`: with those that a prompt begins with. `parse_special`: control tokens that
        are written out are read as such.
        """
        ids = await _worked(
            len(text),
            lambda: self.model.tokenize(text, add_special=add_special, parse_special=parse_special),
        )
        return [int(token) for token in ids]

    def piece(self, token: int) -> bytes:
        """What a token is written as; control tokens by their names."""
        return self.model.piece(token, special=True)

    async def text(self, tokens: Sequence[int]) -> str:
        """Bytes that are no text become U+FFFD. Raises InvalidRequest naming the unknown token."""
        known = self.model.info.n_vocab
        for place, token in enumerate(tokens):
            if not 0 <= token < known:
                raise InvalidRequest(
                    f"tokens[{place}] is {token}; the model has {known} tokens.",
                    param=f"tokens[{place}]",
                )
        return await _worked(
            len(tokens), lambda: b"".join(map(self.piece, tokens)).decode(errors="replace")
        )

    async def prompt(self, chat: Chat) -> str:
        """What a reply would be given to, at this moment. Raises TemplateError."""
        now = datetime.fromtimestamp(time.time()).astimezone()
        return await _worked(characters(chat), lambda: self.renderer.written(chat, now))


async def _worked(size: int, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if size > LONG else work()
