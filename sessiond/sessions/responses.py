"""Turns as the responses that clients of OpenAI's Responses API know by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from sessiond.errors import NotFound
from sessiond.sessions.depth import DEPTH, is_deeper
from sessiond.sessions.parts import Called, Part, Said, Thought
from sessiond.sessions.transcript import Chat, Message, as_seen
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import StoredResponse


class ResponseNotFound(NotFound):
    code = "response_not_found"


Count = Annotated[int, Field(ge=0, le=2**53)]
_Written = tuple[Literal["said", "thought"], str] | tuple[Literal["called"], str, str, str]


@dataclass(frozen=True, slots=True)
class _Fields:
    """What the route that answers writes of a response; it may write more."""

    created: Count = 0
    instructed: bool = False
    summarises: bool = False
    encrypts: bool = False
    echoed: dict[str, Any] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sealed:
    fields: _Fields
    output: tuple[_Written, ...]
    reasoning_tokens: Count


_SEALED = TypeAdapter(_Sealed)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the ledger has of a response beside its turn."""

    fields: Mapping[str, Any]
    output: tuple[Part, ...] = ()
    reasoning_tokens: int = 0


def not_found(response: str) -> ResponseNotFound:
    return ResponseNotFound(
        f"There is no response {response!r}.",
        hint="It was never stored, or has been deleted, alone or with its session.",
    )


def sealed(fields: str, parts: Iterable[Part], reasoning_tokens: int = 0) -> str:
    """What the ledger keeps: the JSON of `fields` and the reply's parts, as JSON."""
    kept = {
        "fields": json.loads(fields),
        "output": [_written(part) for part in parts],
        "reasoning_tokens": reasoning_tokens,
    }
    return json.dumps(kept, ensure_ascii=False)


def stored_response(response: str, session: str, tree: SessionTree, number: int) -> StoredResponse:
    """Raises ResponseNotFound for a turn that answered no chat, and for a damaged response."""
    turn, conversation = tree[number], tree.conversation(number)
    if not isinstance(conversation, Chat):
        raise not_found(response)
    kept, stats = _kept(turn), turn.stats
    shown = [ids for step in tree.path(number) for ids in _shown(step)]
    *asked, said = _with_ids([as_seen(message) for message in conversation.messages], shown)
    return StoredResponse(
        id=response,
        session=session,
        turn=number,
        created=turn.created,
        finish_reason=turn.finish_reason,
        asked=tuple(asked),
        said=said,
        tools=conversation.tools,
        output=kept.output,
        fields=kept.fields,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached,
        prefilled_tokens=stats.prefilled,
        completion_tokens=len(turn.reply_tokens),
        reasoning_tokens=kept.reasoning_tokens,
        source=stats.source,
        miss=stats.miss,
    )


def is_sound(turn: Turn) -> bool:
    """Whether what is kept of its response, if it has one, can be read."""
    try:
        return bool(_kept(turn))
    except ResponseNotFound:
        return False


def _written(part: Part) -> list[str]:
    if isinstance(part, Called):
        return ["called", part.id, part.name, part.arguments]
    return ["said" if isinstance(part, Said) else "thought", part.text]


def _read(written: _Written) -> Part:
    if written[0] == "called":
        return Called(*written[1:])
    return Said(written[1]) if written[0] == "said" else Thought(written[1])


def _kept(turn: Turn) -> _Kept:
    """Raises ResponseNotFound where it is not as `sealed` writes it."""
    if not turn.response:
        return _Kept({})
    try:
        data = orjson.loads(turn.response)
        found = _SEALED.validate_json(orjson.dumps(data), strict=True)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, ValidationError) as cause:
        raise _damaged(turn) from cause
    if is_deeper(data["fields"], DEPTH + 2):
        raise _damaged(turn)
    return _Kept(data["fields"], tuple(map(_read, found.output)), found.reasoning_tokens)


def _damaged(turn: Turn) -> ResponseNotFound:
    return ResponseNotFound(
        f"The response of turn {turn.number} is damaged.", hint="Its turn is still there."
    )


def _shown(turn: Turn) -> list[list[str]]:
    """For each of its messages and its reply, the ids that calls were shown with; [] if unknown."""
    output = _kept(turn).output if is_sound(turn) else ()
    called = [part.id for part in output if isinstance(part, Called)]
    return [*([] for _ in turn.roles), called]


def _with_ids(messages: Sequence[Message], shown: Sequence[Sequence[str]]) -> list[Message]:
    """Calls taken from the text of a reply get the ids they were shown with, else those that the
    results behind them name.
    """
    named: list[Message] = []
    for place, (message, ids) in enumerate(zip(messages, shown, strict=True)):
        calls = message.tool_calls
        known = ids if len(ids) == len(calls) else _answered(messages[place + 1 :])
        given = [*known, *("" for _ in calls[len(known) :])]
        pairs = zip(calls, given, strict=False)
        calls = tuple(replace(call, id=call.id or identity) for call, identity in pairs)
        named.append(replace(message, tool_calls=calls))
    return named


def _answered(messages: Sequence[Message]) -> list[str]:
    ids: list[str] = []
    for message in messages:
        if message.role != "tool":
            break
        ids.append(message.tool_call_id or "")
    return ids
