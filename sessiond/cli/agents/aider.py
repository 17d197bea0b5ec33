"""aider: variables of the shell it is started from."""

from __future__ import annotations

import json

from sessiond.cli.agents.settings import KEY, PATIENCE_S, Settings, Target, Value, exports


def settings(target: Target) -> Settings:
    """`openai/` is how aider names a model of any server of that kind."""
    model = f"openai/{target.model}"
    variables: dict[str, Value] = {
        "OPENAI_API_BASE": target.openai,
        "OPENAI_API_KEY": KEY,
        "AIDER_MODEL": model,
        "AIDER_WEAK_MODEL": model,
        "AIDER_TIMEOUT": PATIENCE_S,
        "AIDER_MAP_REFRESH": "manual",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
    }
    notes = ("MAP_REFRESH=manual: a map that changes by itself would be read again every time.",)
    return Settings("shell", exports(variables), notes=(*notes, *_window(model, target)))


def _window(model: str, target: Target) -> tuple[str, ...]:
    if target.context is None:
        return ()
    known = {
        "max_input_tokens": target.context,
        "max_output_tokens": target.output,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    line = json.dumps({model: known})
    return ("The context size goes into ~/.aider.model.metadata.json:", line)
