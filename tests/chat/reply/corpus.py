"""What models of every family write, and what a reader is to see of it. Ids of calls are left out.

`TOOLS` are the tools of all these requests. `template` is a file in tests/templates. `ends` is what
the prompt ends with, where that matters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sessiond.sessions.parts import Called, Part, Said, Thought, joined

Rows = dict[str, tuple[str, tuple[Part, ...]]]
SCHEMAS: dict[str, dict[str, Any]] = {
    "read": {
        "path": {"type": "string"},
        "limit": {"type": "integer"},
        "all": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "options": {"type": "object"},
    },
    "write": {"path": {"type": "string"}, "content": {"type": "string"}},
}
TOOLS = tuple(
    json.dumps(
        {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": fields}},
        }
    )
    for name, fields in SCHEMAS.items()
)


@dataclass(frozen=True)
class Case:
    name: str
    form: str
    raw: str
    parts: tuple[Part, ...]
    template: str | None = None
    ends: str = ""


def called(name: str, **arguments: Any) -> Called:
    return Called("", name, json.dumps(arguments))


def plain(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Joined, without ids, and with arguments that can be compared."""
    return tuple(
        replace(part, id="", arguments=json.dumps(json.loads(part.arguments)))
        if isinstance(part, Called)
        else part
        for part in joined(parts)
    )


READ = called("read", path="/a b", limit=3)
WRITE = called("write", path="/c", content="{}\n")
_READ, _WRITE = (part.arguments for part in (READ, WRITE))
_HERMES_READ = f'<tool_call>\n{{"name": "read", "arguments": {_READ}}}\n</tool_call>'
_HERMES_WRITE = f'<tool_call>\n{{"name": "write", "arguments": {_WRITE}}}\n</tool_call>'
_CODER_READ = (
    "<tool_call>\n<function=read>\n<parameter=path>\n/a b\n</parameter>\n"
    "<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
)
_TO = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"
_NEXT = "<|end|><|start|>assistant"
_GEMMA4 = '<|tool_call>call:read{path:<|"|>/a b<|"|>,limit:3}<tool_call|>'
_FUNCTION_GEMMA = "<start_function_call>call:read{path:<escape>/a b<escape>,limit:3}"
THINK = "<think>\n"


def _hermes() -> tuple[Case, ...]:
    hm, now = Thought("Hm, <tool_call>?"), Said("Now.")
    thought = "<think>\nHm, <tool_call>?\n</think>\n\n"
    broken = '<tool_call>\n{"name": "read", "arguments": {"path": }}\n</tool_call>'
    unknown = '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>'
    tags = called("write", path="/c", content='</tool_call> \\ " {[<tool_call>')
    inside = f'<tool_call>{{"name": "write", "arguments": {tags.arguments}}}</tool_call>'
    rows: Rows = {
        "words": (" Hello, <b>you</b>.\n", (Said(" Hello, <b>you</b>.\n"),)),
        "reasoning": (f"{thought}Now.", (hm, now)),
        "twice reasoned": ("<think>a</think>\n<think>b</think>c", (Thought("a\n\nb"), Said("c"))),
        "reasoning in words": (f"So {THINK}a</think>", (Said(f"So {THINK}a</think>"),)),
        "reasoning cut off": (f"{THINK}Hm, so", (Thought("Hm, so"),)),
        "a call": (f"{thought}Now.\n{_HERMES_READ}\n", (hm, now, READ)),
        "calls": (f"{_HERMES_READ}\n{_HERMES_WRITE}", (READ, WRITE)),
        "words behind a call": (f"{_HERMES_READ}\nNow.", (READ, now)),
        "words between calls": (
            f"A\n{_HERMES_READ}\nB\n{_HERMES_WRITE}",
            (Said("A"), READ, Said("\n\nB"), WRITE),
        ),
        "marks in a call": (inside, (tags,)),
        "a call without its end": (_HERMES_READ.removesuffix("\n</tool_call>"), (READ,)),
        "half a call": (f"Now.\n{_HERMES_READ[:40]}", (Said(f"Now.\n{_HERMES_READ[:40]}"),)),
        "a broken call": (f"{broken}\n{_HERMES_READ}", (Said(broken), READ)),
        "an unknown tool": (f"{unknown}\n{_HERMES_READ}", (Said(unknown), READ)),
        "no call": ("<tool_call> begins a call.", (Said("<tool_call> begins a call."),)),
        "empty words": ("", ()),
        "white space": (" \n", (Said(" \n"),)),
    }
    opened: Rows = {
        "opened": ("Hm.\n</think>\n\nNow.", (Thought("Hm."), now)),
        "opened and opened again": (f"{THINK}Hm.\n</think>\n\nNow.", (Thought("Hm."), now)),
        "opened and cut off": ("Hm, so\n", (Thought("Hm, so"),)),
        "opened, and a call": (f"Hm.\n</think>\n\n{_HERMES_READ}", (Thought("Hm."), READ)),
    }
    return (
        *(Case(name, "hermes", *row, template="qwen.jinja") for name, row in rows.items()),
        *(Case(name, "hermes", *row, ends=THINK) for name, row in opened.items()),
    )


