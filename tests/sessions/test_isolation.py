"""Many agents at once, whatever happens to them: no state, no word and no cell of another's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine import active, thread
from sessiond.engine.core import EngineCore
from sessiond.engine.landing import Landing
from sessiond.engine.memory import as_tokens
from sessiond.errors import StateMissing
from sessiond.metrics import SUSPENDED
from sessiond.sessions import lander
from sessiond.store.slabs import PAGE
from tests.rig import Rig
from tests.sessions.checked_engine import CheckedCore, Findings
from tests.sessions.crowd import Crowd, Trouble
from tests.sessions.kinds import KINDS, chat, control, rig_of

each_kind = pytest.mark.parametrize("kind", KINDS)
WHOLE = 4
"""The seed of worlds whose state is saved in one piece."""
FEW_TOKENS = 4
"""Kept free for a reply: so few that lines run out of cells in the middle of theirs."""


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Findings]:
    """Every engine of the test is a checked one."""
    found = Findings()

    def checked(*arguments: Any) -> CheckedCore:
        return CheckedCore(found, *arguments)

    monkeypatch.setattr(thread, "EngineCore", checked)
    yield found
    assert found.checks > 0


@pytest.fixture
def short_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (active, lander):
        monkeypatch.setattr(module, "RESERVE_TOKENS", FEW_TOKENS)


def crowded(kind: str, directory: Path, seed: int) -> Rig:
    """Few lines and cells, and little room in memory and on disk."""
    chance = random.Random(seed)
    lines, n_ctx = chance.choice([(2, 560), (3, 560), (3, 700), (4, 900)])
    rig = rig_of(kind, directory, lines=lines, n_ctx=n_ctx)
    rig.limit = 560
    rig.ring = chance.choice([0, 3 * PAGE, 12 * PAGE, 1 << 30])
    rig.quota = chance.choice([60_000, 200_000, 1 << 30])
    rig.whole = seed == WHOLE
    return rig


async def gone_through(
    kind: str, directory: Path, seed: int, turns: int, findings: Findings
) -> Crowd:
    crowd = Crowd(kind, crowded(kind, directory, seed), seed, findings)
    await crowd.talk(turns)
    assert findings.faults == []
    assert findings.most_at_once >= 2
    assert findings.checks > 10 * turns
    assert crowd.compared > 0 or seed == WHOLE
    return crowd


@each_kind
async def test_random_agents_at_once_never_see_one_another(
    state_dir: Path, kind: str, findings: Findings, short_of_cells: None
) -> None:
    """Every reply is that of an isolated control; no canary, cell or stored byte is foreign."""
    await gone_through(kind, state_dir, 3, 30, findings)


@pytest.mark.proof_agents_load
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3, WHOLE])
@each_kind
async def test_ten_thousand_turns_of_random_agents_at_once(
    state_dir: Path, kind: str, seed: int, findings: Findings, short_of_cells: None
) -> None:
    """Over all kinds and seeds."""
    suspended = SUSPENDED._value.get()
    crowd = await gone_through(kind, state_dir, seed, 500, findings)
    assert crowd.left > 50
    assert findings.failed > 5
    assert findings.refusals > 5 or seed == WHOLE
    if kind != "recurrent":
        assert SUSPENDED._value.get() > suspended


Tampering = Callable[[EngineCore, Any], None]


def a_foreign_cell(core: EngineCore, line: Any) -> None:
    line.cells[3] += 1


def a_missing_cell(core: EngineCore, line: Any) -> None:
    del line.cells[3]


def a_hole_in_the_window(core: EngineCore, line: Any) -> None:
    del line.window[max(line.window)]


def another_recurrent_state(core: EngineCore, line: Any) -> None:
    line.state = (line.state[0], line.state[1] + 1)


def a_token_too_many_in_the_record(core: EngineCore, line: Any) -> None:
    core.sequences[0].append(as_tokens([97]))


def cells_left_in_the_mover(core: EngineCore, line: Any) -> None:
    context: Any = core.context
    context.seq_cp(0, context.n_seq_max - 2, -1, -1)


@pytest.mark.parametrize(
    "tampering",
    [
        a_foreign_cell,
        a_missing_cell,
        a_hole_in_the_window,
        another_recurrent_state,
        a_token_too_many_in_the_record,
        cells_left_in_the_mover,
    ],
)
async def test_the_checked_engine_finds(
    state_dir: Path, findings: Findings, tampering: Tampering
) -> None:
    async with rig_of("hybrid+swa", state_dir).daemon() as daemon:
        await daemon.say("one", chat("Hello"))
        assert findings.faults == []

        def tamper(core: EngineCore) -> None:
            context: Any = core.context
            tampering(core, context._sequences[0])
            core.step()

        await daemon.machine.engine.call(tamper)
        assert findings.faults != []


async def test_a_restore_onto_cells_that_a_failed_decode_took_is_refused(
    state_dir: Path, findings: Findings
) -> None:
    """Between the choice of a landing and its execution another line's decode fails."""
    async with rig_of("swa", state_dir).daemon() as daemon:
        await daemon.say("one", chat("Hello"))
        (held,) = [view for view in await daemon.machine.engine.views() if len(view.tokens)]

        def land(core: EngineCore) -> None:
            core.fail_all()
            landing = Landing(1, len(held.tokens), source=held.seq, keep=len(held.tokens))
            core.restore(landing, held.tokens, iter(()))

        with pytest.raises(StateMissing):
            await daemon.machine.engine.call(land)
        assert [len(view.tokens) for view in await daemon.machine.engine.views()] == [0] * 4
    assert findings.faults == []


async def test_a_resume_whose_decode_fails_goes_on(state_dir: Path, findings: Findings) -> None:
    rig = rig_of("hybrid", state_dir)
    async with rig.daemon(kill=True) as daemon:
        await daemon.say("one", chat("Hello"))
    async with rig.daemon() as daemon:
        Trouble(daemon, random.Random(1)).fails_after = 1
        report = await asyncio.wait_for(daemon.lifecycle.resume("one"), 30)
        assert report.prefilled_tokens > 0
        assert findings.failed == 1
    assert findings.faults == []


async def test_a_line_that_waits_for_cells_looks_again_when_a_decode_fails(
    state_dir: Path, findings: Findings
) -> None:
    """The first has nearly all cells and fails while the second waits for some of them."""
    first, second = chat("a" * 250, front=""), chat("b" * 250, front="")
    async with rig_of("swa", state_dir, lines=2, n_ctx=400).daemon() as daemon:
        trouble = Trouble(daemon, random.Random(1))
        trouble.pace = 0.02
        opened = await daemon.open("first", first, max_tokens=60, ignore_eos=True)
        await anext(opened.events)
        waiting = asyncio.create_task(daemon.say("second", second))
        while not daemon.lifecycle._floor._changed._waiters:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        trouble.fails_after = 0
        async for _ in opened.events:
            pass
        reply = await asyncio.wait_for(waiting, 30)
        assert reply.text == control("swa", second)
        assert findings.failed == 1
    assert findings.faults == []


async def test_a_request_for_a_fork_that_is_being_made_goes_on_from_its_turns(
    state_dir: Path,
) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        first = await daemon.say("one", chat("Hello"))
        talk = chat("Hello", first.text, "And now?")
        forked, reply = await asyncio.gather(
            daemon.lifecycle.fork("one", "other", 1), daemon.say("other", talk)
        )
        assert forked.name == "other"
        assert (reply.report.turn, reply.report.saved) == (2, True)
        assert [turn.parent for turn in await daemon.lifecycle.turns("other")] == [None, 1]
