"""Conversations; what a client may make of them without saying anything else, and what not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from sessiond.sessions.transcript import read_chat
from sessiond.sessions.tree import SessionTree
from tests.sessions.turns import make_turn

Fields = dict[str, Any]
REASONED: dict[str, Callable[[str, str], str]] = {
    "none": lambda thought, text: text,
    "think": lambda thought, text: f"<think>\n{thought}\n</think>\n\n{text}",
    "thinking": lambda thought, text: f"<thinking>{thought}</thinking>{text}",
    "mistral": lambda thought, text: f"[THINK]{thought}[/THINK]{text}",
    "harmony": lambda thought, text: (
        f"<|channel|>analysis<|message|>{thought}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{text}"
    ),
    "opened by the template": lambda thought, text: f"{thought}\n</think>\n\n{text}",
}
"""How models write what they thought before what they say."""
SPACE = st.sampled_from(["", " ", "\n", "\n\n  "])
words = st.text(st.sampled_from("abcé .\n"), max_size=8).map(str.strip)
names = st.sampled_from(["ls", "read_file", "grep"])
values = (
    st.integers(-9, 10**6)
    | st.floats(-9, 9, allow_nan=False).map(lambda value: round(value, 2))
    | st.booleans()
    | words.map(lambda text: f"v{text}")
)
arguments: st.SearchStrategy[Fields] = st.dictionaries(
    st.sampled_from("abcd"), values | st.lists(values, max_size=2), max_size=3
)


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Fields


@dataclass(frozen=True)
class Reply:
    """`raw` is the model's text: thought, text and calls in its own spelling."""

    thought: str
    text: str
    calls: tuple[Call, ...]
    reasoned: str
    spelled: str

    @property
    def raw(self) -> str:
        return REASONED[self.reasoned](self.thought, self.inline(self.spelled))

    def inline(self, spelled: str) -> str:
        return "\n".join([self.text, *(SPELLED[spelled](call) for call in self.calls)])


def _as_json(call: Call) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def _as_xml(call: Call) -> str:
    given = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n"
        "</parameter>\n"
        for name, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{given}</function>\n</tool_call>"


SPELLED = {"json": _as_json, "xml": _as_xml}


@dataclass(frozen=True)
class Exchange:
    """`asked` are messages in OpenAI's shape: a user's, or results of tools."""

    asked: tuple[Fields, ...]
    reply: Reply


@dataclass(frozen=True)
class Conversation:
    system: str
    tools: tuple[Fields, ...]
    exchanges: tuple[Exchange, ...]

    def plain(self) -> list[Fields]:
        """As a client tells it that keeps what it needs: visible text, calls as objects."""
        told: list[Fields] = [{"role": "system", "content": self.system}]
        for exchange in self.exchanges:
            told += [dict(message) for message in exchange.asked]
            told.append(_plain(exchange.reply))
        return told

    def tree(self) -> SessionTree:
        """One line with a turn for each exchange, the replies as the model wrote them."""
        tree, first = SessionTree(), [{"role": "system", "content": self.system}]
        for number, exchange in enumerate(self.exchanges, 1):
            new = [*(first if number == 1 else []), *exchange.asked]
            content = read_chat(new, list(self.tools) if number == 1 else None)
            tree.add(make_turn(number, number - 1 or None, content, exchange.reply.raw))
        return tree


def _plain(reply: Reply) -> Fields:
    calls = [_parsed(call, f"call_{n}") for n, call in enumerate(reply.calls)]
    return {"role": "assistant", "content": reply.text} | ({"tool_calls": calls} if calls else {})


def _parsed(call: Call, identity: str) -> Fields:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": identity, "type": "function", "function": function}


@st.composite
def replies(draw: st.DrawFn, number: int = 0) -> Reply:
    calls = st.lists(st.builds(Call, names, arguments), max_size=2)
    return Reply(
        thought=draw(words.map(lambda text: f"hm {text}")),
        text=f"reply {number} {draw(words)}".strip(),
        calls=tuple(draw(calls)),
        reasoned=draw(st.sampled_from(list(REASONED))),
        spelled=draw(st.sampled_from(list(SPELLED))),
    )