def _coder() -> tuple[Case, ...]:
    bare = _CODER_READ.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    typed = called("read", path="3", limit=3, all=True, options={"a": [1]}, other="4")
    values = {"path": "3", "limit": "3", "all": "True", "options": '{"a": [1]}', "other": "4"}
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    lines = called("write", content=" a\n\n</function>\nb ")
    unclosed = "<function=read>\n<parameter=path>\n/a b\n<parameter=limit>\n3\n</function>\n"
    rows: Rows = {
        "a call": (f"Now.\n\n{_CODER_READ}", (Said("Now."), READ)),
        "calls": (f"{_CODER_READ}\n{_CODER_READ}", (READ, READ)),
        "without a frame": (f"{bare}\n</tool_call>", (READ,)),
        "json": (_HERMES_READ, (READ,)),
        "json in a function": (
            f"<tool_call><function=read>{_READ}</function></tool_call>",
            (READ,),
        ),
        "types": (f"<tool_call>\n<function=read>\n{given}</function>\n</tool_call>", (typed,)),
        "lines": (
            "<tool_call><function=write><parameter=content>\n a\n\n</function>\nb \n</parameter>"
            "</function></tool_call>",
            (lines,),
        ),
        "no value": ("<tool_call><function=read></function></tool_call>", (called("read"),)),
        "null": (
            "<function=read><parameter=all>null</parameter></function>",
            (called("read", all=None),),
        ),
        "values without an end": (f"<tool_call>{unclosed}</tool_call>", (READ,)),
        "cut off": (_CODER_READ[:70], (Said(_CODER_READ[:70]),)),
        "no call": ("Write <function=name> first.", (Said("Write <function=name> first."),)),
    }
    return tuple(
        Case(n, "qwen_coder", *row, template="qwen_coder.jinja") for n, row in rows.items()
    )


def _llama() -> tuple[Case, ...]:
    read, write = (f'{{"name": "{p.name}", "parameters": {p.arguments}}}' for p in (READ, WRITE))
    tags = called("write", content=_HERMES_READ)
    quoted = f'{{"name": "write", "parameters": {tags.arguments}}}'
    rows: Rows = {
        "a call": (read, (READ,)),
        "marked": (f"<|python_tag|>{read}", (READ,)),
        "calls": (f"\n{read}; {write}\n", (READ, WRITE)),
        "a list": (f"[{read}, {write}]", (READ, WRITE)),
        "code": ("[read(path='/a b', limit=3)]", (READ,)),
        "a call in a call": (quoted, (tags,)),
        "other json": ('{"name": "Ada", "age": 36}', (Said('{"name": "Ada", "age": 36}'),)),
        "no list": ("[the docs](https://example.org)", (Said("[the docs](https://example.org)"),)),
        "words behind": (f"{read} calls it.", (Said(f"{read} calls it."),)),
        "words before": (f"It is {read}", (Said(f"It is {read}"),)),
        "cut off": (read[:30], (Said(read[:30]),)),
        "python": ("<|python_tag|>import os", (Said("<|python_tag|>import os"),)),
        "reasoned": (f"<think>a</think>\n{read}", (Thought("a"), READ)),
    }
    return tuple(Case(n, "llama", *row, template="llama_tools.jinja") for n, row in rows.items())


def _mistral() -> tuple[Case, ...]:
    one, two = (f"[TOOL_CALLS]{part.name}[ARGS]{part.arguments}" for part in (READ, WRITE))
    listed = ", ".join(f'{{"name": "{p.name}", "arguments": {p.arguments}}}' for p in (READ, WRITE))
    rows: Rows = {
        "a call": (one, (READ,)),
        "calls": (f"Now.{one}{two}", (Said("Now."), READ, WRITE)),
        "an id": (one.replace("[ARGS]", "[CALL_ID]abcdefghi[ARGS]"), (READ,)),
        "reasoned": (f"[THINK]Hm.[/THINK]{one}", (Thought("Hm."), READ)),
        "half": (one[:-4], (Said(one[:-4]),)),
        "no call": ("[TOOL_CALLS] read it", (Said("[TOOL_CALLS] read it"),)),
        "a list": (f"[TOOL_CALLS] [{listed}]", (READ, WRITE)),
    }
    return (
        *(Case(n, "mistral", *row, template="mistral_calls.jinja") for n, row in rows.items()),
        Case(
            "old", "mistral_list", f"[TOOL_CALLS][{listed}]", (READ, WRITE), "mistral_tools.jinja"
        ),
    )


