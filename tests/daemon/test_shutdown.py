"""SIGTERM: everything is saved, open replies end properly, and the figures are told."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.daemon import Daemon, events
from tests.daemon.fake_daemon import FakeDaemon, Supervisor, until

Json = dict[str, Any]
SESSIONS = 20
ENDLESS: Json = {"max_tokens": 50_000, "ignore_eos": True}
FIGURES = re.compile(
    r"Stopped: (\d+) sessions saved, (\d+) bytes written, \d+ ms;"
    r" (\d+) replies ended by themselves, (\d+) were cut, (\d+) had not begun\."
)


@contextmanager
def daemon_of(folder: Path, *options: str) -> Iterator[tuple[FakeDaemon, Supervisor]]:
    """`folder/held`, while it exists, keeps state from being written."""
    daemon = FakeDaemon(folder / "state", ["--fake-hold", f"{folder}/held", *options])
    peer = Supervisor(folder / "notify")
    daemon.variables = peer.variables
    try:
        with daemon:
            yield daemon, peer
    finally:
        peer.close()


def say(daemon: Daemon, session: str, messages: list[Json], text: str) -> Json:
    """The report, and where the conversation stood before in tokens."""
    messages.append({"role": "user", "content": f"{session}: {text}"})
    answer = daemon.chat(session, messages, max_tokens=6, temperature=0)
    messages.append({"role": "assistant", "content": answer.text})
    return answer.report | {"tokens": answer.usage["total_tokens"], "prompt": answer.prompt_tokens}


def figures(daemon: FakeDaemon) -> list[int]:
    """Sessions saved, bytes written, replies ended, cut, not begun."""
    found = FIGURES.search(daemon.wait_for_log("Stopped:"))
    assert found
    return [int(number) for number in found.groups()]


class Streams:
    """Replies that are read in threads until they end."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self._url = daemon.url
        self._pool = ThreadPoolExecutor(16)

    def open(self, path: str, **body: Any) -> Future[httpx.Response]:
        return self._pool.submit(self._read, path, body)

    def _read(self, path: str, body: Json) -> httpx.Response:
        with httpx.Client(base_url=self._url, timeout=120.0, trust_env=False) as http:
            return http.post(path, json=body)


def ending(answer: httpx.Response) -> str:
    """`done`, or the code of the error that a stream ends with."""
    told = list(events([answer.content]))
    if "error" in told[-1]:
        assert b"[DONE]" not in answer.content
        code: str = told[-1]["error"]["code"]
        return code
    assert answer.content.rstrip().endswith(b"[DONE]")
    return "done"


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_twenty_dirty_sessions_and_five_open_streams(tmp_path: Path, kind: str) -> None:
    """
    1. 20 sessions of two turns, none on disk yet; 5 replies are streamed, 3 of them short.
    2. SIGTERM. 3. A start; each session goes on.
    Result: exit code 0; all is saved; every stream ends by itself or with the error, and the
    figures say how many; each session evaluates its new tokens and one more.
    """
    (tmp_path / "held").touch()
    options = ["--fake-memory", kind, "--max-active", "26", "--fake-latency", "1"]
    with daemon_of(tmp_path, *options, "--server-drain", "1s") as (daemon, peer):
        talks: dict[str, list[Json]] = {f"s{n}": [] for n in range(SESSIONS)}
        for name, messages in talks.items():
            for text in ("One. " * 60, "Two."):
                say(daemon, name, messages, text)
        streams = Streams(daemon)
        bodies: list[Json] = [{"max_tokens": 100, "ignore_eos": True}] * 3 + [ENDLESS] * 2
        replies = [
            streams.open(f"/s/open{n}/v1/completions", prompt="x", stream=True, **body)
            for n, body in enumerate(bodies)
        ]
        daemon.wait_for_health("running", 5)
        daemon.signal(signal.SIGTERM)
        peer.hear("STOPPING=1")
        (tmp_path / "held").unlink()
        endings = [ending(reply.result()) for reply in replies]
        assert daemon.wait() == 0
        assert set(endings[:3]) <= {"done", "unavailable"}
        assert endings[3:] == ["unavailable"] * 2
        saved, written, ended, cut, refused = figures(daemon)
        assert (saved, ended, cut, refused) == (
            SESSIONS + 5,
            endings.count("done"),
            endings.count("unavailable"),
            0,
        )
        assert written > 0
        daemon.start()
        for name, messages in talks.items():
            before = daemon.session(name)
            after = say(daemon, name, messages, "Three.")
            assert after["source"] == "disk"
            assert after["miss"] is None
            assert 0 < after["prefilled_tokens"] <= after["prompt"] - before["tokens"] + 1
        turns = daemon.http.get("/v1/sessions/open4/turns").json()["turns"]
        assert [turn["finish_reason"] for turn in turns] == ["cancelled"]
        assert turns[0]["completion_tokens"] > 0


