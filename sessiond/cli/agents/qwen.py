"""Qwen Code: a model provider in settings.json."""

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
    provider = {
        "id": target.model,
        "name": f"{target.model} (sessiond)",
        "envKey": KEY_VARIABLE,
        "baseUrl": target.openai,
        "generationConfig": {
            "timeout": PATIENCE_S * 1000,
            "maxRetries": 1,
            "contextWindowSize": target.context,
        },
    }
    content = {
        "env": None if target.has_key else {KEY_VARIABLE: NO_KEY},
        "modelProviders": {"openai": [provider]},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": target.model},
    }
    return Settings("json", document(content), "~/.qwen/settings.json")
