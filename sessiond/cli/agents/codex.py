"""Codex: a model provider in config.toml."""

from __future__ import annotations

import json

from sessiond.cli.agents.settings import KEY_VARIABLE, PATIENCE_S, Settings, Target

COMPACT_AT = 0.85
"""Of the context: room for the summary and the reply that was under way."""


def settings(target: Target) -> Settings:
    # A key variable that is named and not set stops Codex.
    key = [] if target.has_key else ["# If the daemon wants a key:"]
    mark = "" if target.has_key else "# "
    lines = [
        f"model = {_text(target.model)}",
        'model_provider = "sessiond"',
        *_window(target.context),
        "",
        "[model_providers.sessiond]",
        'name = "sessiond"',
        f"base_url = {_text(target.openai)}",
        'wire_api = "responses"',
        *key,
        f'{mark}env_key = "{KEY_VARIABLE}"',
        f"stream_idle_timeout_ms = {PATIENCE_S * 1000}",
        "stream_max_retries = 2",
    ]
    notes = ("The first lines must stand before any [table] of the file.",)
    return Settings("toml", "\n".join(lines) + "\n", "~/.codex/config.toml", notes)


def _window(context: int | None) -> list[str]:
    if context is None:
        return []
    return [
        f"model_context_window = {context}",
        f"model_auto_compact_token_limit = {int(context * COMPACT_AT)}",
    ]


def _text(value: str) -> str:
    """A TOML string: JSON's, where no character needs a pair of surrogates."""
    return json.dumps(value, ensure_ascii=False)
