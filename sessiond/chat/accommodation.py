"""Messages that a template refuses, put so that it takes them.

Agents send several system messages, some in the middle, and replies one behind the other; many
templates raise an error then, or know no system role at all. Models call several tools in one reply
though their template takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby

from sessiond.errors import TemplateError
from sessiond.sessions.transcript import Message

Messages = tuple[Message, ...]
Change = Callable[[Messages], Messages]
_BETWEEN = "\n\n"


def accommodated(messages: Messages, render: Callable[[Messages], str]) -> str:
    """What `render` makes of the messages, or of the least changed ones that it does not refuse.

    What has been rendered once stays as it was when messages are added, since only what is refused
    is changed. Raises the TemplateError of the messages as they are.
    """
    try:
        return render(messages)
    except TemplateError as error:
        for changed in _variants(messages):
            try:
                return render(changed)
            except TemplateError:
                continue
        raise error


def _variants(messages: Messages) -> Iterator[Messages]:
    """By how many changes they take; each only once."""
    seen = [messages]
    for count in range(1, len(_CHANGES) + 1):
        for changes in combinations(_CHANGES, count):
            changed = messages
            for change in changes:
                changed = change(changed)
            if changed not in seen:
                seen.append(changed)
                yield changed


def _later_instructions_from_the_user(messages: Messages) -> Messages:
    front = _front(messages)
    later = (replace(m, role="user") if m.role == "system" else m for m in messages[front:])
    return (*messages[:front], *later)


def _one_system_message(messages: Messages) -> Messages:
    front = _front(messages)
    return messages if front < 2 else (_joined(messages[:front]), *messages[front:])


def _alternating(messages: Messages) -> Messages:
    """What one side says in several messages is one, but for tools and calls."""
    runs = (list(run) for _, run in groupby(messages, key=lambda m: m.role))
    return tuple(m for run in runs for m in ([_joined(run)] if _may_join(run) else run))


def _without_system_role(messages: Messages) -> Messages:
    front = _front(messages)
    if not front or front == len(messages) or messages[front].role != "user":
        return messages
    told = replace(_joined(messages[: front + 1]), role="user", name=messages[front].name)
    return (told, *messages[front + 1 :])


def _one_call_each(messages: Messages) -> Messages:
    """A reply with several calls is several replies; their results stay behind all of them, so
    that what follows the last call is all that is new.
    """
    return tuple(one for message in messages for one in _apart(message))


def _apart(message: Message) -> Messages:
    first, further = message.tool_calls[:1], message.tool_calls[1:]
    rest = replace(message, content="", reasoning=None, note=None)
    return (
        replace(message, tool_calls=first),
        *(replace(rest, tool_calls=(call,)) for call in further),
    )


_CHANGES: tuple[Change, ...] = (
    _later_instructions_from_the_user,
    _one_system_message,
    _alternating,
    _without_system_role,
    _one_call_each,
)


def _front(messages: Sequence[Message]) -> int:
    return next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))


def _may_join(run: Sequence[Message]) -> bool:
    plain = run[0].role != "tool"
    return plain and len(run) > 1 and not any(m.tool_calls or m.reasoning for m in run)


def _joined(run: Sequence[Message]) -> Message:
    texts = [text for m in run for text in (m.content, m.note) if text]
    return replace(run[0], content=_BETWEEN.join(texts), note=None)
