from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, failure, health, reply, resumed
from tests.cli.terminal import Terminal

CHAT = "POST /s/billing/v1/chat/completions"
OLD = [
    {"turn": 1, "role": "user", "content": "hi"},
    {"turn": 1, "role": "assistant", "content": "yo"},
]
SENT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


@pytest.fixture(autouse=True)
def ready(daemon: Daemon) -> None:
    daemon.answers |= {
        "GET /health": health(),
        "POST /v1/sessions/billing/resume": resumed(),
        "GET /v1/sessions/billing/transcript": {"messages": OLD},
    }
    daemon.stream = reply("Hel", "lo")


@pytest.fixture
def chat(cli: Cli) -> Iterator[Terminal]:
    with cli.terminal("resume", "billing", "--chat") as terminal:
        terminal.expect("> ")
        yield terminal


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def messages(daemon: Daemon) -> list[object]:
    return [body["messages"] for body in daemon.asked(CHAT) if body]


def test_it_continues_the_main_line_with_its_transcript(daemon: Daemon, chat: Terminal) -> None:
    chat.type("one\n")
    chat.expect("Hello")
    chat.expect("turn 41 · resident · 41,133 reused, 21 read · first token in 85 ms")
    chat.expect("> ")
    chat.type("two\n")
    chat.expect("Hello")
    chat.expect("> ")
    chat.type("\x04")
    assert chat.finish() == 0
    first = [*SENT, said("user", "one")]
    second = [*first, said("assistant", "Hello"), said("user", "two")]
    assert messages(daemon) == [first, second]
    body = daemon.asked(CHAT)[0]
    assert body is not None
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_ctrl_c_stops_a_reply_and_keeps_what_was_said(daemon: Daemon, chat: Terminal) -> None:
    daemon.stream, daemon.hang = reply("Hel", "lo")[:2], True
    chat.type("one\n")
    chat.expect("Hel")
    chat.process.send_signal(signal.SIGINT)
    chat.expect("stopped")
    assert daemon.hung_up.wait(10), "the daemon was not told"
    daemon.stream, daemon.hang = reply("Bye"), False
    chat.expect("> ")
    chat.type("two\n")
    chat.expect("Bye")
    assert messages(daemon)[1] == [
        *SENT,
        said("user", "one"),
        said("assistant", "Hel"),
        said("user", "two"),
    ]


def test_a_reply_stopped_before_its_first_word_never_happened(
    daemon: Daemon, chat: Terminal
) -> None:
    daemon.stream, daemon.hang = [b": waiting\n\n"], True
    chat.type("one\n")
    while not daemon.asked(CHAT):
        chat.expect("", patience=1)
    chat.process.send_signal(signal.SIGINT)
    chat.expect("stopped")
    daemon.stream, daemon.hang = reply("Bye"), False
    chat.expect("> ")
    chat.type("two\n")
    chat.expect("Bye")
    assert messages(daemon)[1] == [*SENT, said("user", "two")]


def test_ctrl_c_at_the_prompt_leaves_with_130(chat: Terminal) -> None:
    chat.interrupt()
    assert chat.finish() == 130
    assert "Traceback" not in chat.screen


def test_a_refusal_is_shown_and_the_talk_goes_on(daemon: Daemon, chat: Terminal) -> None:
    stream, daemon.stream = daemon.stream, []
    daemon.answers[CHAT] = (400, failure("context_edit_rejected", "Not sent: that changed."))
    chat.type("one\n")
    chat.expect("Not sent: that changed.")
    daemon.stream = stream
    chat.expect("> ")
    chat.type("two\n")
    chat.expect("Hello")
    assert messages(daemon)[1] == [*SENT, said("user", "two")]


def test_in_a_pipe_stdout_is_the_replies_alone(cli: Cli, daemon: Daemon) -> None:
    ran = cli("resume", "billing", "--chat", stdin="one\n\ntwo\n")
    assert (ran.code, ran.out) == (0, "Hello\nHello\n")
    assert "41,133 tokens ready, disk, in 412 ms (390 ms predicted)" in ran.err
    assert ran.err.count("41,133 reused, 21 read") == 2
    assert "\x1b" not in ran.err


def test_in_a_pipe_an_error_in_the_stream_ends_it(cli: Cli, daemon: Daemon) -> None:
    daemon.stream = [b'data: {"error": {"message": "the engine failed"}}\n\n']
    ran = cli("resume", "billing", "--chat", stdin="one\ntwo\n")
    assert ran.code == 1
    assert "the engine failed" in ran.err
    assert len(daemon.asked(CHAT)) == 1


def test_what_went_wrong_with_a_turn_is_in_its_line(cli: Cli, daemon: Daemon) -> None:
    miss = {"cause": "evicted", "message": "the saved state was removed for space", "tokens": 900}
    daemon.stream = reply("ok", miss=miss, saved=False)
    err = cli("resume", "billing", "--chat", stdin="one\n").err
    assert "the saved state was removed for space (900 tokens)" in err
    assert "not saved yet" in err


def test_a_reply_cannot_steer_the_terminal(cli: Cli, daemon: Daemon) -> None:
    daemon.stream = reply("a\x1b]0;owned\x07b\n\tc")
    assert cli("resume", "billing", "--chat", stdin="one\n").out == "a]0;ownedb\n\tc\n"
