"""A turn as one line of JSON, and back with every field looked at: the line may be anybody's."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import asdict, dataclass, replace

import numpy as np
import orjson
from pydantic import TypeAdapter

from sessiond.engine.events import FinishReason
from sessiond.engine.memory import Tokens
from sessiond.errors import InvalidExport
from sessiond.sessions.depth import DEPTH, is_deeper
from sessiond.sessions.responses import is_sound
from sessiond.sessions.transcript import ROLES, Chat, Content, Text
from sessiond.sessions.transfer.manifest import checked, loaded
from sessiond.sessions.tree import Turn, TurnStats

LATEST = 32_503_680_000.0
"""Unix seconds: the year 3000. Times beyond cannot be shown everywhere."""
MOST = 2**53
MOST_TURNS = 2**31 - 1
_TOKENS = np.dtype("<i4")
_LONG = 1024
_LONG_MESSAGE = 8192
_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,512}")
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What terminals and logs obey rather than show."""
_KNOWN_ROLES = frozenset(ROLES.values())


@dataclass(frozen=True, slots=True)
class TurnLine:
    """Tokens are little-endian int32 in base64."""

    number: int
    parent: int | None
    content: Chat | Text
    kept: int
    prompt_tokens: str
    reply_tokens: str
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


_LINE = TypeAdapter(TurnLine)


def line_of(turn: Turn) -> bytes:
    """With the newline."""
    packed = {
        **{name: getattr(turn, name) for name in TurnLine.__slots__},
        "prompt_tokens": _packed(turn.prompt_tokens),
        "reply_tokens": _packed(turn.reply_tokens),
    }
    return orjson.dumps(packed, option=orjson.OPT_APPEND_NEWLINE)


def turn_in(line: bytes, where: str) -> Turn:
    """Raises InvalidExport. Whether its parent is there is not looked at."""
    found = checked(_LINE, loaded(line, where), where)
    try:
        fields = {name: getattr(found, name) for name in TurnLine.__slots__}
        tokens = {name: _tokens(fields[name]) for name in ("prompt_tokens", "reply_tokens")}
        turn = Turn(**{**fields, **tokens, "stats": _shown(found.stats)})
    except (ValueError, binascii.Error) as error:
        raise InvalidExport(f"{where}: the tokens cannot be read.") from error
    if wrong := _wrong(turn):
        raise InvalidExport(f"{where}: {wrong} is not as it must be.")
    return turn


def _shown(stats: TurnStats) -> TurnStats:
    """With a reason that a terminal can show."""
    if stats.miss is None:
        return stats
    message = CONTROLS.sub(" ", stats.miss.message)
    return replace(stats, miss=replace(stats.miss, message=message))


def _packed(tokens: Tokens) -> str:
    return base64.b64encode(tokens.astype(_TOKENS).tobytes()).decode()


def _tokens(packed: str) -> Tokens:
    tokens = np.frombuffer(base64.b64decode(packed, validate=True), dtype=_TOKENS)
    if len(tokens) and tokens.min() < 0:
        raise ValueError("a token below 0")
    return tokens.astype(np.int32, copy=False)


def _wrong(turn: Turn) -> str:
    """The name of the first field that no daemon could have written."""
    numbers = [turn.number, *(n for n in (turn.parent, turn.replaces) if n is not None)]
    counts = [v for v in asdict(turn.stats).values() if isinstance(v, int | float)]
    miss, known_as = turn.stats.miss, turn.response_id
    marks = (turn.tokenizer, turn.fingerprint, turn.model, turn.settings, turn.opened)
    sound = {
        "number": all(0 < number <= MOST_TURNS for number in numbers),
        "kept": 0 <= turn.kept <= MOST,
        "created": 0 <= turn.created <= LATEST,
        "stats": all(0 <= count <= MOST for count in counts),
        "miss": miss is None or (0 <= miss.tokens <= MOST and len(miss.message) <= _LONG_MESSAGE),
        "tokenizer": all(len(mark) <= _LONG for mark in marks),
        "content": _is_said(turn.content),
        "response_id": known_as is None or bool(_RESPONSE_ID.fullmatch(known_as)),
        "response": is_sound(turn),
    }
    return next((name for name, good in sound.items() if not good), "")


def _is_said(content: Content) -> bool:
    if isinstance(content, Text):
        return True
    if any(message.role not in _KNOWN_ROLES for message in content.messages):
        return False
    try:
        tools = [orjson.loads(tool) for tool in content.tools]
    except orjson.JSONDecodeError:
        return False
    objects = all(isinstance(tool, dict) for tool in tools)
    return objects and not is_deeper([tools, content.template_options], DEPTH + 2)
