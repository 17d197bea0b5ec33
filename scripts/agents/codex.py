"""Codex: a process for each question."""

from __future__ import annotations

from scripts.agents.agent import Agent, call

_ANYWHERE = "--skip-git-repo-check"

CODEX = Agent(
    name="codex",
    package="@openai/codex",
    program="codex",
    call=call("exec_command", '{"cmd": "cat notes.md"}'),
    begin=("exec", _ANYWHERE),
    go_on=("exec", "resume", "--last", _ANYWHERE),
    file=".codex/config.toml",
)