@st.composite
def tool_definitions(draw: st.DrawFn) -> tuple[Fields, ...]:
    chosen = draw(st.lists(names, max_size=3, unique=True))
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"does {name}",
                "parameters": {"type": "object", "properties": draw(arguments), "limit": 1.0},
            },
        }
        for name in chosen
    )


@st.composite
def conversations(draw: st.DrawFn, *, least: int = 1) -> Conversation:
    """All messages of it say something different."""
    exchanges: list[Exchange] = []
    results: tuple[Fields, ...] = ()
    for number in range(draw(st.integers(least, 5))):
        asked: tuple[Fields, ...] = ({"role": "user", "content": f"ask {number} {draw(words)}"},)
        reply = draw(replies(number))
        exchanges.append(Exchange((*results, *asked), reply))
        results = tuple(
            {"role": "tool", "tool_call_id": f"call_{n}", "content": f"out {number} {n}"}
            for n, _ in enumerate(reply.calls)
        )
    return Conversation(f"be brief {draw(words)}", draw(tool_definitions()), tuple(exchanges))


def reordered(value: Any) -> Any:
    """Keys from back to front, and whole numbers as floats, as other serialisers write them."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [reordered(one) for one in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole else value


@st.composite
def retold(draw: st.DrawFn, conversation: Conversation) -> tuple[list[Fields], list[Fields]]:
    """Messages and tools that mean the same as the conversation's."""
    told = [draw(_system_variants(conversation.system))]
    for exchange in conversation.exchanges:
        told += [draw(_variants(message)) for message in exchange.asked]
        told.append(draw(_reply_variants(exchange.reply)))
    tools = draw(st.permutations(conversation.tools))
    return told, [draw(_tool_variants(tool)) for tool in tools]


@st.composite
def _system_variants(draw: st.DrawFn, text: str) -> Fields:
    billing = f"x-anthropic-billing-header: cc_version=2.1; cch={draw(st.integers(0, 999))};"
    content: Any = draw(
        st.sampled_from([text, f"{billing}\n{text}"])
        | st.just([{"type": "text", "text": billing}, {"type": "text", "text": text}])
    )
    message = {"role": draw(st.sampled_from(["system", "developer"])), "content": content}
    return message if content != text else draw(_variants(message))


@st.composite
def _variants(draw: st.DrawFn, message: Fields) -> Fields:
    told = message | {"content": draw(_content_variants(message["content"]))}
    if "tool_call_id" in told:
        told |= {"tool_call_id": draw(st.sampled_from(["call_9", "toolu_x"])), "name": "ls"}
    return draw(_fields_variants(told))


@st.composite
def _content_variants(draw: st.DrawFn, text: str) -> Any:
    if draw(st.booleans()):
        return text
    cut = draw(st.integers(0, len(text)))
    parts: list[Fields] = [{"type": "text", "text": part} for part in (text[:cut], text[cut:])]
    if draw(st.booleans()):
        parts[-1]["cache_control"] = {"type": "ephemeral"}
    return parts


@st.composite
def _fields_variants(draw: st.DrawFn, message: Fields) -> Fields:
    unknown: Fields = draw(
        st.sampled_from([{}, {"refusal": None}, {"annotations": [], "x": {"y": 1}}])
    )
    told = message | unknown
    return dict(reversed(told.items())) if draw(st.booleans()) else told


@st.composite
def _reply_variants(draw: st.DrawFn, reply: Reply) -> Fields:
    inline = reply.calls and draw(st.booleans())
    said = reply.inline(draw(st.sampled_from(list(SPELLED)))) if inline else reply.text
    way = draw(st.sampled_from(["none", reply.reasoned, "think"]))
    said = REASONED[way](reply.thought, f"{draw(SPACE)}{said}{draw(SPACE)}")
    message: Fields = {"role": "assistant", "content": draw(_content_variants(said))}
    if reply.calls and not inline:
        message["tool_calls"] = [draw(_call_variants(call)) for call in reply.calls]
    field = draw(st.sampled_from(["reasoning_content", "reasoning", ""]))
    return draw(_fields_variants(message | ({field: reply.thought} if field else {})))


