"""Anything made with OpenAI's libraries."""

from __future__ import annotations

from sessiond.cli.agents.settings import KEY, Settings, Target, Value, exports


def settings(target: Target) -> Settings:
    variables: dict[str, Value] = {"OPENAI_BASE_URL": target.openai, "OPENAI_API_KEY": KEY}
    size = f", context {target.context} tokens" if target.context else ""
    notes = (
        f"Model: {target.model}{size}",
        "The libraries wait 600 s for an answer that is not streamed; timeout= makes it longer.",
    )
    return Settings("shell", exports(variables), notes=notes)
