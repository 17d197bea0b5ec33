"""Cuts a reply into words, reasoning and calls, while it is written or when it is whole.

The pieces joined are the reply, and they are the same however it was cut up. What may be a mark is
held back; what turns out not to be a call is words, and is looked through again behind its mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessiond.sessions.calls.call import InlineCall
from sessiond.sessions.calls.ends import spaces
from sessiond.sessions.calls.harmony import ENDS
from sessiond.sessions.calls.marks import marks_of
from sessiond.sessions.calls.tags import ANALYSIS, TAGS, Tag
from sessiond.sessions.calls.way import Channel, Reader, Verdict, Way

PATIENCE = 400_000
"""Characters read for calls that were none, of one reply; nothing is looked for after that."""
MOST = 1_000
"""Marks that are looked behind in one reply, and calls of it; what follows them is words."""
DEAREST = 50_000
"""Of what ways say that reading calls costs, for one reply; what is dearer is no call."""
_STEP = 4_096
"""Characters looked at together, so that nothing long is copied often."""
_FAR = 64
"""Characters of white space before a closing mark, at most."""


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands around reasoning, or `closes` a call, and is not to be shown."""

    text: str
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    text: str
    calls: tuple[InlineCall, ...]


Piece = Words | Thinking | Mark | Found


