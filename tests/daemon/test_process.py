"""The daemon as a user has it: a process, real sockets, real signals, real files."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from scripts.daemon import Daemon, DaemonFailed, state_files

FRONT = {"role": "system", "content": "You are brief. " * 30}
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture
def daemon(smol_path: Path, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(
        smol_path, tmp_path / "state", ["--max-active", "2", "--model-threads", "1"]
    ) as daemon:
        yield daemon


def talk(daemon: Daemon, messages: list[dict[str, str]], text: str) -> dict[str, object]:
    messages.append({"role": "user", "content": text})
    answer = daemon.chat("talk", messages, **GREEDY)
    messages.append({"role": "assistant", "content": answer.text})
    return answer.report


def test_a_talk_goes_on_after_sigterm_and_after_a_kill(daemon: Daemon) -> None:
    """
    1. Two turns; SIGTERM; start; a turn.
    2. Saved; kill -9; start; a turn.
    Result: exit code 0, both turns come from disk and evaluate their new tokens + 1.
    """
    messages: list[dict[str, str]] = [dict(FRONT)]
    talk(daemon, messages, "One.")
    warm = talk(daemon, messages, "Two.")
    assert daemon.stop() == 0
    daemon.start()
    after_stop = talk(daemon, messages, "Three.")
    daemon.wait_until_saved()
    daemon.kill()
    daemon.start()
    after_kill = talk(daemon, messages, "Four.")
    for report in (after_stop, after_kill):
        assert report["source"] == "disk"
        assert report["saved"] is True
        assert report["miss"] is None
        assert report["prefilled_tokens"] <= int(str(warm["prefilled_tokens"])) + 2
    transcript = daemon.http.get("/v1/sessions/talk/transcript").json()["messages"]
    assert [m["content"] for m in transcript] == [m["content"] for m in messages]


def test_kills_at_any_moment_lose_no_acknowledged_turn(daemon: Daemon) -> None:
    """Kill -9 right after the last chunk of a turn, four times.

    Result: every turn that was acknowledged is in the ledger.
    """
    messages: list[dict[str, str]] = [dict(FRONT)]
    for number in range(4):
        report = talk(daemon, messages, f"Turn {number}.")
        daemon.kill()
        daemon.start()
        assert report["saved"] is True
        turns = daemon.http.get("/v1/sessions/talk/turns").json()["turns"]
        assert [turn["turn"] for turn in turns] == list(range(1, number + 2))


def test_the_real_openai_client_streams_and_reads_usage(daemon: Daemon) -> None:
    client = openai.OpenAI(base_url=f"{daemon.url}/s/talk/v1", api_key="none")
    messages = [FRONT, {"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="any", messages=messages, **GREEDY)  # type: ignore[call-overload]
    streamed = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model="any",
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in streamed if c.choices)
    assert text
    assert whole.choices[0].message.content
    usage = streamed[-1].usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    assert client.models.list().data[0].id == whole.model


def test_state_is_written_under_uninterrupted_load(hybrid_path: Path, tmp_path: Path) -> None:
    """A prompt of many times the tokens at which writing begins, then kill -9 at the first token.

    Result: the turn was not acknowledged, but most of its prompt had been written meanwhile. How
    much is left to evaluate depends on how fast this machine writes beside a prefill.
    """
    words = " ".join(str(number) for number in range(2200))
    body = {"prompt": words, "max_tokens": 4, "temperature": 0}
    with Daemon(hybrid_path, tmp_path / "state", ["--model-threads", "1"]) as daemon:
        with daemon.http.stream(
            "POST", "/s/long/v1/completions", json={**body, "stream": True}
        ) as stream:
            next(line for line in stream.iter_lines() if '"text":' in line)
            daemon.kill()
        daemon.start()
        answer = daemon.complete("long", words, max_tokens=4, temperature=0)
        assert answer.prompt_tokens > 4 * 2048
        assert answer.report["source"] == "disk"
        assert answer.evaluated < answer.prompt_tokens / 2


@pytest.mark.parametrize("damage", ["deleted", "flipped", "truncated"])
def test_damaged_files_cost_prefill_and_say_why(daemon: Daemon, damage: str) -> None:
    messages: list[dict[str, str]] = [dict(FRONT)]
    talk(daemon, messages, "One.")
    daemon.stop()
    files = state_files(daemon.state)
    assert files
    for file in files:
        harm(file, damage)
    daemon.start()
    report = talk(daemon, messages, "Two.")
    assert report["miss"]["cause"] == "damaged"  # type: ignore[index]
    assert report["cached_tokens"] == 0
    again = talk(daemon, messages, "Three.")
    assert again["miss"] is None


def harm(file: Path, damage: str) -> None:
    content = bytearray(file.read_bytes())
    if damage == "deleted":
        file.unlink()
    elif damage == "flipped":
        content[len(content) // 2] ^= 0x10
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--model-type-k", "q8_0"], "settings_changed"),
        (["--n-ctx", "4096"], None),
    ],
)
def test_other_settings_are_told_and_another_context_size_is_no_miss(
    daemon: Daemon, options: list[str], cause: str | None
) -> None:
    messages: list[dict[str, str]] = [dict(FRONT)]
    talk(daemon, messages, "One.")
    daemon.stop()
    with Daemon(daemon.model, daemon.state, options) as changed:
        report = talk(changed, messages, "Two.")
        miss = report["miss"]
        assert (miss and miss["cause"]) == cause  # type: ignore[index]


def test_another_model_file_is_told_and_its_state_comes_back(
    daemon: Daemon, hybrid_path: Path
) -> None:
    """The hybrid has SmolLM2's vocabulary, so only the fingerprint can tell them apart."""
    messages: list[dict[str, str]] = [dict(FRONT)]
    talk(daemon, messages, "One.")
    daemon.stop()
    with Daemon(hybrid_path, daemon.state) as other:
        report = talk(other, list(messages), "Two.")
        assert report["miss"]["cause"] == "model_changed"  # type: ignore[index]
    daemon.start()
    report = talk(daemon, messages, "Something else.")
    assert report["miss"] is None
    assert report["source"] == "disk"


