"""How a turn's report is worded on Anthropic's API."""

from __future__ import annotations

from sessiond.api.dialect import Json
from sessiond.api.messages.marks import Lifetime
from sessiond.sessions.parts import calls
from sessiond.sessions.turn import Finished, Miss, MissCause, TurnReport

_FRONT = "system prompt"
_REASONS: dict[MissCause, str] = {
    "tools_changed": "tools_changed",
    "system_changed": "system_changed",
    "history_edited": "messages_changed",
    "history_summarised": "messages_changed",
    "front_trimmed": "messages_changed",
    "reordered": "messages_changed",
    "model_changed": "model_changed",
}


def input_usage(prompt: int, cached: int, lifetime: Lifetime | None) -> Json:
    """Tokens of the prompt; the first three add up to all of them.

    What was evaluated is kept, and so it was written to the cache. Clients that mark nothing know
    of no cache: to them it is plain input.
    """
    evaluated = prompt - cached
    written = evaluated if lifetime else 0
    long = written if lifetime == "1h" else 0
    return {
        "input_tokens": evaluated - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": written - long,
            "ephemeral_1h_input_tokens": long,
        },
    }


def usage(finished: Finished, lifetime: Lifetime | None) -> Json:
    report = finished.report
    return {
        **input_usage(report.prompt_tokens, report.cached_tokens, lifetime),
        "output_tokens": report.completion_tokens,
        "output_tokens_details": {"thinking_tokens": finished.reasoning_tokens},
    }


def stop_reason(finished: Finished) -> str:
    report = finished.report
    if report.finish_reason != "stop":
        return "max_tokens"
    if calls(finished.parts):
        return "tool_use"
    return "stop_sequence" if report.stopped_by is not None else "end_turn"


def stop(finished: Finished) -> Json:
    reason = stop_reason(finished)
    by = finished.report.stopped_by if reason == "stop_sequence" else None
    return {"stop_reason": reason, "stop_sequence": by}


def diagnostics(report: TurnReport) -> Json | None:
    """Why old tokens were evaluated again, under the nearest of Anthropic's reasons."""
    miss = report.miss
    if miss is None:
        return None
    told = {"cause": miss.cause, "message": miss.message}
    reason = {"type": _reason(miss), "cache_missed_input_tokens": miss.tokens, **told}
    return {"cache_miss_reason": reason}


def _reason(miss: Miss) -> str:
    """What was lost on our side, not changed by the client, has no name there."""
    if miss.cause in ("clock", "date", "identifier", "whitespace"):
        return "system_changed" if _FRONT in miss.message else "messages_changed"
    return _REASONS.get(miss.cause, "unavailable")
