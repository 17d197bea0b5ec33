"""What the log looks like, and what is never in it."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.daemon import Daemon
from sessiond import logs
from sessiond.config.settings import Log
from tests.cli.terminal import terminal

ROOT = Path(__file__).parents[1]
logger = logging.getLogger("sessiond.test")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\w+) +(.*)")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    known = [logging.getLogger(name) for name in ("", "sessiond", "llama_cpp", "uvicorn")]
    levels, handlers = [each.level for each in known], known[0].handlers[:]
    yield
    known[0].handlers[:] = handlers
    for each, level in zip(known, levels, strict=True):
        each.setLevel(level)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_people_get_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Log())
    logger.info("It is %s.", "warm", extra={"tokens": 7, "saved": True, "miss": "none"})
    logger.debug("Nobody sees this.")
    (line,) = told(capsys)
    found = LINE.fullmatch(line)
    assert found is not None
    assert found.groups() == ("info", "It is warm.  tokens=7 saved=true miss=none")


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Log(format="json"))
    logger.warning("It is %s.", "wärm", extra={"tokens": 7})
    try:
        raise ValueError("no\nway")
    except ValueError:
        logger.exception("It failed.")
    first, second = map(json.loads, told(capsys))
    assert first.pop("timestamp").endswith("Z")
    level, name = {"level": "warning"}, {"logger": "sessiond.test"}
    assert first == {"event": "It is wärm.", "tokens": 7, **level, **name}
    assert second["exception"].endswith("ValueError: no\nway")


JOURNAL = """
import logging, os, sys
from sessiond import logs
from sessiond.config.settings import Log
stat = os.fstat(2)
os.environ["JOURNAL_STREAM"] = sys.argv[1].format(stat.st_dev, stat.st_ino)
logs.configure(Log(level="debug"))
log = logging.getLogger("sessiond.test")
log.debug("fine")
log.info("turn", extra={"session": "ab12", "ttft_ms": 1.5, "saved": False})
log.warning("a b")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("It failed\\n<0>forged")
"""


def journal(stream: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", JOURNAL, stream],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return ran.stderr.splitlines()


def test_journald_gets_priorities_and_key_value() -> None:
    debug, turn, warning, failed, *trace = journal("{}:{}")
    assert debug == "<7>fine"
    assert turn == "<6>turn  session=ab12 ttft_ms=1.5 saved=false"
    assert warning == "<4>a b"
    assert failed == r"<3>It failed\n<0>forged"
    assert trace[0] == "<3>Traceback (most recent call last):"
    assert trace[-1] == "<3>ZeroDivisionError: division by zero"
    assert all(line.startswith("<3>") for line in trace)


def test_a_journal_of_somebody_else_is_none_of_ours() -> None:
    """systemd leaves JOURNAL_STREAM to children whose stderr is another."""
    assert all(LINE.fullmatch(line) for line in journal("{}:1{}")[:3])


def test_a_message_has_no_second_line_and_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(Log())
    logger.info("one\ntwo\x1b[31m\r", extra={"key": "a\nb"})
    (line,) = told(capsys)
    assert line.endswith(r"one\ntwo\x1b[31m\r  key=a\nb")


def test_the_level_is_that_of_the_settings_and_can_be_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for level, said in {"error": "e", "warning": "we", "info": "iwe", "debug": "diwe"}.items():
        logs.configure(Log(level=level, format="json"))
        for method in ("debug", "info", "warning", "error"):
            getattr(logger, method)(method[0])
        assert "".join(json.loads(line)["event"] for line in told(capsys)) == said


def test_libraries_that_would_quote_clients_are_quiet_at_any_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(Log(level="debug"))
    for name in ("sqlalchemy.engine", "httpcore", "asyncio", "multipart"):
        logging.getLogger(name).info("INSERT INTO turn")
    assert told(capsys) == []
    logging.getLogger("uvicorn.error").info("Started.")
    assert len(told(capsys)) == 1
    logs.configure(Log())
    logging.getLogger("uvicorn.error").info("Started.")
    assert told(capsys) == []
    logging.getLogger("asyncio").warning("Slow.")
    assert "asyncio: Slow." in told(capsys)[0]


BAR = """
import logging, threading, time
from types import SimpleNamespace
from sessiond import logs
from sessiond.config.settings import Log
from sessiond.daemon.console import Console
logs.configure(Log())
console = Console("model.gguf")
console.watch(SimpleNamespace(progressed=lambda share: None))
for share in range(1, 8):
    console.progress(share / 10)
    worker = threading.Thread(target=logging.getLogger("sessiond").info, args=(f"line {share}",))
    worker.start()
    worker.join()