class Scanner:
    """One reply. `opened`: it begins inside of this reasoning."""

    def __init__(self, ways: Sequence[Way], opened: Tag | None = None) -> None:
        self._ways = {mark: way for way in ways for mark in way.marks}
        self._wholes = tuple(way for way in ways if not way.marks)
        self._plain = marks_of(tuple(self._ways))
        self._in_channel = marks_of((*self._ways, *ENDS))
        self._text = ""
        self._ahead: list[str] = []
        self._last = False
        self._out: list[Piece] = []
        self._spoke = False
        self._untried = self._wholes
        self._channel = False
        self._channels = opened is ANALYSIS
        self._tag = opened or ANALYSIS
        self._attempt: _Attempt | None = None
        self._closer = ""
        self._wasted = self._seen = self._cost = 0
        self._step: Callable[[], bool] = self._opened if opened else self._words

    def feed(self, text: str) -> list[Piece]:
        """What is certain by now."""
        return self._pieces(text)

    def close(self) -> list[Piece]:
        """What is left when nothing more comes."""
        self._last = True
        return self._pieces("")

    def _pieces(self, text: str) -> list[Piece]:
        out = self._out = []
        self._push(text)
        while True:
            while self._step():
                pass
            if not self._ahead:
                return out
            self._text += self._ahead.pop()

    def _push(self, text: str) -> None:
        """To be looked at next."""
        steps = range(0, len(text), _STEP)
        self._ahead += [text[at : at + _STEP] for at in reversed(steps)]

    @property
    def _final(self) -> bool:
        return self._last and not self._ahead

    def _say(self, text: str) -> None:
        if text:
            self._out.append(Words(text))
            self._spoke = self._spoke or not text.isspace()

    def _mark(self, text: str, closes: bool = False) -> None:
        self._out.append(Mark(text, closes))
        self._seen += 1

    # Each step says whether there may be more to do with the text that has come.

    def _words(self) -> bool:
        if self._seen > MOST:
            return self._to(self._tired)
        if not self._text:
            return False
        if not self._spoke and (more := self._begin_reply()) is not None:
            return more
        text = self._text
        marks = self._in_channel if self._channel else self._plain
        found = marks.find(text)
        if found is None:
            said = len(text) if self._final else len(text) - marks.begun(text)
            self._say(text[:said])
            self._text = text[said:]
            return False
        self._say(text[: found.start()])
        self._text = text[found.end() :]
        way = self._ways.get(found[0])
        if way is not None:
            return self._try(way, found[0])
        self._mark(found[0])
        self._channel = False
        return True

    def _begin_reply(self) -> bool | None:
        """Where nothing has been said yet. None where no reasoning and no whole call begins."""
        text = self._text.lstrip()
        self._say(self._text[: len(self._text) - len(text)])
        self._text = text
        if not text:
            return False
        if opens := _OPENS.begins(text):
            self._mark(opens)
            self._text, self._tag = text[len(opens) :], _TAGS[opens]
            return self._to(self._thinking)
        if closes := _CLOSES.begins(text):
            self._mark(closes)
            self._text = text[len(closes) :]
            return True
        known = (_OPENS, _CLOSES, self._plain)
        if not self._final and any(marks.may_begin(text) for marks in known):
            return False
        while self._untried and not self._plain.begins(text):
            way, *others = self._untried
            self._untried = tuple(others)
            if text[0] in way.begins:
                return self._try(way, "")
        return None

    def _opened(self) -> bool:
        """The prompt has opened a tag; some models open it again."""
        text = self._text.lstrip()
        if lead := self._text[: len(self._text) - len(text)]:
            self._out.append(Thinking(lead))
            self._text = text
        opens = self._tag.opens
        if text.startswith(opens):
            self._mark(opens)
            self._text = text[len(opens) :]
        elif opens.startswith(text) and not self._final:
            return False
        return self._to(self._thinking)

    def _thinking(self) -> bool:
        text, tag = self._text, self._tag
        marks = marks_of(tag.closes + tag.before)
        found = marks.find(text)
        end = found.start() if found else len(text)
        if found is None and not self._final:
            end -= marks.begun(text)
        if end:
            self._out.append(Thinking(text[:end]))
        self._text = text[end:]
        if found is None:
            return False
        if found[0] in tag.closes:
            self._mark(found[0])
            self._text = text[found.end() :]
        return self._to(self._words)

    def _call(self) -> bool:
        attempt, text = self._attempt, self._text
        if attempt is None:
            return self._to(self._words)
        verdict = attempt.reader.feed(text) if text else None
        if verdict is None:
            attempt.read(text)
            self._text = ""
            if not self._final:
                return False
            verdict, text = Verdict(attempt.reader.close(), 0), ""
        end = attempt.length + verdict.at
        whole = "".join((*attempt.pieces, text))
        self._attempt, self._text = None, ""
        taken = self._take(attempt.way, whole[:end]) if verdict.fits else None
        if isinstance(taken, Channel):
            self._channels = self._channels or not self._spoke
        if taken is None or (isinstance(taken, Channel) and not self._channels):
            return self._no_call(attempt, whole, end)
        self._push(whole[end:])
        if isinstance(taken, Channel):
            self._mark(whole[:end])
            return self._begin_message(taken)
        self._out.append(Found(whole[:end], taken))
        self._seen += len(taken)
        self._untried = ()
        self._channel = self._channel and not attempt.way.channels
        self._closer = attempt.way.closer
        return self._to(self._after_call)

    def _take(self, way: Way, text: str) -> tuple[InlineCall, ...] | Channel | None:
        self._cost += way.cost(text)
        return way.take(text) if self._cost <= DEAREST else None

    def _no_call(self, attempt: _Attempt, whole: str, read: int) -> bool:
        self._wasted += read
        mark, idle = attempt.mark, attempt.way.idle
        if self._channels and idle and whole.startswith(idle):
            mark = idle
            self._mark(mark)
        else:
            self._say(mark)
        self._push(whole[len(mark) :])
        return self._to(self._words if self._wasted <= PATIENCE else self._tired)

    def _begin_message(self, channel: Channel) -> bool:
        if channel is Channel.THOUGHT:
            self._channel, self._tag = False, ANALYSIS
            return self._to(self._thinking)
        self._channel = channel is Channel.SAID
        return self._to(self._words)

    def _after_call(self) -> bool:
        text, closer = self._text, self._closer
        at = spaces(text)
        if closer and at <= _FAR:
            cut = self._final and at < len(text) and closer.startswith(text[at:])
            if cut or text.startswith(closer, at):
                self._mark(text[: at + len(closer)], closes=True)
                self._text = text[at + len(closer) :]
            elif closer.startswith(text[at:]) and not self._final:
                return False
        return self._to(self._words)

    def _tired(self) -> bool:
        self._say(self._text)
        self._text = ""
        return False

    def _try(self, way: Way, mark: str) -> bool:
        self._seen += 1
        self._attempt = _Attempt(way, mark, way.reader(mark), [mark], len(mark))
        return self._to(self._call)

    def _to(self, step: Callable[[], bool]) -> bool:
        self._step = step
        return True


@dataclass(slots=True)
class _Attempt:
    way: Way
    mark: str
    reader: Reader
    pieces: list[str]
    length: int

    def read(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)


_TAGS = {tag.opens: tag for tag in TAGS}
_OPENS = marks_of(tuple(_TAGS))
_CLOSES = marks_of(tuple(close for tag in TAGS for close in tag.closes))
