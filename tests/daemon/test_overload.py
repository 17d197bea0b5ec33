"""More than it can do at once: refused politely or done in full, over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.engine.fake import CHATML
from sessiond.sessions.limits import Limits
from tests.rig import Daemon, Rig
from tests.sessions.kinds import Messages, chat, control, rig_of

KIND = "hybrid+swa"
LINES, QUEUE = 2, 4
ADMITTED = LINES + QUEUE
OFFERED = 10 * ADMITTED
LENGTH = 8
FRONT = "You are terse. " * 6
REFUSING = "{% if 'Refuse.' in messages[-1].content %}{{ raise_exception('No.') }}{% endif %}"


def rig_for(directory: Path, *, lines: int = LINES) -> Rig:
    rig = rig_of(KIND, directory, lines=lines)
    rig.limits = Limits(queue=QUEUE, drain=30.0)
    rig.template = REFUSING + CHATML
    return rig


@dataclass
class Served:
    """`stop` is what SIGTERM does. While the gate is shut the engine stands still in a decode."""

    daemon: Daemon
    http: httpx.AsyncClient
    stop: asyncio.Event
    gate: threading.Event

    async def ask(self, name: str, messages: Messages, *, stream: bool = False) -> httpx.Response:
        body = {"messages": messages, "max_tokens": LENGTH, "temperature": 0, "stream": stream}
        return await self.http.post(f"/s/{name}/v1/chat/completions", json=body)

    async def in_flight(self, count: int) -> None:
        while (await self.daemon.lifecycle.health()).running < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def turns(self) -> Counter[str]:
        """How many of each session are in the ledger."""
        return Counter({s.name: s.turns for s in await self.daemon.lifecycle.summaries()})


@asynccontextmanager
async def served(rig: Rig) -> AsyncGenerator[Served, None]:
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop, gate = asyncio.Event(), threading.Event()
    gate.set()
    async with rig.daemon() as daemon:
        hold(daemon, gate)
        server = asyncio.create_task(
            run_server(
                create_app(daemon.lifecycle, ApiConfig()),
                listen_tcp("127.0.0.1", 0),
                on_stop=daemon.lifecycle.stop,
                on_bound=lambda addresses: bound.set_result(addresses[0]),
                stop=stop,
                grace=2,
            )
        )
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        async with httpx.AsyncClient(
            base_url=await bound, limits=limits, timeout=60, trust_env=False
        ) as http:
            try:
                yield Served(daemon, http, stop, gate)
            finally:
                gate.set()
        stop.set()
        assert await server == 0


def hold(daemon: Daemon, gate: threading.Event) -> None:
    context: Any = daemon.context._context
    decode_rows = context.decode_rows

    def held(rows: Any) -> None:
        gate.wait()
        decode_rows(rows)

    context.decode_rows = held


def asked(number: int) -> Messages:
    return chat(f"I am client {number}.", front=FRONT)


def text_of(answer: httpx.Response) -> str:
    """Of a whole reply or of a stream, which must have come to its end."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        said: str = answer.json()["choices"][0]["message"]["content"]
        return said
    *events, done = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert not any("error" in chunk for chunk in chunks)
    return "".join(c["delta"].get("content") or "" for one in chunks for c in one["choices"])


