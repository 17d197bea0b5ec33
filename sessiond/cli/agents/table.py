"""Every agent by the name that `sessiond env` knows it under, in the order of help."""

from __future__ import annotations

from collections.abc import Mapping

from sessiond.cli.agents import (
    aider,
    claude,
    codex,
    homeassistant,
    openai,
    opencode,
    openwebui,
    pi,
    qwen,
)
from sessiond.cli.agents.settings import Agent

AGENTS: Mapping[str, Agent] = {
    "opencode": opencode.settings,
    "claude": claude.settings,
    "codex": codex.settings,
    "qwen": qwen.settings,
    "pi": pi.settings,
    "homeassistant": homeassistant.settings,
    "openwebui": openwebui.settings,
    "aider": aider.settings,
    "openai": openai.settings,
}