console.close()
print("end", flush=True)
"""


def test_a_progress_bar_and_the_log_are_not_glued_together() -> None:
    """As a terminal shows it: every line of the log begins in the first column."""
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    env.pop("NO_COLOR", None)
    with terminal([sys.executable, "-c", BAR], env) as shown:
        shown.expect("end")
        assert shown.finish() == 0
    assert "Loading model.gguf" in shown.screen
    lines = _as_shown(shown.screen)
    assert [line.split("info")[1].strip() for line in lines if " info " in line] == [
        f"line {share}" for share in range(1, 8)
    ]
    assert all(LINE.match(line) for line in lines if "line " in line)
    assert not any("Loading" in line for line in lines)


def _as_shown(output: str) -> list[str]:
    """What is left on a screen that understands what rich sends."""
    lines, row, column = [""], 0, 0
    for code, character in re.findall(r"\x1b\[([?\d;]*[A-Za-z])|([^\x1b])", output):
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, column
            lines += [""] * (row + 1 - len(lines))
        elif character:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + character + line[column + 1 :]
            column += 1
        elif code.endswith("A"):
            row -= int(code[:-1] or 1)
        elif code.endswith("K"):
            lines[row] = "" if code == "2K" else lines[row][:column]
    return [line.rstrip() for line in lines if line.strip()]


TEMPLATE = """\
{%- if 'BREAK' in messages[-1].content %}{{ raise_exception(messages[-1].content) }}{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{{ tools }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
CANARY = "zqxcanary"
KEY = f"{CANARY}-key"
TOOL = {"name": f"{CANARY}_tool", "description": f"{CANARY} does", "parameters": {"type": "object"}}


def test_log_canary(smol_path: Path, tmp_path: Path) -> None:
    """
    1. A daemon with keys, a template that fails, and a disk that is full after a while.
    2. Turns, side requests, a bad key, bad JSON, a template error, a refusal, an unknown session,
       state that cannot be saved, a turn that cannot; SIGTERM.
    Result: a line for each turn, and nothing that anybody said, was called, or sent as a key.
    """
    (tmp_path / "template").write_text(TEMPLATE)
    (tmp_path / "keys").write_text(f"{KEY}\n")
    options = [
        *("--model-chat-template-file", str(tmp_path / "template")),
        *("--auth-keys-file", str(tmp_path / "keys")),
        *("--sessions-max-rewind-tokens", "0", "--max-active", "2", "--model-threads", "1"),
        *("--log-format", "json", "--n-ctx", "4096"),
    ]
    with Daemon(smol_path, tmp_path / "state", options) as daemon:
        replies = _a_life(daemon)
        daemon.stop()
        log = daemon.log.read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    turns = [line for line in lines if line["event"] == "turn"]
    assert len(turns) == len(replies)
    assert [turn["saved"] for turn in turns] == [True, True, False]
    assert [line["level"] for line in lines if "only in memory" in line["event"]] == ["warning"]
    assert CANARY not in log.lower()
    assert len(lines) == len(log.splitlines())
    for reply in replies:
        pieces = {reply[at : at + 16] for at in range(max(1, len(reply) - 16))}
        assert not [piece for piece in pieces if len(piece) == 16 and piece in log]


def _a_life(daemon: Daemon) -> list[str]:
    http, path = daemon.http, f"/s/{CANARY}-name/v1/chat/completions"
    http.headers.update({"Authorization": f"Bearer {KEY}", f"X-{CANARY}": f"{CANARY} header"})
    said = [{"role": "system", "content": f"It is 10:02. {CANARY} front " * 12}]
    replies = []

    def turn(text: str) -> None:
        said.append({"role": "user", "content": f"{CANARY} {text}"})
        tools = [{"type": "function", "function": TOOL}]
        body = {"messages": said, "tools": tools, "tool_choice": "none", "max_tokens": 24}
        answer = http.post(path, json=body).raise_for_status().json()
        replies.append(answer["choices"][0]["message"]["content"] or "")
        said.append({"role": "assistant", "content": replies[-1]})

    turn("one")
    turn("two")
    question = {"messages": [*said, {"role": "user", "content": f"BREAK {CANARY}"}]}
    wrong = {"Authorization": f"Bearer {CANARY}-guess"}
    clock = {"role": "system", "content": said[0]["content"].replace("10:02", "10:03")}
    tools = [{"type": "function", "function": TOOL}]
    edited = [clock, *said[1:], {"role": "user", "content": f"{CANARY}?"}]
    refusals = [
        http.post(path, json=question, headers=wrong),
        http.post(path, content=f'{{"{CANARY}": ', headers={"Content-Type": "application/json"}),
        http.post(path, json=question),
        http.post(path, json={"messages": edited, "tools": tools, "tool_choice": "none"}),
        http.post(path, json={"messages": said, f"{CANARY}": 1, "temperature": f"{CANARY}"}),
        http.get(f"/v1/sessions/{CANARY}-nobody"),
        http.get("/health", headers={"Host": f"{CANARY}.example"}),
    ]
    assert [answer.status_code for answer in refusals[:6]] == [401, 400, 400, 400, 400, 404]
    full = daemon.log.stat().st_size + 8192
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    turn("three")
    resource.prlimit(
        daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    return replies
