"""A conversation held through each API with its own client, and read as the parts of a reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import openai

from sessiond.sessions.parts import Called, Part, Said, Thought, calls, joined, said, thought
from tests.api.live.recorder import Json
from tests.api.live.world import World


@dataclass(frozen=True)
class Answer:
    """`sent_back` is what the client appends to its history, all of it. `told`: timings of it."""

    parts: tuple[Part, ...]
    reason: str
    sent_back: list[Json]
    told: Json

    @property
    def standing(self) -> int:
        """Tokens of the line after this turn."""
        timings = self.told["timings"]
        return int(timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"])

    @property
    def prompt(self) -> int:
        timings = self.told["timings"]
        return int(timings["cache_n"] + timings["prompt_n"])


@dataclass(frozen=True)
class Asked:
    """`tools` are OpenAI's definitions, as all of these tests write them."""

    session: str
    history: Sequence[Json]
    tools: Sequence[Json] = ()
    system: str = ""
    max_tokens: int = 4096
    stream: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Session-Id": self.session}


class Speaker(Protocol):
    """`reply` and the others word a step of a conversation for this API; `keeps` the reasoning."""

    stop: str
    length: str
    called: str

    def user(self, text: str) -> list[Json]: ...
    def reply(self, parts: Sequence[Part], *, keeps: bool) -> list[Json]: ...
    def results(self, made: Sequence[Called], text: str) -> list[Json]: ...
    def without_reasoning(self, sent_back: Sequence[Json]) -> list[Json]: ...
    async def ask(self, world: World, asked: Asked) -> Answer: ...


class Chat:
    stop, length, called = "stop", "length", "tool_calls"

    def user(self, text: str) -> list[Json]:
        return [{"role": "user", "content": text}]

    def reply(self, parts: Sequence[Part], *, keeps: bool) -> list[Json]:
        message: Json = {"role": "assistant", "content": said(parts)}
        if keeps and thought(parts):
            message["reasoning_content"] = thought(parts)
        if calls(parts):
            message["tool_calls"] = [_tool_call(call) for call in calls(parts)]
        return [message]

    def results(self, made: Sequence[Called], text: str) -> list[Json]:
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call in made]

    def without_reasoning(self, sent_back: Sequence[Json]) -> list[Json]:
        return [{k: v for k, v in one.items() if k != "reasoning_content"} for one in sent_back]

    async def ask(self, world: World, asked: Asked) -> Answer:
        front = [{"role": "system", "content": asked.system}] if asked.system else []
        body: Any = {
            "model": "m",
            "messages": [*front, *asked.history],
            "max_tokens": asked.max_tokens,
            "extra_headers": asked.headers,
            **({"tools": list(asked.tools)} if asked.tools else {}),
        }
        chats = world.openai.chat.completions
        if not asked.stream:
            whole = await chats.create(**body)
            return _of_chat(whole.choices[0], whole.model_extra or {})
        told: Json = {}
        async with chats.stream(**body) as stream:
            async for event in stream:
                if event.type == "chunk":
                    told |= event.chunk.model_extra or {}
            try:
                final = await stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:
                return _of_chat(cut.completion.choices[0], told)
        return _of_chat(final.choices[0], told)


