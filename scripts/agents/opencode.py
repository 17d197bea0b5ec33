"""OpenCode: a process for each question."""

from __future__ import annotations

from scripts.agents.agent import Agent, call

OPENCODE = Agent(
    name="opencode",
    package="opencode-ai",
    program="opencode",
    call=call("read", '{"filePath": "notes.md"}'),
    begin=("run",),
    go_on=("run", "--continue"),
    file=".config/opencode/opencode.json",
    quiet={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    },
)