def test_a_reply_that_is_cut_looks_neither_complete_nor_too_long(tmp_path: Path) -> None:
    """In every API, whole and streamed: an error, 503 `unavailable` where there is a status."""
    chat: Json = {"messages": [{"role": "user", "content": "Hi"}], **ENDLESS}
    response: Json = {"input": "Hi", "max_output_tokens": 50_000, "ignore_eos": True}
    asked: dict[str, Json] = {
        "chat/completions": chat,
        "completions": {"prompt": "Hi", **ENDLESS},
        "messages": chat,
        "responses": response,
    }
    options = ["--max-active", "8", "--fake-latency", "2", "--server-drain", "0s"]
    with daemon_of(tmp_path, *options) as (daemon, _):
        streams = Streams(daemon)
        streamed = {
            path: streams.open(f"/s/a-{n}/v1/{path}", stream=True, **body)
            for n, (path, body) in enumerate(asked.items())
        }
        whole = {
            path: streams.open(f"/s/b-{n}/v1/{path}", **body)
            for n, (path, body) in enumerate(asked.items())
        }
        daemon.wait_for_health("running", 8)
        until(lambda: daemon.metric("sessiond_evaluated_tokens_total") > 400, "tokens")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        for answer in (each.result() for each in whole.values()):
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert answer.json()["error"]["code"] == "unavailable"
            assert "sessiond is stopping" in answer.json()["error"]["message"]
        last = {path: last_event(each.result()) for path, each in streamed.items()}
        assert last["chat/completions"]["error"]["code"] == "unavailable"
        assert last["completions"]["error"]["code"] == "unavailable"
        assert (last["messages"]["type"], last["messages"]["error"]["type"]) == (
            "error",
            "overloaded_error",
        )
        assert last["responses"]["type"] == "response.failed"
        assert last["responses"]["response"]["error"]["type"] == "unavailable"
        for told in last.values():
            assert "sessiond is stopping" in json.dumps(told)
        assert figures(daemon)[2:] == [0, 8, 0]


def last_event(answer: httpx.Response) -> Json:
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] != "data: [DONE]"
    assert not any('"finish_reason":"length"' in line for line in lines)
    last: Json = json.loads(lines[-1].removeprefix("data: "))
    return last


def test_what_waits_or_comes_while_it_stops_is_turned_away(tmp_path: Path) -> None:
    """
    1. A reply runs, another waits for its place. 2. SIGTERM: the reply may go on for long.
    Result: who waits is told at once, who comes too, the reply goes on; a second signal ends it.
    """
    options = ["--max-active", "1", "--fake-latency", "2", "--server-drain", "1h"]
    with daemon_of(tmp_path, *options) as (daemon, peer):
        streams = Streams(daemon)
        running = streams.open("/s/a/v1/completions", prompt="x", stream=True, **ENDLESS)
        daemon.wait_for_health("running", 1)
        waiting = streams.open("/s/b/v1/completions", prompt="x", **ENDLESS)
        daemon.wait_for_health("queued", 1)
        daemon.signal(signal.SIGTERM)
        peer.hear("STOPPING=1")
        late = daemon.http.post("/s/c/v1/completions", json={"prompt": "x"})
        for answer in (late, waiting.result()):
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert answer.json()["error"]["code"] == "unavailable"
        assert not running.done()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 128 + signal.SIGTERM
        with pytest.raises(httpx.HTTPError):
            running.result()


def test_a_second_signal_while_it_saves_leaves_what_can_be_gone_on_with(tmp_path: Path) -> None:
    held, messages = tmp_path / "held", list[Json]()
    held.touch()
    with daemon_of(tmp_path) as (daemon, peer):
        said = [say(daemon, "talk", messages, text) for text in ("One.", "Two.")]
        assert all(report["saved"] for report in said)
        daemon.signal(signal.SIGTERM)
        peer.hear("STOPPING=1")
        peer.hear("EXTEND_TIMEOUT_USEC=")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 128 + signal.SIGTERM
        held.unlink()
        daemon.start()
        kept = daemon.http.get("/v1/sessions/talk/transcript").json()["messages"]
        assert [m["content"] for m in kept] == [m["content"] for m in messages]
        after = say(daemon, "talk", messages, "Three.")
        assert (after["turn"], after["source"]) == (3, "ledger")
        assert daemon.stop() == 0


def test_a_disk_that_is_full_costs_prefill_and_not_the_exit_code(tmp_path: Path) -> None:
    full, messages = tmp_path / "full", list[Json]()
    full.touch()
    with daemon_of(tmp_path, "--fake-full", str(full)) as (daemon, _):
        say(daemon, "talk", messages, "One.")
        assert daemon.stop() == 0
        assert figures(daemon)[:2] == [0, 0]
        daemon.wait_for_log("The state of 1 sessions is not saved")
        full.unlink()
        daemon.start()
        assert say(daemon, "talk", messages, "Two.")["miss"]["cause"] == "not_saved"


def test_turns_that_never_came_into_the_ledger_are_told_by_the_exit_code(tmp_path: Path) -> None:
    with daemon_of(tmp_path, "--fake-unsaved") as (daemon, _):
        assert say(daemon, "talk", [], "One.")["saved"] is False
        assert daemon.stop() == 1
        daemon.wait_for_log("1 turns could not be written and are lost")
