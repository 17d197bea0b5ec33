"""Claude Code: variables of the shell it is started from."""

from __future__ import annotations

from sessiond.cli.agents.settings import KEY, PATIENCE_S, Settings, Target, Value, exports

LEAST_WINDOW = 100_000
"""Tokens; Claude Code takes a smaller one for this."""


def settings(target: Target) -> Settings:
    """The model stands for every class of model that it asks for by itself."""
    model, patience = target.model, PATIENCE_S * 1000
    variables: dict[str, Value] = {
        "ANTHROPIC_BASE_URL": target.base,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
        "CLAUDE_CODE_SUBAGENT_MODEL": model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": target.context,
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": _compact_window(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": target.output,
        "API_TIMEOUT_MS": patience,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": patience,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": 0,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": 1,
    }
    notes = (
        'eval "$(sessiond env claude)" && claude',
        "ATTRIBUTION_HEADER=0 leaves out a line of the system prompt that changes every time.",
    )
    return Settings("shell", exports(variables), notes=notes)


def _compact_window(context: int | None) -> int | None:
    return context if context is not None and context >= LEAST_WINDOW else None
