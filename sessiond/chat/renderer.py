"""Tokens of messages through a chat template; what is new is cut out behind the last reply."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from secrets import token_hex

import numpy as np

from sessiond.chat.accommodation import accommodated
from sessiond.chat.constraints import constraint, thinking_of
from sessiond.chat.gbnf import gbnf
from sessiond.chat.reply.parser import FormatParser
from sessiond.chat.spelling import Spelling
from sessiond.chat.template import ChatTemplate
from sessiond.chat.told_tools import tells_of_tools, with_tools
from sessiond.engine.constraint import Constraint
from sessiond.engine.context import Model
from sessiond.engine.memory import Tokens
from sessiond.errors import TemplateError
from sessiond.sessions.calls.formats import format_named, format_of
from sessiond.sessions.calls.tags import opened_by
from sessiond.sessions.parts import ReplyParser
from sessiond.sessions.prompt import LAST_USERS, MOST_MARKS, Boundaries
from sessiond.sessions.transcript import Chat, Content, Message, Text, ToolCall
from sessiond.sessions.turn import ToolChoice, TurnRequest

GUARD = "\ue000"
"""A private character: a token or bytes of its own, which merge with nothing."""
_NEAR = 512
"""Characters between the last argument of a call and the end of the reply, at most."""
_END = 32
"""Tokens of the prompt that tell whether it ends inside of reasoning."""


class TemplateRenderer:
    """A PromptRenderer over a model's vocabulary; `template` None where the model has none."""

    def __init__(self, model: Model, template: ChatTemplate | None, tool_format: str = "") -> None:
        """`tool_format`: a name of FORMATS; "" for what the template says. Raises ConfigError."""
        self._model = model
        self._template = template
        self._source = template.source if template else ""
        self._tells_of_tools = tells_of_tools(self._source)
        self._format = format_named(tool_format) if tool_format else format_of(self._source)
        self.shown = frozenset(self._control(self._format.control))
        self._rendered: tuple[Chat, datetime, str] | None = None
        self._tokenized: tuple[Chat, datetime, Tokens] | None = None
        self._guard = self._tokenize(GUARD) if self._adds_space() else None

    def written(self, chat: Chat, now: datetime) -> str:
        return self._render(chat, now)

    def full(self, chat: Chat, now: datetime) -> Tokens:
        last = self._tokenized
        if last is None or last[0] is not chat or last[1] != now:
            tokens = self.text(self._render_whole(chat, now), first=True)
            self._tokenized = last = (chat, now, tokens)
        return last[2]

    def suffix(self, chat: Chat, matched: int, now: datetime, rest: str = "") -> Tokens | None:
        if not 0 < matched <= len(chat.messages) or chat.messages[matched - 1].role != "assistant":
            return None
        text = self._suffix_text(chat, matched, now)
        return None if text is None else self.text(rest + text, first=False)

    def cut(self, reply: Tokens, characters: int) -> tuple[int, str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        kept, seen, further = 0, 0, ""
        for number, token in enumerate(reply, 1):
            further += decoder.decode(self._model.piece(int(token)))
            if seen + len(further) > characters:
                break
            if not decoder.getstate()[0]:
                kept, seen, further = number, seen + len(further), ""
        return kept, further[: characters - seen]

    def boundaries(
        self,
        chat: Chat,
        prompt_tokens: Tokens,
        first_message: int,
        now: datetime,
        marked: Sequence[int] = (),
    ) -> Boundaries:
        users = [i for i, message in enumerate(chat.messages) if message.role == "user"]
        wanted = [i for i in users if i >= first_message]
        marks = [i for i in marked if first_message <= i < len(chat.messages)][-MOST_MARKS:]
        if not wanted and not marks:
            return Boundaries()
        has_front = wanted[:1] == users[:1] and (users[0] > 0 or len(chat.tools) > 0)
        front, last = wanted[:1] if has_front else [], wanted[-LAST_USERS:]
        try:
            text = self._render_whole(chat, now)
        except TemplateError:
            return Boundaries()
        spelling = Spelling(prompt_tokens, text, self._model, self._continuation)
        asked = sorted({*front, *last, *marks})
        starts = {i: self._parting(spelling, chat, i, now) for i in asked}
        known = {i: at for i, at in starts.items() if at is not None}
        return Boundaries(
            known.get(front[0]) if front else None,
            tuple(sorted({known[i] for i in last if i in known})),
            tuple(sorted({known[i] for i in marks if i in known})),
        )

    def front(self, chat: Chat, now: datetime) -> int:
        users = [i for i, message in enumerate(chat.messages) if message.role == "user"]
        if not users or not (users[0] or chat.tools):
            return 0
        sentinel = f"CUT{token_hex(12)}"
        first = replace(chat.messages[users[0]], content=sentinel)
        try:
            text = self._render(replace(chat, messages=(*chat.messages[: users[0]], first)), now)
        except TemplateError:
            return 0
        head, found, _ = text.partition(sentinel)
        return len(self.text(head, first=True)) if found else 0

    def text(self, prompt: str, first: bool) -> Tokens:
        if first:
            info = self._model.info
            starts = bool(info.bos) and prompt.startswith(info.bos)
            return self._tokenize(prompt, add_special=info.adds_bos and not starts)
        return self._continuation(prompt)

    def parser(self, chat: Chat, prompt: Tokens, request: TurnRequest) -> ReplyParser:
        return FormatParser(
            self._format,
            chat.tools,
            calls=bool(chat.tools) and request.tool_choice.mode != "none",
            opened=opened_by(self._end_of(prompt)),
            split=not request.raw_reasoning,
        )

    def constraint(
        self, content: Content, prompt: Tokens, request: TurnRequest
    ) -> Constraint | None:
        if request.grammar is not None:
            return gbnf(request.grammar)
        if isinstance(content, Text):
            return constraint(ToolChoice(), (), request.schema, None)
        thinking = thinking_of(self._format.name, self._source, self._end_of(prompt))
        return constraint(
            request.tool_choice, content.tools, request.schema, self._format.spelling, thinking
        )

    def _end_of(self, prompt: Tokens) -> str:
        pieces = (self._model.piece(int(token), special=True) for token in prompt[-_END:])
        return b"".join(pieces).decode(errors="replace")

    def _control(self, texts: Iterable[str]) -> Iterator[int]:
        """Those of the texts that are one token, which is not printed."""
        for text in texts:
            tokens = self._tokenize(text)
            if len(tokens) == 1 and not self._model.piece(int(tokens[0])):
                yield int(tokens[0])

    def _parting(self, spelling: Spelling, chat: Chat, user: int, now: datetime) -> int | None:
        """Where the prompt parts from one that says something else at message `user`."""
        sentinel = f"CUT{token_hex(12)}"
        messages = (*chat.messages[:user], replace(chat.messages[user], content=sentinel))
        try:
            edited = self._render(replace(chat, messages=messages), now)
        except TemplateError:
            return None
        head, found, tail = edited.partition(sentinel)
        return spelling.parting(head, tail) if found else None

    def _suffix_text(self, chat: Chat, matched: int, now: datetime) -> str | None:
        """What the sentinel is put in for all that was said, else in the last call's arguments.

        Some templates end a reply with calls otherwise, or allow what follows only after calls.
        """
        whole, sentinel = self._render_whole(chat, now), f"CUT{token_hex(12)}"
        said = self._cut_out(_with_sentinel(chat, matched, sentinel), sentinel, now)
        if said is not None and whole.endswith(said):
            return said
        if not chat.messages[matched - 1].tool_calls:
            return None
        called = self._cut_out(_with_sentinel_call(chat, matched, sentinel), sentinel, now)
        end = None if called is None else self._end_of_generation(called)
        return end if end is not None and whole.endswith(end) else None

    def _cut_out(self, marked: Chat, sentinel: str, now: datetime) -> str | None:
        """What follows the sentinel, if that does not depend on the front."""
        suffix, front = self._after(marked, sentinel, now), _without_front(marked)
        if suffix is None or front == marked:
            return suffix
        return suffix if self._after(front, sentinel, now) == suffix else None

    def _after(self, chat: Chat, sentinel: str, now: datetime) -> str | None:
        try:
            pieces = self._render(chat, now).split(sentinel)
        except TemplateError:
            return None
        return pieces[1] if len(pieces) == 2 else None

    def _end_of_generation(self, text: str) -> str | None:
        """From the first token on that ends a reply, if that is near; None if there is none."""
        near, end = text[:_NEAR], 0
        for token in self._continuation(near):
            if self._model.ends_generation(int(token)):
                return text[len(near.encode()[:end].decode(errors="ignore")) :]
            end += len(self._model.piece(int(token), special=True))
        return None

    def _render_whole(self, chat: Chat, now: datetime) -> str:
        """A request is rendered once, though its suffix and its boundaries are asked for too."""
        last = self._rendered
        if last is not None and last[0] is chat and last[1] == now:
            return last[2]
        text = self._render(chat, now)
        self._rendered = (chat, now, text)
        return text

    def _render(self, chat: Chat, now: datetime) -> str:
        if self._template is None:
            raise TemplateError(
                "The model has no chat template.",
                hint="Give one with --model-chat-template-file FILE.",
            )
        render = partial(
            self._template.render,
            tools=[json.loads(tool) for tool in chat.tools] or None,
            bos=self._model.info.bos,
            eos=self._model.info.eos,
            now=now,
            options=dict(chat.template_options),
        )
        messages = chat.messages
        if chat.tools and not self._tells_of_tools:
            messages = with_tools(messages, chat.tools)
        return accommodated(messages, lambda those: render([_for_template(m) for m in those]))

    def _continuation(self, text: str) -> Tokens:
        if self._guard is None:
            return self._tokenize(text)
        guarded, n = self._tokenize(GUARD + text), len(self._guard)
        return guarded[n:] if np.array_equal(guarded[:n], self._guard) else self._tokenize(text)

    def _adds_space(self) -> bool:
        """SentencePiece puts a space before a text; a continuation must not get one."""
        first, *_ = self._tokenize("x")
        return self._model.piece(int(first)).startswith(b" ")

    def _tokenize(self, text: str, *, add_special: bool = False) -> Tokens:
        return self._model.tokenize(text, add_special=add_special, parse_special=True)


def _with_sentinel(chat: Chat, matched: int, sentinel: str) -> Chat:
    """The sentinel stands for all the assistant said, tool calls too: the cut is after both."""
    messages = list(chat.messages)
    messages[matched - 1] = replace(messages[matched - 1], content=sentinel, tool_calls=())
    return replace(chat, messages=tuple(messages))


def _with_sentinel_call(chat: Chat, matched: int, sentinel: str) -> Chat:
    messages = list(chat.messages)
    *others, last = messages[matched - 1].tool_calls
    marked = replace(last, arguments=json.dumps({"x": sentinel}))
    messages[matched - 1] = replace(messages[matched - 1], tool_calls=(*others, marked))
    return replace(chat, messages=tuple(messages))


def _without_front(chat: Chat) -> Chat:
    messages = chat.messages
    while messages and messages[0].role == "system":
        messages = messages[1:]
    return replace(chat, messages=messages, tools=())


def _for_template(message: Message) -> dict[str, object]:
    content = f"{message.content}\n\n{message.note}" if message.note else message.content
    fields: dict[str, object] = {"role": message.role, "content": content}
    optional = {
        "name": message.name,
        "tool_calls": _calls(message.tool_calls),
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    return fields | {name: value for name, value in optional.items() if value}


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments(c)}}
        for c in calls
    ]


def _arguments(call: ToolCall) -> object:
    try:
        parsed = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return parsed if isinstance(parsed, dict) else call.arguments
