"""Asks an agent the questions of the proof, without a person."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence

from scripts.agents.agent import Agent, AgentFailed
from scripts.agents.place import Place

ANSWER_TIMEOUT_S = 600
_SAID = 2_000


Before = Callable[[int], None]


def talk(agent: Agent, place: Place, questions: Sequence[str], model: str, before: Before) -> None:
    """One session of all `questions`. `before` is called with the number of each, from 1 on.

    Raises AgentFailed.
    """
    if agent.spoken:
        _speak(agent, place, questions, model, before)
        return
    for number, question in enumerate(questions):
        before(number + 1)
        command = [agent.program, *agent.arguments(number, question, model)]
        try:
            done = subprocess.run(
                command,
                cwd=place.work,
                env=dict(place.variables),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise AgentFailed(f"{agent.name}: no answer in {ANSWER_TIMEOUT_S} s.") from error
        if done.returncode:
            said = f"{done.stdout}\n{done.stderr}"[-_SAID:]
            raise AgentFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")


def _speak(
    agent: Agent, place: Place, questions: Sequence[str], model: str, before: Before
) -> None:
    """Through one process: a question is a line, and the line of a result ends its answer."""
    log = place.home / "said.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [agent.program, *agent.arguments(0, "", model)],
            cwd=place.work,
            env=dict(place.variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            errors="replace",
        )
    ender = threading.Timer(ANSWER_TIMEOUT_S, process.kill)
    ender.start()
    try:
        if process.stdin is None or process.stdout is None:
            raise AgentFailed(f"{agent.name} has no pipes.")
        for number, question in enumerate(questions, 1):
            before(number)
            process.stdin.write(_line(question))
            process.stdin.flush()
            if not _has_result(process.stdout):
                raise AgentFailed(f"{agent.name} gave no result:\n{log.read_text()[-_SAID:]}")
        process.stdin.close()
        process.wait(ANSWER_TIMEOUT_S)
    finally:
        ender.cancel()
        process.kill()
        process.wait()


def _line(question: str) -> str:
    message = {"role": "user", "content": question}
    asked = {"type": "user", "message": message, "session_id": "", "parent_tool_use_id": None}
    return json.dumps(asked) + "\n"


def _has_result(lines: Iterable[str]) -> bool:
    return any(json.loads(line).get("type") == "result" for line in lines if line.startswith("{"))
