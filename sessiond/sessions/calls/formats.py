"""All families. A new one: a file for its way to write calls, if no one has it yet, and an entry.

The first whose `known_by` a template has is its family, so what is more special comes first.
"""

from __future__ import annotations

from sessiond.errors import ConfigError
from sessiond.sessions.calls.bare import BARE, MARKED
from sessiond.sessions.calls.braces import BRACES
from sessiond.sessions.calls.call import InlineCall, Taken
from sessiond.sessions.calls.code import FENCED, LISTED
from sessiond.sessions.calls.format import Format, short_id
from sessiond.sessions.calls.harmony import CONTROL, HARMONY
from sessiond.sessions.calls.mistral import MISTRAL
from sessiond.sessions.calls.scanner import Found, Scanner, Words
from sessiond.sessions.calls.spelling import HERMES, JsonCall, Spelling, TaggedCall
from sessiond.sessions.calls.tagged import TAGGED

WAYS = (TAGGED, MISTRAL, HARMONY, BRACES, FENCED, MARKED, BARE, LISTED)
_FRAMES = ("<tool_call>", "</tool_call>")
_CODER = TaggedCall(
    "<tool_call>\n<function={name}>\n",
    "<parameter={name}>\n",
    "\n</parameter>\n",
    "</function>\n</tool_call>",
)
_NAMED = JsonCall("[TOOL_CALLS]{name}[ARGS]", "")
_LISTED = JsonCall('{"name": "{name}", "arguments": ', "}")
_SPECIAL: tuple[Format, ...] = (
    Format(
        "harmony",
        (HARMONY,),
        known_by=("<|channel|>",),
        marks=CONTROL,
        spelling=Spelling(
            JsonCall(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", "<|call|>"
            ),
            many=False,
        ),
    ),
    Format(
        "gemma4",
        (BRACES,),
        known_by=("<|tool_call>",),
        marks=("<|tool_call>", "<tool_call|>", '<|"|>'),
        spelling=Spelling(JsonCall("<|tool_call>call:{name}", "<tool_call|>")),
    ),
    Format(
        "functiongemma",
        (BRACES,),
        known_by=("<start_function_call>",),
        marks=("<start_function_call>", "<end_function_call>", "<escape>"),
        spelling=Spelling(JsonCall("<start_function_call>call:{name}", "<end_function_call>")),
    ),
    Format(
        "qwen_coder",
        (TAGGED,),
        known_by=("<function=",),
        marks=_FRAMES,
        spelling=Spelling(_CODER, between="\n"),
    ),
    Format("hermes", (TAGGED,), known_by=("<tool_call>",), marks=_FRAMES, spelling=HERMES),
    Format(
        "mistral",
        (MISTRAL,),
        known_by=("[ARGS]", "[CALL_ID]", "[THINK]"),
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        spelling=Spelling(_NAMED),
        new_id=short_id,
    ),
    Format(
        "mistral_list",
        (MISTRAL, BARE),
        known_by=("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
        marks=("[TOOL_CALLS]",),
        spelling=Spelling(_LISTED, start="[TOOL_CALLS][", between=", ", end="]"),
        new_id=short_id,
    ),
    Format(
        "llama",
        (MARKED, BARE, LISTED, TAGGED),
        known_by=("<|python_tag|>", "<|start_header_id|>"),
        marks=("<|python_tag|>",),
        spelling=Spelling(JsonCall('{"name": "{name}", "parameters": ', "}"), many=False),
    ),
    Format(
        "gemma",
        (FENCED, BARE, LISTED),
        known_by=("<start_of_turn>",),
        spelling=Spelling(
            JsonCall('```tool_call\n{"name": "{name}", "arguments": ', "}\n```"), between="\n"
        ),
    ),
)
GENERIC = Format(
    "generic",
    WAYS,
    marks=tuple(text for one in _SPECIAL for text in one.marks),
)
FORMATS = {one.name: one for one in (*_SPECIAL, GENERIC)}


def format_of(template: str | None) -> Format:
    """The family whose template this is; the one that knows all ways where it says nothing.

    That is so, too, where it leaves tools out: then the model learns of them in some other way.
    """
    source = template or ""
    known = (one for one in _SPECIAL if any(text in source for text in one.known_by))
    return next(known, GENERIC) if "tools" in source else GENERIC


def format_named(name: str) -> Format:
    """Raises ConfigError for a name that is none of FORMATS."""
    if name not in FORMATS:
        raise ConfigError(
            f"There is no tool format {name!r}.",
            hint=f"Use one of: {', '.join(FORMATS)}.",
            param="model.tool_format",
        )
    return FORMATS[name]


def take_calls(text: str) -> Taken:
    """The text without its reasoning and its calls, and the calls, whatever family wrote it."""
    scanner = Scanner(WAYS)
    pieces = scanner.feed(text) + scanner.close()
    calls: list[InlineCall] = []
    for piece in pieces:
        if isinstance(piece, Found):
            calls += piece.calls
    return "".join(piece.text for piece in pieces if isinstance(piece, Words)), tuple(calls)
