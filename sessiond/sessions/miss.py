"""Why tokens that had been evaluated before had to be evaluated again. Pure."""

from __future__ import annotations

from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Memory, Tokens, common_prefix
from sessiond.sessions.composition import Composition
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.lander import Landed
from sessiond.sessions.tree import Turn
from sessiond.sessions.turn import Miss, MissCause
from sessiond.store.found import State


def expected_position(known: Tokens, prompt: Tokens, limit: int) -> int:
    """How far a prompt could be reused if nothing was ever lost.

    The last known token does not count: the last one sampled may never have been evaluated.
    """
    shared = common_prefix(known, prompt)
    return min(limit, len(known) - 1 if shared == len(known) else shared)


def find_miss(
    composed: Composition, landed: Landed, memory: Memory, current: Fingerprint
) -> Miss | None:
    """None where nothing was evaluated twice."""
    turn = composed.known_turn
    if turn is None:
        return None
    limit, retokenized = len(composed.prompt) - 1, not len(composed.known)
    expected = expected_position(composed.known, composed.prompt, limit)
    lost = (limit if retokenized else expected) - landed.plan.position
    if lost <= 0:
        return None
    if retokenized:
        return Miss("model_changed", "The session was made with another tokenizer.", lost)
    cause, why = _of_turn(turn, current) or _of_state(landed, memory, composed.goes_back)
    return Miss(cause, why, lost)


def miss_of(rewrite: Explanation | None, composed: Composition, landed: Landed) -> Miss | None:
    """Of a rewrite that was let through; None where it cost nothing."""
    prefilled = len(composed.prompt) - landed.plan.position
    if rewrite is None or not rewrite.discarded_tokens:
        return None
    return Miss(rewrite.cause, rewrite.sentence, min(rewrite.discarded_tokens, prefilled))


def _of_turn(turn: Turn, current: Fingerprint) -> tuple[MissCause, str] | None:
    if turn.fingerprint == current.value:
        return None
    if turn.model != current.model:
        return "model_changed", "The model file is not the one that evaluated them."
    return "settings_changed", "The llama.cpp library or the KV settings have changed."


def _of_state(landed: Landed, memory: Memory, goes_back: bool) -> tuple[MissCause, str]:
    plan, stored = landed.plan, landed.stored
    if landed.refused:
        return "other", "llama.cpp did not accept their saved state."
    reasons = {loss.reason for loss in stored.lost if loss.position >= plan.position}
    if reasons & {State.DAMAGED, State.FOREIGN, State.NEWER}:
        return "damaged", "Their saved state was damaged and has been set aside."
    if State.MISSING in reasons:
        return "damaged", "The file with their saved state is gone."
    if State.EVICTED in reasons:
        return "evicted", "Their saved state was removed to stay within the disk quota."
    if plan.cells > plan.position or (goes_back and not memory.has_blocks):
        return "no_snapshot", f"This model's state ({memory.kind}) was not captured any nearer."
    return "not_saved", "Their state had not been saved when it was lost."