def _tool_call(call: Called) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _of_chat(choice: Any, told: Json) -> Answer:
    message = choice.message.to_dict()
    for call in message.get("tool_calls") or []:
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    made = [
        Called(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    words = (Thought(message.get("reasoning_content") or ""), Said(message.get("content") or ""))
    parts = (*(part for part in words if part.text), *made)
    return Answer(parts, choice.finish_reason, [message], told)


class Messages:
    stop, length, called = "end_turn", "max_tokens", "tool_use"

    def user(self, text: str) -> list[Json]:
        return [{"role": "user", "content": [{"type": "text", "text": text}]}]

    def reply(self, parts: Sequence[Part], *, keeps: bool) -> list[Json]:
        blocks = [_block(part) for part in parts if keeps or not isinstance(part, Thought)]
        return [{"role": "assistant", "content": blocks}]

    def results(self, made: Sequence[Called], text: str) -> list[Json]:
        results = [
            {"type": "tool_result", "tool_use_id": _toolu(call.id), "content": text}
            for call in made
        ]
        return [{"role": "user", "content": results}]

    def without_reasoning(self, sent_back: Sequence[Json]) -> list[Json]:
        return [
            {**one, "content": [block for block in one["content"] if block["type"] != "thinking"]}
            for one in sent_back
        ]

    async def ask(self, world: World, asked: Asked) -> Answer:
        tools = [
            {"name": one["name"], "input_schema": one["parameters"]}
            for one in (tool["function"] for tool in asked.tools)
        ]
        body: Any = {
            "model": "m",
            "messages": list(asked.history),
            "max_tokens": asked.max_tokens,
            "extra_headers": asked.headers,
            **({"tools": tools} if tools else {}),
            **({"system": asked.system} if asked.system else {}),
        }
        if not asked.stream:
            return _of_message(await world.claude.messages.create(**body), {})
        told: Json = {}
        async with world.claude.messages.stream(**body) as stream:
            async for event in stream:
                if event.type == "message_delta":
                    told = event.model_extra or {}
            return _of_message(await stream.get_final_message(), told)


def _toolu(call: str) -> str:
    return call if call.startswith("toolu_") else f"toolu_{call}"


def _block(part: Part) -> Json:
    if isinstance(part, Said):
        return {"type": "text", "text": part.text}
    if isinstance(part, Thought):
        return {"type": "thinking", "thinking": part.text, "signature": "x"}
    given = json.loads(part.arguments)
    return {"type": "tool_use", "id": _toolu(part.id), "name": part.name, "input": given}


def _of_message(message: Any, told: Json) -> Answer:
    parts: list[Part] = []
    for block in message.content:
        if block.type == "text":
            parts.append(Said(block.text))
        elif block.type == "thinking":
            parts.append(Thought(block.thinking))
        else:
            parts.append(Called(block.id, block.name, json.dumps(block.input)))
    kept = [block.to_dict() for block in message.content]
    sent_back = [{"role": "assistant", "content": kept}]
    return Answer(tuple(parts), message.stop_reason, sent_back, told or message.model_extra)


class Responses:
    stop, length, called = "completed", "incomplete", "completed"

    def user(self, text: str) -> list[Json]:
        return [{"role": "user", "content": text}]

    def reply(self, parts: Sequence[Part], *, keeps: bool) -> list[Json]:
        items = [_item(part) for part in parts if keeps or not isinstance(part, Thought)]
        return items or [_item(Said(""))]

    def results(self, made: Sequence[Called], text: str) -> list[Json]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text} for call in made
        ]

    def without_reasoning(self, sent_back: Sequence[Json]) -> list[Json]:
        kept = [item for item in sent_back if item["type"] != "reasoning"]
        return kept or [_item(Said(""))]

    async def ask(self, world: World, asked: Asked) -> Answer:
        tools = [{"type": "function", **tool["function"], "strict": False} for tool in asked.tools]
        body: Any = {
            "model": "m",
            "input": list(asked.history),
            "max_output_tokens": asked.max_tokens,
            "extra_headers": asked.headers,
            **({"tools": tools} if tools else {}),
            **({"instructions": asked.system} if asked.system else {}),
        }
        if not asked.stream:
            return _of_response(await world.openai.responses.create(**body))
        deltas: list[str] = []
        async for event in await world.openai.responses.create(stream=True, **body):
            if event.type.endswith("_text.delta"):
                deltas.append(event.delta)
            elif event.type in ("response.completed", "response.incomplete"):
                answer = _of_response(event.response)
        assert "".join(deltas) == "".join(
            part.text for part in answer.parts if not isinstance(part, Called)
        )
        return answer


def _item(part: Part) -> Json:
    if isinstance(part, Called):
        named = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
        return {"type": "function_call", **named}
    if isinstance(part, Thought):
        content = [{"type": "reasoning_text", "text": part.text}]
        return {"type": "reasoning", "summary": [], "content": content}
    content = [{"type": "output_text", "text": part.text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def _of_response(response: Any) -> Answer:
    parts: list[Part] = []
    for item in response.output:
        if item.type == "function_call":
            parts.append(Called(item.call_id, item.name, item.arguments))
        else:
            kind = Thought if item.type == "reasoning" else Said
            parts += [kind(one.text) for one in item.content or []]
    told = response.model_extra or {}
    sent_back = [item.to_dict() for item in response.output]
    return Answer(joined(parts), response.status, sent_back, told)


SPEAKERS: dict[str, Speaker] = {
    "chat": Chat(),
    "messages": Messages(),
    "responses": Responses(),
}
