"""What a turn's readers are told of its reply: the engine's text, taken apart."""

from __future__ import annotations

from sessiond.engine.events import Delta
from sessiond.sessions.parts import Part, ReplyParser, Thought, joined
from sessiond.sessions.turn import Finished, Spoken, TurnReport


class Speech:
    """One reply. Event loop only."""

    def __init__(self, parser: ReplyParser) -> None:
        self._parser = parser
        self._parts: list[Part] = []
        self._thinks = False
        self._reasoning_tokens = 0

    def spoken(self, delta: Delta) -> Spoken:
        parts = self._parser.feed(delta.text) if delta.text else ()
        if parts:
            self._parts += parts
            self._thinks = isinstance(parts[-1], Thought)
        if self._thinks:
            self._reasoning_tokens += len(delta.tokens)
        return Spoken(delta.text, parts, delta.tokens, delta.logprobs)

    def rest(self) -> Spoken | None:
        """What was held back, when nothing more comes; None if that is nothing."""
        parts = self._parser.close()
        self._parts += parts
        return Spoken("", parts) if parts else None

    @property
    def opened(self) -> str:
        return self._parser.opened

    @property
    def parts(self) -> tuple[Part, ...]:
        return joined(self._parts)

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning_tokens

    def finished(self, text: str, report: TurnReport) -> Finished:
        return Finished(text, report, self.parts, self._reasoning_tokens)
