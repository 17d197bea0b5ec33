"""Real agents: how they are told of the daemon here, what they do in `make proof-agents`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.agents import npm, talker
from scripts.agents.agent import Agent, AgentFailed
from scripts.agents.finding import Aside, Finding, Request
from scripts.agents.place import exports, prepare
from scripts.agents.table import AGENTS
from scripts.fetch_models import ROOT
from sessiond.cli.agents import AGENTS as TOLD
from sessiond.cli.agents import Target

URL = "http://127.0.0.1:1"
each_agent = pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)


def told(agent: Agent) -> dict[str, Any]:
    made = TOLD[agent.name](Target(URL, "talker", 131_072))
    return {"form": made.form, "content": made.content, "file": made.file}


def request(question: int, *, new: int, evaluated: int) -> Request:
    return Request("pi", "1", question, "user", 900, new, evaluated, "resident", None)


@each_agent
def test_an_agent_finds_its_settings_and_nothing_of_the_developer(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result: where `sessiond env` says it looks, they name the daemon; HOME is its own."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    place = prepare(agent, told(agent), tmp_path / "programs", tmp_path / "agent")
    if agent.file is None:
        assert URL in place.variables.values()
    else:
        file = place.home / agent.file
        assert f"~/{agent.file}" in str(told(agent)["file"])
        assert URL in str(
            tomllib.loads(file.read_text())
            if file.suffix == ".toml"
            else json.loads(file.read_text())
        )
    assert place.variables["HOME"] == str(place.home)
    assert "secret" not in place.variables.values()
    assert (place.work / "notes.md").is_file()


@each_agent
def test_every_agent_has_an_exact_version_and_is_asked_with_the_question_last(agent: Agent) -> None:
    major, *rest = npm.version(agent).split(".")
    assert major.isdigit() and len(rest) == 2
    if not agent.spoken:
        first, next_one = (agent.arguments(number, "What?", "talker") for number in (0, 1))
        assert first[-1] == next_one[-1] == "What?"
        assert first != next_one
        assert "{model}" not in first


def test_a_machine_without_node_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentFailed, match="apt install nodejs npm"):
        npm.check_node()


def test_what_a_shell_is_told_are_the_variables_it_has_after_it() -> None:
    assert exports("export A='b c'\nexport D=\"${E:-none}\"\n") == {"A": "b c", "D": "none"}
    with pytest.raises(AgentFailed):
        exports("export 'A")


def test_a_finding_holds_when_every_later_request_evaluates_its_new_tokens() -> None:
    """A reply that was cut leaves one token more. Result: two more, a lost question: it fails."""
    first = request(1, new=900, evaluated=900)
    aside = Aside("pi", 0, 0)
    good = (first, request(2, new=17, evaluated=18), request(3, new=18, evaluated=18))
    assert Finding("a", good, aside, ()).holds
    assert not Finding("a", good, aside, (2,)).holds
    assert not Finding("a", (first,), aside, ()).holds
    assert not Finding("a", (*good, request(3, new=17, evaluated=19)), aside, ()).holds


def test_a_call_of_too_many_pieces_is_refused(tmp_path: Path) -> None:
    pieces = [str(number) for number in range(11)]
    with pytest.raises(ValueError, match="more than 14"):
        talker.make_talker(tmp_path / "none.gguf", tmp_path / "made.gguf", pieces)
    for agent in AGENTS.values():
        assert len(set(agent.call)) == len(agent.call) <= 10


@pytest.mark.proof_agents
@pytest.mark.timeout(1800)
@each_agent
def test_an_agent_holds_a_session_of_three_questions(agent: Agent) -> None:
    """Result: from the second question on, each request evaluates its new tokens only."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.proof_agents", "--agent", agent.name, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads(done.stdout)
    assert {one["question"] for one in finding["requests"]} == {1, 2, 3}
