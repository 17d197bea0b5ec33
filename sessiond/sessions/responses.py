"""Turns as the responses that clients of OpenAI's Responses API know by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sessiond.errors import LedgerError, NotFound
from sessiond.sessions.parts import Called, Part, Said, Thought
from sessiond.sessions.transcript import Chat, Message, as_seen
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import StoredResponse


class ResponseNotFound(NotFound):
    code = "response_not_found"


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
    """Raises ResponseNotFound for a turn that answered no chat, LedgerError for a damaged one."""
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
    except LedgerError:
        return False


def _written(part: Part) -> list[str]:
    if isinstance(part, Called):
        return ["called", part.id, part.name, part.arguments]
    return ["said" if isinstance(part, Said) else "thought", part.text]


def _read(kind: str, *fields: str) -> Part:
    if kind == "called":
        return Called(*fields)
    return Said(*fields) if kind == "said" else Thought(*fields)


def _kept(turn: Turn) -> _Kept:
    if not turn.response:
        return _Kept({})
    try:
        data = json.loads(turn.response)
        output = tuple(_read(*part) for part in data["output"])
        return _Kept(dict(data["fields"]), output, int(data["reasoning_tokens"]))
    except (ValueError, KeyError, TypeError) as cause:
        raise LedgerError(f"The response of turn {turn.number} is damaged.") from cause


def _shown(turn: Turn) -> list[list[str]]:
    """For each of its messages and its reply, the ids that calls were shown with; [] if unknown."""
    called = [part.id for part in _kept(turn).output if isinstance(part, Called)]
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
