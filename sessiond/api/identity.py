"""Which session a request belongs to: the first sign that is present, in the contract's order.

Everything here is pure. Names are data, never paths.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from sessiond.errors import InvalidRequest
from sessiond.sessions.turn import SessionRef

NAME_LENGTH = 200
NAME_SENT = 4 * NAME_LENGTH
"""The longest that is looked at, with the spaces around it."""
_INNER = r"/\u0000-\u001f\u007f-\u009f\u2028\u2029"
NAME_PATTERN = rf"^ *[^ {_INNER}]([^{_INNER}]{{0,{NAME_LENGTH - 2}}}[^ {_INNER}])? *$"
"""The same as `session_name` checks, for the OpenAPI document."""
_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
_LEGACY_CLAUDE = re.compile(r"_session_([0-9a-fA-F-]+)$")
_CONVERSATION_HEADERS = (
    ("x-openwebui-chat-id", "openwebui"),
    ("x-litellm-session-id", "litellm"),
    ("x-conversation-id", None),
)
_USER_AGENTS = {
    "claude-cli": "claude",
    "codex": "codex",
    "opencode": "opencode",
    "qwencode": "qwen",
    "homeassistant": "homeassistant",
}


@dataclass(frozen=True, slots=True)
class AgentsOwn:
    """The id an agent gave its own conversation, and `parent` that of the one it came from."""

    id: str
    agent: str | None
    parent: str | None = None


def identify(
    path: str | None, body: Mapping[str, object], headers: Mapping[str, str]
) -> SessionRef:
    """`path` is the `/s/{session}` part; header names are lower-case.

    A bad name where a person writes one (path, session_id, X-Session-Id) raises InvalidRequest;
    ids that agents bring in other fields are made to fit.
    """
    own = _agents_own(body, headers)
    agent = own.agent if own and own.agent else _by_user_agent(headers)
    if path is None:
        name, parent = _unpathed(body, headers, own)
        return SessionRef(name, False, agent, _other(parent, name))
    above = session_name(path, param="session")
    if own is None:
        return SessionRef(above, True, agent)
    name = _fitting(f"{above}:{own.id}")
    parent = f"{above}:{own.parent}" if own.parent else None
    return SessionRef(name, False, agent, _other(parent, name))


def session_name(value: object, *, param: str) -> str:
    """The name without surrounding spaces. Raises InvalidRequest naming `param`."""
    hint = "A name has 1 to 200 characters, no control characters and no slash."
    if not isinstance(value, str):
        raise InvalidRequest("The session name is not a string.", hint=hint, param=param)
    name = value.strip(" ")
    if not name:
        raise InvalidRequest("The session name is empty.", hint=hint, param=param)
    if len(name) > NAME_LENGTH:
        raise InvalidRequest("The session name is too long.", hint=hint, param=param)
    if any(_forbidden(char) for char in name):
        raise InvalidRequest(
            "The session name has a character that is not allowed.", hint=hint, param=param
        )
    return name


def _unpathed(
    body: Mapping[str, object], headers: Mapping[str, str], own: AgentsOwn | None
) -> tuple[str | None, str | None]:
    """The session and its parent. What is named plainly has its parent named so too."""
    above = headers.get("x-parent-session-id")
    if body.get("session_id") is not None:
        return session_name(body["session_id"], param="session_id"), above
    if given := headers.get("x-session-id"):
        return session_name(given, param="X-Session-Id"), above
    if own:
        return _fitting(own.id), own.parent
    weak = _weak(body)
    return (_fitting(weak) if weak else None), None


def _agents_own(body: Mapping[str, object], headers: Mapping[str, str]) -> AgentsOwn | None:
    return _claude(body, headers) or _codex(headers) or _opencode(headers) or _conversation(headers)


def _claude(body: Mapping[str, object], headers: Mapping[str, str]) -> AgentsOwn | None:
    if session := headers.get("x-claude-code-session-id"):
        return _claudes(session, headers)
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str) or not user:
        return None
    session = _session_in(user)
    if session is None:
        return AgentsOwn(user, None)
    return _claudes(session, headers)


def _claudes(session: str, headers: Mapping[str, str]) -> AgentsOwn:
    """A sub-agent was started by another one, else by the session's own."""
    agent, above = (headers.get(f"x-claude-code-{who}-id") for who in ("agent", "parent-agent"))
    return AgentsOwn(
        _joined(session, agent), "claude", _joined(session, above) if agent or above else None
    )


def _session_in(user_id: str) -> str | None:
    """Claude Code's session id in `metadata.user_id`: JSON, or the older `…_session_<uuid>`."""
    if legacy := _LEGACY_CLAUDE.search(user_id):
        return legacy.group(1)
    try:
        parsed = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    session = parsed.get("session_id") if isinstance(parsed, dict) else None
    return session if isinstance(session, str) and session else None


def _codex(headers: Mapping[str, str]) -> AgentsOwn | None:
    thread = headers.get("thread-id")
    if not thread:
        return None
    group = headers.get("session-id")
    if group is None or group in ("", thread):
        return AgentsOwn(thread, "codex")
    above = headers.get("x-codex-parent-thread-id")
    parent = group if above in (None, "", group) else f"{group}:{above}"
    return AgentsOwn(f"{group}:{thread}", "codex", parent)


def _opencode(headers: Mapping[str, str]) -> AgentsOwn | None:
    session = headers.get("x-session-affinity")
    if not session:
        return None
    parent = headers.get("x-parent-session-id")
    return AgentsOwn(f"{parent}:{session}" if parent else session, "opencode", parent or None)


def _conversation(headers: Mapping[str, str]) -> AgentsOwn | None:
    for header, agent in _CONVERSATION_HEADERS:
        if value := headers.get(header):
            return AgentsOwn(value, agent)
    return None


def _weak(body: Mapping[str, object]) -> str | None:
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    rest = (body.get(field) for field in ("previous_response_id", "prompt_cache_key", "user"))
    for value in (conversation, *rest):
        if isinstance(value, str) and value.strip(" "):
            return value
    slot = body.get("id_slot")
    hinted = isinstance(slot, int) and not isinstance(slot, bool) and slot >= 0
    return f"slot-{slot}" if hinted else None


def _by_user_agent(headers: Mapping[str, str]) -> str | None:
    product = headers.get("user-agent", "").lower()
    return next((agent for start, agent in _USER_AGENTS.items() if product.startswith(start)), None)


def _other(parent: str | None, name: str | None) -> str | None:
    """The parent as a valid name; a session is not its own."""
    found = _fitting(parent) if parent and parent.strip(" ") else None
    return None if found == name else found


def _joined(session: str, part: str | None) -> str:
    return f"{session}:{part}" if part else session


def _fitting(name: str) -> str:
    """`name` if it is a valid one, else a valid one that stands for it and for no other."""
    clean = "".join("_" if _forbidden(char) else char for char in name.strip(" "))
    if clean == name.strip(" ") and 0 < len(clean) <= NAME_LENGTH:
        return clean
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{clean[: NAME_LENGTH - 13]}~{digest}"


def _forbidden(char: str) -> bool:
    return char == "/" or unicodedata.category(char) in _FORBIDDEN