@st.composite
def _call_variants(draw: st.DrawFn, call: Call) -> Fields:
    given = draw(st.sampled_from([call.arguments, reordered(call.arguments)]))
    written = draw(st.sampled_from([given, json.dumps(given), json.dumps(given, indent=2)]))
    function = {"name": call.name, "arguments": written}
    return {"id": draw(st.sampled_from(["call_x", ""])), "type": "function", "function": function}


@st.composite
def _tool_variants(draw: st.DrawFn, tool: Fields) -> Fields:
    told = draw(st.sampled_from([tool, reordered(tool), json.loads(json.dumps(tool, indent=1))]))
    marker = {"cache_control": {"type": "ephemeral"}}
    inside = told | {"function": told["function"] | marker}
    return draw(st.sampled_from([told, told | marker, inside]))


@st.composite
def meant_otherwise(
    draw: st.DrawFn, conversation: Conversation
) -> tuple[str, list[Fields], list[Fields], int]:
    """What was changed, the messages and tools, and the first message that is another one."""
    told, tools = conversation.plain(), [dict(tool) for tool in conversation.tools]
    kinds = ["word", "role", "dropped", "inserted", "swapped", "tool added"]
    kinds += ["tool removed", "tool description", "tool schema"] if tools else []
    calling = [i for i, message in enumerate(told) if "tool_calls" in message]
    kinds += ["call name", "argument", "call dropped", "call added"] if calling else []
    kind = draw(st.sampled_from(kinds))
    if kind.startswith("tool"):
        return kind, told, draw(_other_tools(kind, tools)), 0
    if "call" in kind or kind == "argument":
        index = draw(st.sampled_from(calling))
        return kind, _with(told, index, draw(_other_calls(kind, told[index]))), tools, index
    index = draw(st.integers(0, len(told) - 1 - (kind == "swapped")))
    return kind, draw(_other_messages(kind, told, index)), tools, index


def _with(told: list[Fields], index: int, message: Fields) -> list[Fields]:
    return [*told[:index], message, *told[index + 1 :]]


@st.composite
def _other_messages(draw: st.DrawFn, kind: str, told: list[Fields], index: int) -> list[Fields]:
    message = told[index]
    if kind == "dropped":
        return told[:index] + told[index + 1 :]
    if kind == "inserted":
        role = draw(st.sampled_from(["user", "assistant", "system"]))
        return [*told[:index], {"role": role, "content": "more"}, *told[index:]]
    if kind == "swapped":
        return [*told[:index], told[index + 1], message, *told[index + 2 :]]
    if kind == "role":
        roles = {"system", "user", "assistant", "tool"} - {message["role"]}
        return _with(told, index, message | {"role": draw(st.sampled_from(sorted(roles)))})
    text = message["content"]
    cut = draw(st.integers(0, len(text)))
    return _with(told, index, message | {"content": f"{text[:cut]}x{text[cut:]}"})


@st.composite
def _other_calls(draw: st.DrawFn, kind: str, message: Fields) -> Fields:
    calls = list(message["tool_calls"])
    at = draw(st.integers(0, len(calls) - 1))
    function = dict(calls[at]["function"])
    if kind == "call dropped":
        del calls[at]
    elif kind == "call added":
        calls.insert(at, {"id": "y", "function": {"name": "rm", "arguments": "{}"}})
    elif kind == "call name":
        calls[at] = calls[at] | {"function": function | {"name": "rm"}}
    else:
        given = json.loads(function["arguments"]) | {draw(st.sampled_from("abcde")): "other"}
        calls[at] = calls[at] | {"function": function | {"arguments": given}}
    return message | {"tool_calls": calls}


@st.composite
def _other_tools(draw: st.DrawFn, kind: str, tools: list[Fields]) -> list[Fields]:
    if kind == "tool added":
        return [*tools, {"type": "function", "function": {"name": "late"}}]
    at = draw(st.integers(0, len(tools) - 1))
    if kind == "tool removed":
        return tools[:at] + tools[at + 1 :]
    function = tools[at]["function"]
    schema = function["parameters"] | {"limit": 2}
    changed = {"description": "d"} if kind == "tool description" else {"parameters": schema}
    return _with(tools, at, tools[at] | {"function": function | changed})
