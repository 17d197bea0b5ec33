"""Who runs and who waits: places, priorities, and no wake-up that is lost."""

from __future__ import annotations

import asyncio

import pytest

from sessiond.errors import QueueFull
from sessiond.sessions.floor import Floor


async def run(floor: Floor, name: str, order: list[str], *, named: bool) -> None:
    async with floor.line(named=named):
        order.append(name)
        assert floor.running <= floor.lines
        await asyncio.sleep(0)


async def test_named_sessions_come_before_unnamed_ones_and_then_the_first_come() -> None:
    floor, order = Floor(9), list[str]()
    async with floor.line(named=True):
        wanted = [("u1", False), ("n1", True), ("u2", False), ("n2", True)]
        tasks = [asyncio.create_task(run(floor, name, order, named=n)) for name, n in wanted]
        await asyncio.sleep(0)
        assert floor.full
    await asyncio.gather(*tasks)
    assert order == ["n1", "n2", "u1", "u2"]
    assert (floor.running, floor.full) == (0, False)


async def test_as_many_run_together_as_there_are_lines() -> None:
    floor, order = Floor(9), list[str]()
    floor.lines = 3
    await asyncio.gather(*(run(floor, str(n), order, named=True) for n in range(10)))
    assert sorted(order, key=int) == [str(n) for n in range(10)]


@pytest.mark.parametrize("let_in", [False, True])
async def test_one_that_gives_up_waiting_leaves_its_place_to_the_next(let_in: bool) -> None:
    """Also where it was let in at that very moment."""
    floor, order = Floor(9), list[str]()
    place = floor.line(named=True)
    await place.__aenter__()
    first = asyncio.create_task(run(floor, "first", order, named=True))
    second = asyncio.create_task(run(floor, "second", order, named=True))
    await asyncio.sleep(0)
    if let_in:
        await place.__aexit__(None, None, None)
        first.cancel()
    else:
        first.cancel()
        await asyncio.sleep(0)
        await place.__aexit__(None, None, None)
    await asyncio.gather(first, second, return_exceptions=True)
    assert (order, floor.running) == (["second"], 0)


async def test_a_change_that_came_before_the_wait_is_not_missed() -> None:
    floor = Floor(1)
    seen = floor.changes
    floor.left()
    async with asyncio.timeout(5):
        await floor.change(seen)
    waiting = asyncio.create_task(floor.change(floor.changes))
    await asyncio.sleep(0)
    assert not waiting.done()
    floor.left()
    async with asyncio.timeout(5):
        await waiting


def test_the_queue_is_bounded() -> None:
    floor = Floor(2)
    floor.check(2)
    with pytest.raises(QueueFull):
        floor.check(3)
