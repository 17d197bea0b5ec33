"""A ReplyParser for every family: what is said, what is thought, which tools are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sessiond.chat.reply.flow import Flow
from sessiond.chat.reply.tools import Tools
from sessiond.sessions.calls.call import InlineCall
from sessiond.sessions.calls.format import Format
from sessiond.sessions.calls.scanner import Found, Mark, Piece, Scanner, Thinking, Words
from sessiond.sessions.calls.tags import Tag
from sessiond.sessions.parts import Called, Part, Said, Thought
from sessiond.sessions.transcript import clean

_BETWEEN_THOUGHTS = "\n\n"


class FormatParser:
    """One reply of a model of this family; a few microseconds for each piece of plain text."""

    def __init__(
        self,
        form: Format,
        tools: Iterable[str] = (),
        *,
        calls: bool = True,
        opened: Tag | None = None,
        split: bool = True,
    ) -> None:
        """`tools` are JSON definitions; with none, a call of any tool is one.

        Without `calls` they stay text; `opened`: the prompt ended inside this reasoning. Without
        `split` reasoning is said, with its marks.
        """
        self.opened = opened.opens if opened else ""
        self._format = form
        self._tools = Tools(tools) if calls else None
        ways = form.ways if calls else tuple(way for way in form.ways if way.channels)
        self._scanner = Scanner(ways, opened)
        self._split = split
        self._said = Flow()
        self._thought = Flow()
        self._thoughts = 0
        self._beside = False
        self._kept_call = False

    def feed(self, text: str) -> tuple[Part, ...]:
        return tuple(self._parts(self._scanner.feed(text)))

    def close(self) -> tuple[Part, ...]:
        parts = list(self._parts(self._scanner.close()))
        held = self._said.end()
        if held and not self._beside:
            parts.append(Said(held))
        return tuple(parts)

    def _parts(self, pieces: Sequence[Piece]) -> Iterator[Part]:
        for piece in pieces:
            if isinstance(piece, Words):
                yield from self._say(piece.text)
            elif isinstance(piece, Found):
                yield from self._call(piece)
            elif isinstance(piece, Mark) and piece.closes:
                if self._kept_call:
                    yield from self._say(piece.text)
            elif not self._split:
                yield from self._say(piece.text)
            elif isinstance(piece, Thinking):
                yield from self._think(piece.text)
            else:
                self._thought.end()

    def _say(self, text: str) -> Iterator[Part]:
        shown = self._said.take(text, trimmed=self._beside)
        if shown:
            self._thoughts = 0
            yield Said(shown)

    def _think(self, text: str) -> Iterator[Part]:
        further = self._thoughts and not self._thought.begun
        shown = self._thought.take(text, trimmed=True)
        if shown:
            self._beside = True
            self._thoughts += 1
            yield Thought(_BETWEEN_THOUGHTS + shown if further else shown)

    def _call(self, found: Found) -> Iterator[Part]:
        tools = self._tools
        self._kept_call = tools is None or not all(tools.knows(call.name) for call in found.calls)
        if tools is None or self._kept_call:
            yield from self._say(found.text)
            return
        self._beside, self._thoughts = True, 0
        for call in found.calls:
            yield Called(self._format.new_id(), call.name, _arguments(call, tools))


def _arguments(call: InlineCall, tools: Tools) -> str:
    return clean(call.arguments) if call.typed else tools.typed(call.name, call.arguments)
