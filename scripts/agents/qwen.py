"""Qwen Code: one process that hears all questions. It sends no name of its session.

With --continue it takes a reminder of the date out of the message before, which is a rewrite.
"""

from __future__ import annotations

from scripts.agents.agent import Agent, call

QWEN = Agent(
    name="qwen",
    package="@qwen-code/qwen-code",
    program="qwen",
    call=call("glob", '{"pattern": "*.md"}'),
    begin=("--input-format", "stream-json", "--output-format", "stream-json"),
    file=".qwen/settings.json",
    quiet={"QWEN_TELEMETRY_ENABLED": "false"},
    spoken=True,
)