def check_refusal(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["error"]["message"]


async def healths(served: Served, until: asyncio.Event) -> list[int]:
    statuses = []
    while not until.is_set():
        statuses.append((await served.http.get("/health")).status_code)
    return statuses


async def test_ten_times_the_admitted_load_is_refused_with_retry_after(tmp_path: Path) -> None:
    """The engine stands still, so that what is admitted stays.

    Result: exactly as many turns are admitted as may run and wait, the others are told to come
    back, /health answers every time, and what was admitted is answered in full and in the ledger.
    """
    async with served(rig_for(tmp_path)) as running:
        running.gate.clear()
        clients = {
            number: asyncio.create_task(
                running.ask(f"client {number}", asked(number), stream=number % 2 == 1)
            )
            for number in range(OFFERED)
        }
        while sum(task.done() for task in clients.values()) < OFFERED - ADMITTED:
            assert (await running.http.get("/health")).status_code == 200
        for _ in range(20):
            answer = await running.http.get("/health")
            assert answer.status_code == 200
            health = answer.json()
            assert (health["running"], health["queued"]) == (LINES, QUEUE)
        admitted = {number for number, task in clients.items() if not task.done()}
        assert len(admitted) == ADMITTED
        running.gate.set()
        answers = dict(zip(clients, await asyncio.gather(*clients.values()), strict=True))
        for number, answer in answers.items():
            if number in admitted:
                assert answer.status_code == 200
                assert text_of(answer) == control(KIND, asked(number), LENGTH)
            else:
                check_refusal(answer, 429)
        assert await running.turns() == Counter(f"client {number}" for number in admitted)


async def test_those_that_come_back_are_all_served(tmp_path: Path) -> None:
    """Ten times the admitted load, each client again and again until it is let in."""
    refused = 0

    async def insist(running: Served, number: int) -> None:
        nonlocal refused
        while True:
            answer = await running.ask(f"client {number}", asked(number), stream=number % 2 == 1)
            if answer.status_code == 200:
                assert text_of(answer) == control(KIND, asked(number), LENGTH)
                return
            check_refusal(answer, 429)
            refused += 1
            await asyncio.sleep(0.2)

    async with served(rig_for(tmp_path)) as running:
        over = asyncio.Event()
        watching = asyncio.create_task(healths(running, over))
        await asyncio.gather(*(insist(running, number) for number in range(OFFERED)))
        over.set()
        statuses = await watching
        assert len(statuses) >= 10
        assert set(statuses) == {200}
        assert refused >= OFFERED - ADMITTED
        assert await running.turns() == Counter(f"client {number}" for number in range(OFFERED))


async def test_a_stop_under_load_refuses_who_has_not_begun_and_finishes_the_rest(
    tmp_path: Path,
) -> None:
    rig = rig_for(tmp_path)
    async with served(rig) as running:
        running.gate.clear()
        clients = [
            asyncio.create_task(running.ask(f"client {number}", asked(number)))
            for number in range(ADMITTED)
        ]
        while (await running.daemon.lifecycle.health()).queued < QUEUE:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        running.stop.set()
        while (await running.http.get("/health")).json()["status"] != "draining":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        late = await asyncio.gather(*(running.ask("late", asked(-1)) for _ in range(OFFERED)))
        for answer in late:
            check_refusal(answer, 503)
        running.gate.set()
        finished = dict[str, int]()
        for number, answer in enumerate(await asyncio.gather(*clients)):
            if answer.status_code == 200:
                assert text_of(answer) == control(KIND, asked(number), LENGTH)
                finished[f"client {number}"] = 1
            else:
                check_refusal(answer, 503)
        assert len(finished) == ADMITTED - QUEUE
    async with rig.daemon() as daemon:
        kept = {summary.name: summary.turns for summary in await daemon.lifecycle.summaries()}
        assert kept == finished


async def test_what_is_wrong_with_one_line_leaves_the_others_alone(tmp_path: Path) -> None:
    """A template that refuses, a prompt that is too long, broken JSON, and a client that leaves.

    All while three others are in the middle of their turns.
    """
    rig = rig_for(tmp_path, lines=4)
    rig.limit = 2000
    async with served(rig) as running:
        running.gate.clear()
        staying = [
            asyncio.create_task(running.ask(f"client {number}", asked(number), stream=number == 1))
            for number in range(3)
        ]
        leaving = asyncio.create_task(running.ask("leaving", asked(3), stream=True))
        await running.in_flight(4)
        refused = await running.ask("refused", chat("Refuse.", front=FRONT))
        too_long = await running.ask("too long", chat("x" * 2001, front=FRONT))
        broken = await running.http.post(
            "/s/broken/v1/chat/completions",
            content=b"{",
            headers={"Content-Type": "application/json"},
        )
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        codes = [(a.status_code, a.json()["error"]["code"]) for a in (refused, too_long, broken)]
        running.gate.set()
        for number, answer in enumerate(await asyncio.gather(*staying)):
            assert answer.status_code == 200
            assert text_of(answer) == control(KIND, asked(number), LENGTH)
        assert codes == [
            (400, "chat_template_failed"),
            (400, "context_length_exceeded"),
            (400, "invalid_json"),
        ]
        known = await running.turns()
        assert {f"client {number}" for number in range(3)} <= known.keys()
        assert known.keys() <= {f"client {number}" for number in range(3)} | {"leaving"}
