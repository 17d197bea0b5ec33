"""Every agent of the proof by the name that `sessiond env` knows it under."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.agents.agent import Agent
from scripts.agents.claude import CLAUDE
from scripts.agents.codex import CODEX
from scripts.agents.opencode import OPENCODE
from scripts.agents.pi import PI
from scripts.agents.qwen import QWEN

AGENTS: Mapping[str, Agent] = {agent.name: agent for agent in (OPENCODE, PI, QWEN, CLAUDE, CODEX)}
