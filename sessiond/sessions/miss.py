"""Why tokens that had been evaluated before had to be evaluated again. Pure."""

from __future__ import annotations

from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Memory, Tokens, common_prefix
from sessiond.sessions.composition import Composition
from sessiond.sessions.plan import Plan
from sessiond.sessions.turn import Miss, MissCause
from sessiond.store.found import State, Stored


def expected_position(known: Tokens, prompt: Tokens, limit: int) -> int:
    """How far a prompt could be reused if nothing was ever lost.

    The last sampled token of a reply may never have been evaluated, so the last known one does not count.
    """
    shared = common_prefix(known, prompt)
    return min(limit, len(known) - 1 if shared == len(known) else shared)


def find_miss(
    composed: Composition, plan: Plan, stored: Stored, memory: Memory, current: Fingerprint
) -> Miss | None:
    """None where nothing was evaluated twice."""
    turn = composed.known_turn
    if turn is None:
        return None
    if turn.tokenizer and not len(composed.known):
        return Miss(
            "model_changed", "The session was made with another tokenizer.", turn_length(composed)
        )
    limit = len(composed.prompt) - 1
    lost = expected_position(composed.known, composed.prompt, limit) - plan.position
    if lost <= 0:
        return None
    cause, why = _cause(plan, stored, memory, current, turn.fingerprint, turn.model)
    return Miss(cause, why, lost)


def turn_length(composed: Composition) -> int:
    """Tokens of a prompt that has to be evaluated from the start."""
    return len(composed.prompt)


def _cause(
    plan: Plan,
    stored: Stored,
    memory: Memory,
    current: Fingerprint,
    fingerprint: str,
    model: str,
) -> tuple[MissCause, str]:
    if fingerprint != current.value:
        if model != current.model:
            return "model_changed", "The model file is not the one that evaluated them."
        return "settings_changed", "The llama.cpp library or the KV settings have changed."
    reasons = {loss.reason for loss in stored.lost if loss.position >= plan.position}
    if reasons & {State.DAMAGED, State.FOREIGN, State.NEWER}:
        return "damaged", "Their saved state was damaged and has been set aside."
    if State.MISSING in reasons:
        return "damaged", "The file with their saved state is gone."
    if State.EVICTED in reasons:
        return "evicted", "Their saved state was removed to stay within the disk quota."
    if memory.needs_snapshot and plan.cells > plan.position:
        return "no_snapshot", f"This model's state ({memory.kind}) was not captured any nearer."
    return "not_saved", "Their state had not been saved when it was lost."
