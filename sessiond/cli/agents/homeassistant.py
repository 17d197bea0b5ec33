"""Home Assistant: what its llama.cpp integration asks for."""

from __future__ import annotations

from sessiond.cli.agents.settings import KEY_VARIABLE, Settings, Target


def settings(target: Target) -> Settings:
    key = f"(the value of {KEY_VARIABLE})" if target.has_key else "(leave it empty)"
    content = f"URL: {target.openai}\nAPI key: {key}\nModel: {target.model}\n"
    notes = (
        "Settings > Devices & services > Add integration > llama.cpp",
        "Every utterance is a talk of its own that begins with the same instructions: what stands",
        "in them should not change. No clock ({{ now() }}) and no states there, or tell sessiond:",
        '[sessions] pinned_front = ["clock", "date"]',
        "From another machine: [server] host, and a key (auth.keys_file).",
    )
    return Settings("text", content, notes=notes)
