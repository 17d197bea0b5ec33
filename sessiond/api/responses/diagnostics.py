"""Why tokens were evaluated again, in the shape of OpenAI's cache diagnostics."""

from __future__ import annotations

from sessiond.api.dialect import Json
from sessiond.sessions.turn import Miss, MissCause

_REASONS: dict[MissCause, str] = {
    "tools_changed": "tools_changed",
    "history_summarised": "context_compacted",
    "model_changed": "model_changed",
}
_OURS = frozenset({"settings_changed", "damaged", "evicted", "not_saved", "no_snapshot"})
"""OpenAI has no word for these; the `sessiond` block has."""


def cache_diagnostics(miss: Miss | None, cached: int) -> Json:
    """`cached`: tokens of the prompt that were reused."""
    if miss is None:
        return {"type": "cache_hit" if cached else "comparison_response_not_found"}
    if miss.cause in _OURS:
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": _REASONS.get(miss.cause, "input_changed"),
        "cache_missed_tokens": miss.tokens,
        "comparison_reusable_tokens": cached,
    }
