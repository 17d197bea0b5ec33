"""Open WebUI: variables of its server."""

from __future__ import annotations

from sessiond.cli.agents.settings import KEY, PATIENCE_S, Settings, Target, Value, exports


def settings(target: Target) -> Settings:
    variables: dict[str, Value] = {
        "OPENAI_API_BASE_URL": target.openai,
        "OPENAI_API_KEY": KEY,
        "ENABLE_OLLAMA_API": "false",
        "DEFAULT_MODELS": target.model,
        "AIOHTTP_CLIENT_TIMEOUT": PATIENCE_S,
        "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
    }
    notes = (
        "Of the server (docker run -e …). Open WebUI keeps connections in its database: after its",
        "first start they are changed in Admin Settings > Connections only.",
        "ENABLE_FORWARD_USER_INFO_HEADERS sends the id of the chat, so that each has its session.",
    )
    return Settings("shell", exports(variables), notes=notes)
