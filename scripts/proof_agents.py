"""`make proof-agents`: real agents hold a session with the daemon, and only new tokens are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from scripts.agents.agent import Agent, AgentFailed
from scripts.agents.finding import Finding, explained, find
from scripts.agents.npm import install, version
from scripts.agents.place import prepare, settings
from scripts.agents.recorder import recorder
from scripts.agents.table import AGENTS
from scripts.agents.talk import talk
from scripts.agents.talker import make_talker
from scripts.bench import AsJson, run, workplace
from scripts.daemon import Daemon, Json
from scripts.fetch_models import ROOT, fetch_hybrid
from sessiond.cli.output import Cell, Column, print_json, print_table
from sessiond.cli.words import counted

QUESTIONS = ("What is in the notes?", "And when does it leave?", "Thank you. Sum it up.")
TEMPLATE = ROOT / "tests" / "templates" / "qwen.jinja"
MODEL = "talker"


def prove(agent: Agent, folder: Path, state: Path, record: Path) -> tuple[Finding, Json]:
    """One agent, one session; `folder` gets the agent's home. Raises AgentFailed.

    The daemon is started anew before the last question. What was said goes into `record`. Also
    returns what the daemon explains.
    """
    programs = install(agent)
    model = state / f"{MODEL}.gguf"
    make_talker(fetch_hybrid(), model, agent.call)
    options = ("--model-chat-template-file", str(TEMPLATE))
    with (
        Daemon(model, state / "state", options) as daemon,
        recorder(daemon.port, record) as url,
    ):
        place = prepare(agent, settings(agent, url), programs, folder)
        talk(agent, place, QUESTIONS, MODEL, lambda number: _restart_before_last(daemon, number))
        finding = find(daemon, agent.name, version(agent), QUESTIONS)
        return finding, explained(daemon, finding)


def _restart_before_last(daemon: Daemon, number: int) -> None:
    if number == len(QUESTIONS):
        daemon.stop()
        daemon.start()


def show(findings: Sequence[Finding]) -> None:
    columns = (
        *map(Column, ("AGENT", "VERSION", "QUESTION", "NEW MESSAGES")),
        *(Column(title, right=True) for title in ("PROMPT", "NEW", "EVALUATED")),
        *map(Column, ("STATE FROM", "MISS")),
    )
    rows = [
        (
            *(request.agent, request.version, str(request.question), request.brought),
            *(f"{number:,}" for number in (request.prompt, request.new, request.evaluated)),
            *(request.source, request.miss or ""),
        )
        for finding in findings
        for request in finding.requests
    ]
    print_table(columns, [[Cell(text) for text in row] for row in rows])
    for finding in findings:
        print(told(finding))


def told(finding: Finding) -> str:
    aside = finding.aside
    others = f"{aside.evaluated:,} tokens of {counted(aside.requests, 'other request')}"
    beside = f"beside it {others}"
    if finding.holds:
        return f"{aside.agent}: only new tokens were evaluated; {beside}."
    lost = ", ".join(map(str, finding.lost)) or "none"
    return (
        f"{aside.agent}: old tokens were evaluated again (questions not found: {lost}); {beside}."
    )


def main(
    agent: Annotated[
        list[str] | None, typer.Option(help=f"One of: {', '.join(AGENTS)}. Not said: all.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Keep here what was said, a file for each agent.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Install agents from npm, let each hold a session of three questions, and count tokens."""
    unknown = [name for name in agent or () if name not in AGENTS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of: {', '.join(AGENTS)}")
    findings, explanations, failures = [], {}, []
    for name in agent or AGENTS:
        print(f"{name} …", file=sys.stderr)
        try:
            with workplace() as state, TemporaryDirectory(prefix="agent-") as folder:
                kept = (record or state) / f"{name}.jsonl"
                finding, explanation = prove(AGENTS[name], Path(folder), state, kept)
        except AgentFailed as error:
            failures.append(str(error))
            continue
        findings.append(finding)
        if not finding.holds:
            explanations[name] = explanation
    if as_json:
        print_json([asdict(finding) | {"holds": finding.holds} for finding in findings])
    elif findings:
        show(findings)
    for failure in failures:
        print(failure, file=sys.stderr)
    for name, explanation in explanations.items():
        print(f"{name}: {json.dumps(explanation, indent=2)}", file=sys.stderr)
    if failures or explanations:
        raise typer.Exit(1)


if __name__ == "__main__":
    run(main)
