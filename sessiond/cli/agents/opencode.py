"""OpenCode: a provider in opencode.json."""

from __future__ import annotations

from sessiond.cli.agents.settings import (
    KEY_VARIABLE,
    NO_KEY,
    PATIENCE_S,
    Settings,
    Target,
    document,
)


def settings(target: Target) -> Settings:
    limit = {"context": target.context, "output": target.output} if target.context else None
    options = {
        "baseURL": target.openai,
        "apiKey": f"{{env:{KEY_VARIABLE}}}" if target.has_key else NO_KEY,
        "timeout": PATIENCE_S * 1000,
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "sessiond",
        "options": options,
        "models": {target.model: {"name": target.model, "limit": limit}},
    }
    chosen = f"sessiond/{target.model}"
    content = {
        "$schema": "https://opencode.ai/config.json",
        "model": chosen,
        "small_model": chosen,
        "provider": {"sessiond": provider},
    }
    notes = ("small_model keeps titles on this machine.",)
    file = "opencode.json of the project, or ~/.config/opencode/opencode.json"
    return Settings("json", document(content), file, notes)
