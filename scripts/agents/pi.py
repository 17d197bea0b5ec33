"""pi: a process for each question. It sends no name of its session."""

from __future__ import annotations

from scripts.agents.agent import Agent, call

_ASKED = ("--provider", "sessiond", "--model", "{model}", "--print")

PI = Agent(
    name="pi",
    package="@mariozechner/pi-coding-agent",
    program="pi",
    call=call("read", '{"path": "notes.md"}'),
    begin=_ASKED,
    go_on=("--continue", *_ASKED),
    file=".pi/agent/models.json",
    quiet={"PI_OFFLINE": "1"},
)