BAD = {
    "empty messages": ({"messages": []}, "messages"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
    ),
    "negative max_tokens": (
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": -1},
        "max_tokens",
    ),
    "too long": ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_field_and_changes_nothing(daemon: Daemon, case: str) -> None:
    talk(daemon, [dict(FRONT)], "One.")
    before = daemon.session("talk")
    body, param = BAD[case]
    answer = daemon.http.post("/s/talk/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert daemon.session("talk") == before


def test_bad_names_and_bad_json_are_4xx(daemon: Daemon) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    bad = daemon.http.post("/s/a%00b/v1/chat/completions", json=body)
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "session")
    broken = daemon.http.post(
        "/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert broken.status_code == 400
    assert daemon.http.get("/v1/sessions").json()["sessions"] == []


def test_quantised_values_without_flash_attention_refuse_to_start(
    smol_path: Path, tmp_path: Path
) -> None:
    options = ["--model-type-v", "q8_0", "--no-model-flash-attn"]
    with pytest.raises(DaemonFailed, match=r"model\.type_v"):
        Daemon(smol_path, tmp_path / "state", options).start()


def test_a_file_that_is_no_model_refuses_to_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(4096))
    with pytest.raises(DaemonFailed, match="cannot load"):
        Daemon(broken, tmp_path / "state").start()


def test_a_client_that_leaves_leaves_a_cancelled_turn(daemon: Daemon) -> None:
    body = {
        "messages": [{"role": "user", "content": "Count to a thousand."}],
        "stream": True,
        "max_tokens": 2000,
        "ignore_eos": True,
    }
    with daemon.http.stream("POST", "/s/gone/v1/chat/completions", json=body) as stream:
        seen = 0
        for line in stream.iter_lines():
            seen += '"content":"' in line
            if seen > 5:
                break
    after = daemon.chat("other", [{"role": "user", "content": "Hi"}], **GREEDY)
    assert after.report["saved"] is True
    (turn,) = daemon.http.get("/v1/sessions/gone/turns").json()["turns"]
    assert turn["finish_reason"] == "cancelled"
    assert 5 <= turn["completion_tokens"] < 1000


def test_the_commands_work_against_it(daemon: Daemon) -> None:
    talk(daemon, [dict(FRONT)], "One.")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sessiond", *words, "--url", daemon.url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "talk" in run("list").stdout
    listed = json.loads(run("list", "--json").stdout)["sessions"]
    assert listed[0]["state"] == "resident"
    assert run("park", "talk").returncode == 0
    resumed = json.loads(run("resume", "talk", "--json").stdout)
    assert (resumed["source"], resumed["prefilled_tokens"]) == ("disk", 0)
    assert run("verify").returncode == 0
    assert run("show", "nobody").returncode == 4
    assert run("rm", "talk", "--yes").returncode == 0
    assert json.loads(run("list", "--json").stdout)["sessions"] == []
    assert state_files(daemon.state) == []


def test_deleting_the_cache_costs_prefill_only(daemon: Daemon) -> None:
    messages: list[dict[str, str]] = [dict(FRONT)]
    talk(daemon, messages, "One.")
    daemon.stop()
    shutil.rmtree(daemon.state / "cache")
    (daemon.state / "index.sqlite").unlink()
    daemon.start()
    report = talk(daemon, messages, "Two.")
    assert report["source"] == "ledger"
    assert report["saved"] is True


def test_a_stop_while_it_streams_saves_the_turn(daemon: Daemon) -> None:
    """SIGTERM with an open stream that would go on for minutes.

    Result: the turn is cut and committed, the exit code is 0.
    """
    body = {"prompt": "A", "stream": True, "max_tokens": 6000, "ignore_eos": True}
    process = daemon._running()
    with httpx.stream("POST", f"{daemon.url}/s/cut/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        for _ in lines:
            pass
    assert process.wait(60) == 0
    daemon._forget()
    daemon.start()
    (turn,) = daemon.http.get("/v1/sessions/cut/turns").json()["turns"]
    assert turn["completion_tokens"] > 0
