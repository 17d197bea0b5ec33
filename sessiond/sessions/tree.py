"""A session as a tree of immutable turns, and the place a request finds in it.

Chains of digests make matching one walk over the request: `answered` is the chain over all messages
of a path with its last reply, `asked` the one without it. A request goes on from the deepest turn
whose `answered` chain is among its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from sessiond.engine.events import FinishReason
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.sessions.echo import reopened, seen_until
from sessiond.sessions.transcript import Chat, Content, Message, Text, digest, tools_digest
from sessiond.sessions.turn import LineRole, Miss, Source

DAY_S = 86400.0
CACHED_PATHS = 4


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Tokens and milliseconds; `prompt_tokens` is the whole prompt: cached + prefilled."""

    prompt_tokens: int
    cached: int
    restored: int
    prefilled: int
    source: Source
    miss: Miss | None
    ttft_ms: float
    prompt_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request's new messages and the reply. `number` counts up and names the turn for ever.

    `content` has only what is new in this turn; the tools are those of the root. The turn's path
    tokens are the first `kept` of its parent's path, `prompt_tokens`, `reply_tokens`. `tokenizer`,
    `fingerprint`, `model` and `settings` are digests of what produced them. `created` is in Unix
    seconds. `response_id` is what clients that keep no history call it by, `response` is JSON of
    what they are told again of it. `opened` is the mark of reasoning that the prompt ends with,
    `replaces` the last turn of a line that it is a compaction of.
    """

    number: int
    parent: int | None
    content: Content
    kept: int
    prompt_tokens: Tokens
    reply_tokens: Tokens
    reply: str
    finish_reason: FinishReason
    tokenizer: str
    fingerprint: str
    model: str
    settings: str
    stats: TurnStats
    created: float
    response_id: str | None = None
    response: str | None = None
    opened: str = ""
    replaces: int | None = None

    @property
    def said(self) -> Message:
        """The reply, with the mark of reasoning that its prompt ended with."""
        return Message("assistant", reopened(self.reply, self.opened))

    @property
    def roles(self) -> tuple[str, ...]:
        """Of the new messages, in order; "text" for a raw prompt."""
        if isinstance(self.content, Text):
            return ("text",)
        return tuple(message.role for message in self.content.messages)


@dataclass(frozen=True, slots=True)
class Echo:
    """Message `message` of a request is the beginning of what turn `turn` replied to the same.

    So a client goes on from a reply that it has seen in part.
    """

    turn: int
    message: int


@dataclass(frozen=True, slots=True)
class Match:
    """The deepest turn a request goes on from, or None, and how much of the request is its path.

    With an `echo`, the next reply is known in part; its turn is no part of the path. `asked` is
    the digest of the whole request. A line has begun with its first `begun` messages before.
    """

    turn: int | None
    matched_messages: int = 0
    matched_characters: int = 0
    echo: Echo | None = None
    asked: bytes = field(default=b"", compare=False)
    begun: int = field(default=0, compare=False)

    def rest(self, content: Content) -> Content:
        """What is new in the request: the `content` of its turn."""
        if isinstance(content, Text):
            return Text(content.prompt[self.matched_characters :])
        tools = content.tools if self.turn is None else ()
        new = content.messages[self.matched_messages :]
        return Chat(new, tools, content.template_options)


@dataclass(frozen=True, slots=True)
class _Place:
    """What is derived of a turn when it is added: its path's `length` in tokens and digests.

    `links` are the chain's, from the end of the parent's path on. For raw text `hasher` has seen
    the path's `characters`.
    """

    turn: Turn
    length: int
    asked: bytes
    answered: bytes
    children: list[int]
    replied: bytes = b""
    question: bytes = b""
    links: tuple[bytes, ...] = ()
    characters: int = 0
    hasher: blake2b | None = None


class SessionTree:
    """Turns can only be added. Not thread-safe; nothing here blocks."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._roots: list[int] = []
        self._answered: dict[bytes, list[int]] = {}
        self._asked: dict[bytes, list[int]] = {}
        self._replied: dict[bytes, dict[bytes, list[int]]] = {}
        self._quoted: dict[bytes, list[int]] = {}
        self._links: set[bytes] = set()
        self._text_lengths: set[int] = set()
        self._replaced: set[int | None] = {None}
        self._last_number = 0
        self._paths: OrderedDict[int, Tokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __iter__(self) -> Iterator[Turn]:
        """In the order they were added, parents first."""
        return (place.turn for place in self._places.values())

    def __getitem__(self, number: int) -> Turn:
        return self._places[number].turn

    def take_number(self) -> int:
        """For a turn that may be added later; given out once."""
        self._last_number += 1
        return self._last_number

    def number_after(self, last: int) -> None:
        """Numbers up to `last` belong to turns that are gone; they are not given out again."""
        self._last_number = max(self._last_number, last)

    @property
    def last_used(self) -> float:
        """Unix seconds; 0 for an empty tree."""
        return max((turn.created for turn in self), default=0.0)

    def give_back(self, number: int) -> None:
        """There will be no turn of this number; the next one gets it if it was given out last."""
        if number == self._last_number and number not in self._places:
            self._last_number -= 1

    def add(self, turn: Turn) -> None:
        """Raises ValueError if the number is taken, the parent unknown or shorter than `kept`."""
        if turn.number in self._places:
            raise ValueError(f"turn {turn.number} exists")
        if turn.parent is not None and turn.parent not in self._places:
            raise ValueError(f"turn {turn.number} has an unknown parent {turn.parent}")
        if not 0 <= turn.kept <= self.length(turn.parent):
            raise ValueError(f"turn {turn.number} keeps {turn.kept} tokens its parent lacks")
        place = self._place(turn)
        self._last_number = max(self._last_number, turn.number)
        self._places[turn.number] = place
        self._replaced.add(turn.replaces)
        self._children(turn.parent).append(turn.number)
        self._answered.setdefault(place.answered, []).append(turn.number)
        if isinstance(turn.content, Text):
            self._text_lengths.add(place.characters)
        else:
            self._links.update(place.links)
            self._asked.setdefault(place.asked, []).append(turn.number)
            replied = self._replied.setdefault(place.replied, {})
            replied.setdefault(place.question, []).append(turn.number)
            for message in turn.content.messages:
                if message.role == "assistant":
                    self._quoted.setdefault(digest(message), []).append(turn.number)

    def path(self, number: int) -> tuple[Turn, ...]:
        """From the root to this turn."""
        return tuple(reversed(list(self._upwards(number))))

    def length(self, number: int | None) -> int:
        """Tokens of the path; 0 for None."""
        return 0 if number is None else self._places[number].length

    def path_tokens(self, number: int) -> Tokens:
        """All tokens of the path from position 0. Shared: read-only."""
        if number not in self._paths:
            self._paths[number] = self._join(number)
            if len(self._paths) > CACHED_PATHS:
                self._paths.popitem(last=False)
        self._paths.move_to_end(number)
        return self._paths[number]

    def conversation(self, number: int) -> Content:
        """All that was said on the path: the tools of the root, the options of this turn."""
        path = self.path(number)
        last = path[-1].content
        if isinstance(last, Text):
            return Text("".join(_prompt(turn) + turn.reply for turn in path))
        said = (m for turn in path for m in (*_messages(turn), turn.said))
        root = path[0].content
        tools = root.tools if isinstance(root, Chat) else ()
        return Chat(tuple(said), tools, last.template_options)

    def leaves(self) -> tuple[int, ...]:
        """The last turn of each line."""
        return tuple(number for number, place in self._places.items() if not place.children)

    def main_line(self, now: float) -> int | None:
        """The leaf with most tokens among those of the last day, else the one used last.

        Of a line and its compaction it is the compaction, until the line is gone on with.
        """
        numbers = self.leaves()
        kept = [number for number in numbers if number not in self._replaced]
        leaves = [self._places[number] for number in kept or numbers]
        recent = [leaf for leaf in leaves if now - leaf.turn.created <= DAY_S]
        if recent:
            return max(recent, key=lambda leaf: (leaf.length, leaf.turn.created)).turn.number
        return max(leaves, key=_created).turn.number if leaves else None

    def main_path(self, now: float) -> frozenset[int]:
        """The turns of the main line."""
        leaf = self.main_line(now)
        return frozenset() if leaf is None else frozenset(t.number for t in self._upwards(leaf))

    def line_role(self, number: int, now: float) -> LineRole:
        return "main" if number in self.main_path(now) else "side"

    def match(self, content: Content) -> Match:
        """The deepest turn all of whose path, replies included, the request begins with.

        Among equals, one whose reply came back to the letter, then the most recently used line.
        """
        if isinstance(content, Text):
            return self._match_text(content.prompt)
        chain = _chain(content)
        found = Match(None)
        for matched in range(len(content.messages), 0, -1):
            if numbers := self._answered.get(chain[matched]):
                said = content.messages[matched - 1].content
                found = Match(self._preferred(numbers, said), matched_messages=matched)
                break
        echo = self._echo(content, chain, found.matched_messages)
        begun = self._begun(chain, found.matched_messages)
        return replace(found, echo=echo, asked=chain[-1], begun=begun)

    def replied(self, reply: bytes, question: bytes) -> Sequence[int]:
        """The turns with a reply of this digest; where it was given to several questions, those
        with this one. `question` is the digest of the message before it.
        """
        given = self._replied.get(reply, {})
        return next(iter(given.values())) if len(given) == 1 else given.get(question, ())

    def quoted(self, reply: bytes) -> Sequence[int]:
        """The turns whose new messages have a reply of this digest among them."""
        return self._quoted.get(reply, ())

    def alike(self, number: int | None) -> Sequence[int | None]:
        """The turns whose paths say what this one's does; None, the beginning, is only itself."""
        return (None,) if number is None else self._answered[self._places[number].answered]

    def children(self, number: int | None) -> Sequence[int]:
        """The turns that go on from one; those that begin a line for None."""
        return self._children(number)

    def twin(self, match: Match, content: Content) -> Turn | None:
        """The matched turn's latest child that asked what `content`, the whole request, asks.

        Its prompt tokens can be used as they are.
        """
        asked = match.asked or _asked(content)
        options = content.template_options if isinstance(content, Chat) else ()
        for number in reversed(self._children(match.turn)):
            place = self._places[number]
            if place.asked == asked and _options(place.turn) == options:
                return place.turn
        return None

    def _begun(self, chain: list[bytes], matched: int) -> int:
        further = range(matched + 1, len(chain))
        return next((n - 1 for n in further if chain[n] not in self._links), len(chain) - 1)

    def _echo(self, chat: Chat, chain: list[bytes], matched: int) -> Echo | None:
        for index in range(len(chat.messages) - 1, matched - 1, -1):
            message = chat.messages[index]
            if message.role != "assistant" or message.tool_calls:
                continue
            for number in reversed(self._asked.get(chain[index], ())):
                if seen_until(self[number].reply, message.content) is not None:
                    return Echo(number, index)
        return None

    def _match_text(self, prompt: str) -> Match:
        best, hasher, done = Match(None), _text_hasher(), 0
        for length in sorted(n for n in self._text_lengths if n <= len(prompt)):
            hasher.update(_encoded(prompt[done:length]))
            done = length
            if found := self._answered.get(hasher.digest()):
                best = Match(self._preferred(found, ""), matched_characters=length)
        return best

    def _preferred(self, numbers: list[int], said: str) -> int:
        if len(numbers) == 1:
            return numbers[0]
        return max(numbers, key=lambda n: (self[n].reply == said, self._used(n), n))

    def _used(self, number: int) -> float:
        """When a line through this turn was last used."""
        used, below = 0.0, [number]
        while below:
            place = self._places[below.pop()]
            used = max(used, place.turn.created)
            below += place.children
        return used

    def _children(self, number: int | None) -> list[int]:
        return self._roots if number is None else self._places[number].children

    def _upwards(self, number: int) -> Iterator[Turn]:
        at: int | None = number
        while at is not None:
            turn = self[at]
            yield turn
            at = turn.parent

    def _place(self, turn: Turn) -> _Place:
        above = None if turn.parent is None else self._places[turn.parent]
        length = turn.kept + len(turn.prompt_tokens) + len(turn.reply_tokens)
        if isinstance(turn.content, Text):
            return _text_place(turn, turn.content, above, length)
        start = tools_digest(turn.content.tools) if above is None else above.answered
        reply = turn.said
        *links, answered = _extend(start, (*turn.content.messages, reply))
        said = turn.content.messages
        question = digest(said[-1]) if said else b""
        chain = (*links, answered)
        return _Place(turn, length, links[-1], answered, [], digest(reply), question, chain)

    def _join(self, number: int) -> Tokens:
        pieces, wanted = [], self.length(number)
        for turn in self._upwards(number):
            own = np.concatenate((turn.prompt_tokens, turn.reply_tokens))
            pieces.append(own[: max(0, wanted - turn.kept)])
            wanted = min(wanted, turn.kept)
            if not wanted:
                break
        joined = as_tokens(np.concatenate(pieces[::-1]))
        joined.flags.writeable = False
        return joined


def without_responses(tree: SessionTree, known: Collection[str]) -> SessionTree:
    """The same turns, those known by one of these ids without it."""
    if not known:
        return tree
    other = SessionTree()
    for turn in tree:
        gone = turn.response_id in known
        other.add(replace(turn, response_id=None, response=None) if gone else turn)
    return other


def _text_place(turn: Turn, content: Text, above: _Place | None, length: int) -> _Place:
    hasher = above.hasher.copy() if above and above.hasher else _text_hasher()
    hasher.update(_encoded(content.prompt))
    asked = hasher.digest()
    hasher.update(_encoded(turn.reply))
    characters = len(content.prompt) + len(turn.reply) + (above.characters if above else 0)
    return _Place(turn, length, asked, hasher.digest(), [], characters=characters, hasher=hasher)


def _asked(content: Content) -> bytes:
    if isinstance(content, Chat):
        return _chain(content)[-1]
    hasher = _text_hasher()
    hasher.update(_encoded(content.prompt))
    return hasher.digest()


def _text_hasher() -> blake2b:
    return blake2b(b"text", digest_size=16)


def _chain(chat: Chat) -> list[bytes]:
    return _extend(tools_digest(chat.tools), chat.messages)


def _extend(start: bytes, messages: tuple[Message, ...]) -> list[bytes]:
    """The chain's links: `start`, then one after each message."""
    links = [start]
    for message in messages:
        links.append(blake2b(links[-1] + digest(message), digest_size=16).digest())
    return links


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _created(place: _Place) -> float:
    return place.turn.created


def _prompt(turn: Turn) -> str:
    return turn.content.prompt if isinstance(turn.content, Text) else ""


def _messages(turn: Turn) -> tuple[Message, ...]:
    return turn.content.messages if isinstance(turn.content, Chat) else ()


def _options(turn: Turn) -> tuple[tuple[str, object], ...]:
    return turn.content.template_options if isinstance(turn.content, Chat) else ()
