"""pi: a provider in models.json."""

from __future__ import annotations

import shlex

from sessiond.cli.agents.settings import KEY_VARIABLE, NO_KEY, Settings, Target, document


def settings(target: Target) -> Settings:
    model = {
        "id": target.model,
        "contextWindow": target.context,
        "maxTokens": target.output,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": target.openai,
        "api": "openai-completions",
        "apiKey": f"${KEY_VARIABLE}" if target.has_key else NO_KEY,
        "models": [model],
    }
    notes = (f"pi --provider sessiond --model {shlex.quote(target.model)}",)
    content = {"providers": {"sessiond": provider}}
    return Settings("json", document(content), "~/.pi/agent/models.json", notes)
