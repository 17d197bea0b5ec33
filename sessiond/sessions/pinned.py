"""A front that stays: what is volatile in it may change, and is told with the next user message.

For clients that write a clock or the state of the house into every system prompt. The system
prompt first seen stays in the context; what is new since is noted behind the new user message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from sessiond.errors import InvalidRequest
from sessiond.sessions.difference import front_length
from sessiond.sessions.naming import full_name, owner_of
from sessiond.sessions.news import News
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Chat, Content, hash_parts
from sessiond.sessions.tree import SessionTree
from sessiond.sessions.volatility import SlowPattern, Volatility, shown

KEPT, KEPT_KEYS = 256, 1024
"""Fronts, and keys of fronts as they came; the ones used longest ago go."""
BEGINNINGS = 16
"""So many lines of a session are asked for their front, the latest first."""
Texts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pinned:
    """`content` is the request with the front that stays and the notes. `key` names the front."""

    content: Chat
    key: str


class Fronts:
    """The fronts first seen, by key: those of an owner's sessions, for no other owner's. Event loop
    only.
    """

    def __init__(self, known: dict[str, Texts] | None = None) -> None:
        self._texts: OrderedDict[str, Texts] = OrderedDict(known or {})
        self._keys: OrderedDict[bytes, str] = OrderedDict()
        self._slow: OrderedDict[str, tuple[Sequence[str], SlowPattern]] = OrderedDict()

    def pin(
        self, record: SessionRecord, content: Content, names: Sequence[str], tree: SessionTree
    ) -> Pinned | None:
        """The request as it goes on: with the front of one of the session's own lines, else with
        the one first seen in any session of its owner. None where nothing may change. Changes
        no front.

        `names` are of `record`, or the default. Once one of them has taken too long for a session,
        they are refused for it until they are set anew: until they are another object. Raises
        InvalidRequest naming `pinned_front`.
        """
        if not names or not isinstance(content, Chat):
            return None
        before = self._slow.get(record.name)
        if before and before[0] is names:
            raise _still_refused(before[1])
        try:
            return self._pin(record.owner, content, Volatility(names), tree)
        except SlowPattern as refusal:
            if refusal.spent:
                self._slow[record.name] = (names, refusal)
                self._slow.move_to_end(record.name)
            if len(self._slow) > KEPT_KEYS:
                self._slow.popitem(last=False)
            raise

    def _pin(self, owner: str, content: Chat, volatility: Volatility, tree: SessionTree) -> Pinned:
        key, texts = self._key(owner, content, volatility), front_texts(content)
        begun = islice(_beginnings(tree), BEGINNINGS)
        own = dict.fromkeys(
            front_texts(chat) for chat in begun if self._key(owner, chat, volatility) == key
        )
        stays = _furthest(content, own, tree) if own else self._texts.get(key, texts)
        settled = _with_notes(_with_front(content, stays), tree)
        return Pinned(_told(settled, News(stays, texts, volatility)), key)

    def keep(self, key: str, texts: Texts) -> bool:
        """Of a turn that was made; True for one that was not known."""
        new = key not in self._texts
        self._texts.setdefault(key, texts)
        self._texts.move_to_end(key)
        while len(self._texts) > KEPT:
            self._texts.popitem(last=False)
        return new

    def forget(self, owner: str, tree: SessionTree) -> list[str]:
        """The keys of fronts that a session of `owner` that is removed has begun with; they are
        gone.
        """
        begun = {front_texts(chat) for chat in _beginnings(tree)}
        own = [(key, texts) for key, texts in self._texts.items() if owner_of(key) == owner]
        keys = [key for key, texts in own if texts in begun]
        for key in keys:
            del self._texts[key]
        return keys

    def _key(self, owner: str, chat: Chat, volatility: Volatility) -> str:
        """The same for fronts of an owner that differ in nothing but what may change."""
        texts, names = front_texts(chat), volatility.names
        seen = hash_parts([*names, "", *texts])
        if seen not in self._keys:
            masked = [volatility.mask(text) for text in texts]
            self._keys[seen] = hash_parts([*names, "", *masked]).hex()
            if len(self._keys) > KEPT_KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(seen)
        return full_name(owner, self._keys[seen])


def _still_refused(refusal: SlowPattern) -> InvalidRequest:
    return InvalidRequest(
        f"A pattern of pinned_front took too long for this session: {shown(refusal.name)}",
        hint="Set pinned_front anew, without it or written so that it can match in one way only.",
        param="pinned_front",
    )


def _beginnings(tree: SessionTree) -> Iterator[Chat]:
    contents = (tree[number].content for number in reversed(tree.children(None)))
    return (content for content in contents if isinstance(content, Chat))


def front_texts(chat: Chat) -> Texts:
    """The system messages before the first one of the user."""
    front = chat.messages[: front_length(chat.messages)]
    return tuple(message.content for message in front if message.role == "system")


def _furthest(chat: Chat, fronts: Iterable[Texts], tree: SessionTree) -> Texts:
    """The front with which a request goes on from most; the first one of equals."""
    first, *others = fronts
    if not others:
        return first
    return max(
        (first, *others), key=lambda texts: tree.match(_with_front(chat, texts)).matched_messages
    )


def _with_front(chat: Chat, texts: Sequence[str]) -> Chat:
    messages, left = list(chat.messages), list(texts)
    for index in range(front_length(messages)):
        if messages[index].role == "system" and left:
            messages[index] = replace(messages[index], content=left.pop(0))
    return replace(chat, messages=tuple(messages))


def _with_notes(chat: Chat, tree: SessionTree) -> Chat:
    """With those of the path that it goes on from."""
    match = tree.match(chat)
    known = None if match.turn is None else tree.conversation(match.turn)
    if not isinstance(known, Chat):
        return chat
    pairs = zip(chat.messages, known.messages, strict=False)
    old = [replace(message, note=before.note) for message, before in pairs]
    return replace(chat, messages=(*old, *chat.messages[len(old) :]))


def _told(chat: Chat, news: News) -> Chat:
    """With a note of what the ones before do not tell, where the user has not been answered."""
    messages = list(chat.messages)
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    if not users or any(message.role == "assistant" for message in messages[users[-1] :]):
        return chat
    last, before = users[-1], messages[: users[-1]]
    note = news.after(message.note for message in before if message.note)
    messages[last] = replace(messages[last], note=note or None)
    return replace(chat, messages=tuple(messages))
