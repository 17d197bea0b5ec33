"""A world for every family of models: its template, and its marks as control tokens."""

from __future__ import annotations

import json
from pathlib import Path

from sessiond.sessions.calls.formats import FORMATS
from tests.api.live.recorder import Json
from tests.api.live.world import rig_of, template
from tests.chat.reply.corpus import CASES, TOOLS, Case
from tests.rig import Rig

OPENED = "hermes, opened"
"""Its prompt ends inside of reasoning."""
FAMILIES = {
    "hermes": "qwen.jinja",
    OPENED: "chatml.jinja",
    "qwen_coder": "qwen_coder.jinja",
    "llama": "llama_tools.jinja",
    "mistral": "mistral_calls.jinja",
    "mistral_list": "chatml.jinja",
    "gemma": "gemma_code.jinja",
    "gemma4": "chatml.jinja",
    "functiongemma": "chatml.jinja",
    "harmony": "harmony.jinja",
    "generic": "chatml.jinja",
}
"""Where it is chatml, the family's own template is not among those here, or keeps no prefix."""
DEFINITIONS: list[Json] = [json.loads(tool) for tool in TOOLS]


def family_of(case: Case) -> str:
    return OPENED if case.ends and case.form == "hermes" else case.form


def cases_of(family: str) -> list[Case]:
    """Replies to a prompt that ends as this family's does."""
    return [case for case in CASES if family_of(case) == family and not _elsewhere(case)]


def _elsewhere(case: Case) -> bool:
    return bool(case.ends) and case.form != "hermes"


def rig_of_family(family: str, kind: str, directory: Path) -> Rig:
    form, source = family.split(",")[0], template(FAMILIES[family])
    source = source.replace("field.type", "(field.type or '')")
    if family == OPENED:
        source = source.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
        assert "<think>" in source
    return rig_of(
        kind,
        directory,
        source,
        control=() if form == "generic" else FORMATS[form].control,
        tool_format=form,
    )
