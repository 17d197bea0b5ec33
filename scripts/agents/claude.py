"""Claude Code: a process for each question."""

from __future__ import annotations

from scripts.agents.agent import Agent, call

CLAUDE = Agent(
    name="claude",
    package="@anthropic-ai/claude-code",
    program="claude",
    call=call("Read", '{"file_path": "notes.md"}'),
    begin=("--print",),
    go_on=("--print", "--continue"),
    quiet={"DISABLE_AUTOUPDATER": "1"},
)
