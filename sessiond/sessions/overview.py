"""What `sessiond list` and `show` say of a session: how big it is and how fast it is back."""

from __future__ import annotations

import asyncio
import time

from sessiond.engine.memory import Tokens, as_tokens
from sessiond.errors import StateError
from sessiond.sessions.execution import Machine
from sessiond.sessions.plan import Plan, plan
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import SessionState, SessionSummary, TurnSummary
from sessiond.store.found import Stored

_NOTHING = as_tokens([])


class Overview:
    """Event loop only."""

    def __init__(self, register: Register, auto_policy: str, policy: str) -> None:
        self._register = register
        self._auto_policy = auto_policy
        self._policy = policy

    async def summary(self, record: SessionRecord, machine: Machine | None) -> SessionSummary:
        """`machine` None while the model loads: what is on disk is not known yet."""
        tree = await self._register.tree(record.name)
        leaf = tree.main_line(time.time())
        tokens = tree.path_tokens(leaf) if leaf is not None else _NOTHING
        prospect, stored = await self._prospect(record, tokens, machine)
        reason = _reason(tree[leaf], machine, prospect) if leaf is not None else ""
        return SessionSummary(
            name=record.name,
            group=record.name.partition(":")[0] if ":" in record.name else None,
            agent=record.agent,
            title=record.title,
            state=_state(prospect, len(tokens)),
            tokens=len(tokens),
            turns=len(tree),
            lines=len(tree.leaves()),
            created=record.created,
            last_used=record.last_used,
            bytes=sum(b.bytes for b in stored.blocks) + sum(s.bytes for s in stored.snapshots),
            policy=record.policy or (self._policy if record.named else self._auto_policy),
            hit_rate=_hit_rate(tree),
            back_in_ms=back_in_ms(prospect, len(tokens), machine) if machine else 0.0,
            reason=reason,
            saved=self._register.is_saved(record),
        )

    async def turns(self, name: str) -> list[TurnSummary]:
        tree = await self._register.tree(name)
        main = tree.main_path(time.time())
        return [_turn_summary(turn, turn.number in main) for turn in tree]

    async def _prospect(
        self, record: SessionRecord, tokens: Tokens, machine: Machine | None
    ) -> tuple[Plan, Stored]:
        if machine is None or not len(tokens):
            return Plan(position=0), Stored()
        residents = await machine.residency.residents(record.id)
        try:
            stored = await asyncio.to_thread(machine.store.lookup, tokens)
        except StateError:
            stored = Stored()
        whole = machine.saver.whole
        return plan(tokens, len(tokens), residents, stored, machine.memory, whole=whole), stored


def back_in_ms(prospect: Plan, tokens: int, machine: Machine) -> float:
    """An estimate from what this machine was measured to do."""
    if _state(prospect, tokens) == "resident":
        return 0.0
    rates = machine.rates
    reading = rates.restore.ms(prospect.restored_bytes)
    return reading + rates.prefill.ms(max(0, tokens - 1 - prospect.position))


def _state(prospect: Plan, tokens: int) -> SessionState:
    if not tokens or prospect.position < tokens // 2:
        return "ledger"
    return "disk" if prospect.restored > prospect.keep else "resident"


def _reason(leaf: Turn, machine: Machine | None, prospect: Plan) -> str:
    if machine is None:
        return "the model is loading"
    if prospect.position:
        return ""
    if leaf.model != machine.fingerprint.model:
        return "model changed"
    if leaf.fingerprint != machine.fingerprint.value:
        return "settings changed"
    return "state not saved"


def _hit_rate(tree: SessionTree) -> float:
    prompt = sum(turn.stats.prompt_tokens for turn in tree)
    return sum(turn.stats.cached for turn in tree) / prompt if prompt else 0.0


def _turn_summary(turn: Turn, main: bool) -> TurnSummary:
    return TurnSummary(
        turn=turn.number,
        parent=turn.parent,
        line="main" if main else "side",
        role_of_new=turn.roles,
        prompt_tokens=turn.stats.prompt_tokens,
        cached_tokens=turn.stats.cached,
        prefilled_tokens=turn.stats.prefilled,
        completion_tokens=len(turn.reply_tokens),
        source=turn.stats.source,
        miss=turn.stats.miss,
        finish_reason=turn.finish_reason,
        ttft_ms=turn.stats.ttft_ms,
        created=turn.created,
    )