def _gemma() -> tuple[Case, ...]:
    python = "```tool_code\nprint(read(path='/a b', limit=3))\n```"
    fenced = f'```tool_call\n{{"name": "read", "arguments": {_READ}}}\n```'
    thought = "<|channel>thought\nHm.\n<channel|>"
    nested = called("read", options={"a": [1, "x,}", None]}, all=True)
    given = '{options:{a:[1,<|"|>x,}<|"|>,null]},all:true}'
    broken = "<|tool_call>call:read{a}<tool_call|>"
    code: Rows = {
        "code": (f"Now.\n{python}", (Said("Now."), READ)),
        "json": (fenced, (READ,)),
        "a list": ('[read(path="/a b", limit=3)]', (READ,)),
        "words behind": (f"{python}\nThen.", (READ, Said("Then."))),
        "other code": ("```tool_code\nimport os\n```", (Said("```tool_code\nimport os\n```"),)),
        "python": ("```python\nread()\n```", (Said("```python\nread()\n```"),)),
    }
    braces: Rows = {
        "a call": (f"{thought}Now.{_GEMMA4}", (Thought("Hm."), Said("Now."), READ)),
        "calls": (_GEMMA4 * 2, (READ, READ)),
        "nested": (f"<|tool_call>call:read{given}<tool_call|>", (nested,)),
        "json": (f"<|tool_call>call:read{_READ}<tool_call|>", (READ,)),
        "half": (_GEMMA4[:40], (Said(_GEMMA4[:40]),)),
        "broken": (broken, (Said(broken),)),
    }
    function = f"{_FUNCTION_GEMMA}<end_function_call>"
    return (
        *(Case(n, "gemma", *row, template="gemma_code.jinja") for n, row in code.items()),
        *(Case(n, "gemma4", *row) for n, row in braces.items()),
        Case("a call", "functiongemma", function, (READ,)),
        Case("half", "functiongemma", function[:44], (Said(function[:44]),)),
    )


def _harmony() -> tuple[Case, ...]:
    analysis = f"<|channel|>analysis<|message|>Hm.{_NEXT}"
    final = "<|channel|>final<|message|>Now."
    call = f"{_TO.format('read')}{_READ}"
    hm, now = Thought("Hm."), Said("Now.")
    unknown = f"{_TO.format('rm')}{{}}<|call|>"
    rows: Rows = {
        "an answer": (f"{analysis}{final}", (hm, now)),
        "ended": (f"{analysis}{final}<|return|>", (hm, now)),
        "reasoning cut off": ("<|channel|>analysis<|message|>Hm", (Thought("Hm"),)),
        "a call": (f"{analysis}{call}<|call|>", (hm, READ)),
        "named early": (f" to=functions.read<|channel|>commentary json<|message|>{_READ}", (READ,)),
        "words and a call": (
            f"{analysis}<|channel|>commentary<|message|>Now.{_NEXT}{analysis}{call}",
            (hm, now, hm, READ),
        ),
        "words without a channel": (f"{analysis}Now.", (hm, now)),
        "a header cut off": (f"{analysis}<|channel|>fin", (hm,)),
        "half a call": (f"{analysis}{call[:-5]}", (hm, Said(call[:-5]))),
        "a broken call": (
            f"{_TO.format('read')}not json<|call|>",
            (Said(f"{_TO.format('read')}not json<|call|>"),),
        ),
        "an unknown tool": (unknown, (Said(unknown),)),
        "no channel": ("Now.", (now,)),
        "no call": ("Send it to=functions.read or so", (Said("Send it to=functions.read or so"),)),
    }
    return tuple(Case(n, "harmony", *row, template="harmony.jinja") for n, row in rows.items())


def _generic() -> tuple[Case, ...]:
    others = [*_hermes(), *_coder(), *_llama(), *_mistral(), *_gemma(), *_harmony()]
    return tuple(
        replace(case, name=f"{case.form}: {case.name}", form="generic", template=None)
        for case in others
    )


CASES = (
    *_hermes(),
    *_coder(),
    *_llama(),
    *_mistral(),
    *_gemma(),
    *_harmony(),
    *_generic(),
)
