"""A request belongs to the first session it names, in the contract's order."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.identity import NAME_LENGTH, identify, session_name
from sessiond.errors import InvalidRequest
from sessiond.sessions.turn import SessionRef
from tests.api.scripted import ScriptedTurns

CLAUDE = {"x-claude-code-session-id": "c1"}
LEGACY = "user_ab_account__session_0f3c-11"
# Each sign alone, the first of the contract first, and the name it gives.
SIGNS: list[tuple[dict[str, object], dict[str, str], str]] = [
    ({"session_id": "body"}, {}, "body"),
    ({}, {"x-session-id": "header"}, "header"),
    ({}, CLAUDE, "c1"),
    ({"metadata": {"user_id": json.dumps({"session_id": "c2"})}}, {}, "c2"),
    ({}, {"thread-id": "t1", "session-id": "g1"}, "g1:t1"),
    ({}, {"x-session-affinity": "ses_1"}, "ses_1"),
    ({}, {"x-openwebui-chat-id": "w1"}, "w1"),
    ({}, {"x-litellm-session-id": "l1"}, "l1"),
    ({}, {"x-conversation-id": "v1"}, "v1"),
    ({"conversation": {"id": "conv_1"}}, {}, "conv_1"),
    ({"previous_response_id": "resp_1"}, {}, "resp_1"),
    ({"prompt_cache_key": "key"}, {}, "key"),
    ({"user": "someone"}, {}, "someone"),
    ({"id_slot": 3}, {}, "slot-3"),
]


@pytest.mark.parametrize("first", range(len(SIGNS)))
def test_an_earlier_sign_wins_over_all_later_ones(first: int) -> None:
    body: dict[str, object] = {}
    headers: dict[str, str] = {}
    for sign_body, sign_headers, _ in SIGNS[first:]:
        body.update(sign_body)
        headers.update(sign_headers)
    assert identify(None, body, headers).name == SIGNS[first][2]


@pytest.mark.parametrize(("body", "headers", "name"), SIGNS)
def test_each_sign_alone_names_the_session_under_auto_policy(
    body: dict[str, object], headers: dict[str, str], name: str
) -> None:
    ref = identify(None, body, headers)
    assert (ref.name, ref.named) == (name, False)


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, SessionRef("work", True, None)),
        ({"x-session-id": "other"}, {"session_id": "o2"}, SessionRef("work", True, None)),
        ({}, {"user": "u"}, SessionRef("work", True, None)),
        (CLAUDE, {}, SessionRef("work:c1", False, "claude")),
        (
            {**CLAUDE, "x-claude-code-agent-id": "a7"},
            {},
            SessionRef("work:c1:a7", False, "claude", "work:c1"),
        ),
        ({}, {"metadata": {"user_id": LEGACY}}, SessionRef("work:0f3c-11", False, "claude")),
        ({"thread-id": "t", "session-id": "t"}, {}, SessionRef("work:t", False, "codex")),
        (
            {"x-session-affinity": "s", "x-session-id": "s"},
            {},
            SessionRef("work:s", False, "opencode"),
        ),
        ({"x-openwebui-chat-id": "w"}, {}, SessionRef("work:w", False, "openwebui")),
        ({"x-conversation-id": "v"}, {}, SessionRef("work:v", False, None)),
    ],
)
def test_a_path_is_a_persons_name_unless_the_agent_has_an_id_of_its_own(
    headers: dict[str, str], body: dict[str, object], expected: SessionRef
) -> None:
    assert identify("work", body, headers) == expected


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"thread-id": "t", "session-id": "t"}, "t"),
        ({"thread-id": "t"}, "t"),
        ({"thread-id": "sub", "session-id": "t"}, "t:sub"),
        ({"x-session-affinity": "s", "x-parent-session-id": "p"}, "p:s"),
        ({**CLAUDE, "x-claude-code-agent-id": "a"}, "c1:a"),
    ],
)
def test_sub_agents_are_grouped_with_their_root(headers: dict[str, str], name: str) -> None:
    assert identify(None, {}, headers).name == name


AGENT = {**CLAUDE, "x-claude-code-agent-id": "a"}
CODEX = {"thread-id": "sub", "session-id": "t"}
OPENCODE = {"x-session-affinity": "s", "x-parent-session-id": "p"}


@pytest.mark.parametrize(
    ("headers", "name", "parent"),
    [
        (CLAUDE, "c1", None),
        (AGENT, "c1:a", "c1"),
        ({**AGENT, "x-claude-code-parent-agent-id": "b"}, "c1:a", "c1:b"),
        ({**AGENT, "x-claude-code-parent-agent-id": "a"}, "c1:a", None),
        ({"thread-id": "t", "session-id": "t"}, "t", None),
        (CODEX, "t:sub", "t"),
        ({**CODEX, "x-codex-parent-thread-id": "t"}, "t:sub", "t"),
        ({**CODEX, "x-codex-parent-thread-id": "other"}, "t:sub", "t:other"),
        ({"x-session-affinity": "s"}, "s", None),
        (OPENCODE, "p:s", "p"),
        ({**OPENCODE, "x-session-id": "s"}, "s", "p"),
        ({"x-session-id": "s", "x-parent-session-id": " "}, "s", None),
        ({"x-session-id": "s", "x-parent-session-id": "s"}, "s", None),
        ({"x-session-id": "s", "x-parent-session-id": "a/b"}, "s", "a_b~c14cddc033f6"),
        ({"x-conversation-id": "v", "x-parent-session-id": "p"}, "v", None),
    ],
)
def test_a_sub_agent_names_whose_it_is(
    headers: dict[str, str], name: str, parent: str | None
) -> None:
    ref = identify(None, {}, headers)
    assert (ref.name, ref.parent) == (name, parent)


@pytest.mark.parametrize(
    ("headers", "name", "parent"),
    [
        (AGENT, "work:c1:a", "work:c1"),
        (CODEX, "work:t:sub", "work:t"),
        (OPENCODE, "work:p:s", "work:p"),
        ({"x-session-id": "s", "x-parent-session-id": "p"}, "work", None),
    ],
)
def test_below_a_path_the_parent_is_below_it_too(
    headers: dict[str, str], name: str, parent: str | None
) -> None:
    ref = identify("work", {}, headers)
    assert (ref.name, ref.parent) == (name, parent)


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_parents_id_makes_a_valid_name(agents_id: str, parents: str) -> None:
    headers = {"x-session-affinity": agents_id, "x-parent-session-id": parents}
    ref = identify("p", {}, headers)
    assert ref.parent is None or session_name(ref.parent, param="name") == ref.parent


def test_without_a_sign_the_request_names_no_session() -> None:
    body: dict[str, object] = {"id_slot": -1, "metadata": {"user_id": 5}, "user": " "}
    headers = {"user-agent": "QwenCode/0.15 (linux)", "x-session-id": ""}
    assert identify(None, body, headers) == SessionRef(None, False, "qwen")


@pytest.mark.parametrize("bad", ["", "  ", "a/b", "a\nb", "a\x00", "\x85", "\u2028", "x" * 201, 7])
@pytest.mark.parametrize("param", ["session", "session_id", "X-Session-Id"])
def test_a_bad_name_where_a_person_writes_it_is_refused_by_field(bad: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        if param == "session":
            session_name(bad, param=param)
        elif param == "session_id":
            identify(None, {"session_id": bad}, {})
        elif isinstance(bad, str) and bad:
            identify(None, {}, {"x-session-id": bad})
        else:
            session_name(bad, param=param)
    assert refusal.value.param == param


@given(st.text(min_size=1))
def test_any_agents_id_makes_a_valid_name(agents_id: str) -> None:
    name = identify("p", {}, {"thread-id": agents_id}).name
    assert session_name(name, param="name") == name


@given(st.text(min_size=NAME_LENGTH), st.text(min_size=NAME_LENGTH))
def test_ids_that_had_to_be_changed_do_not_meet(one: str, other: str) -> None:
    names = {identify(None, {"user": user}, {}).name for user in (one, other)}
    same = one.strip(" ") == other.strip(" ")
    assert len(names) == 1 if same else len(names) == 2 or None in names


@pytest.mark.parametrize("name", ["büro", "日本 語", "a:b", "..", "%2e", "CON", "🙂"])
def test_names_pass_path_header_and_back_unchanged(
    name: str, client: httpx.Client, turns: ScriptedTurns
) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    quoted = httpx.URL("/").copy_with(path=f"/s/{name}/v1/chat/completions").raw_path.decode()
    if name == "..":
        quoted = "/s/%2E%2E/v1/chat/completions"
    if name == "%2e":
        quoted = "/s/%252e/v1/chat/completions"
    by_path = client.post(quoted, json=chat)
    by_header = client.post(
        "/v1/chat/completions", json=chat, headers={b"X-Session-Id": name.encode()}
    )
    for response in (by_path, by_header):
        assert response.status_code == 200, response.text
        raw = dict(response.headers.raw)
        assert raw[b"x-session-id"].decode() == name
        assert response.json()["sessiond"]["session"] == name
    assert [request.session for request in turns.requests] == [
        SessionRef(name, True),
        SessionRef(name, False),
    ]
