"""What it takes to find a request in a long session and to plan its turn, by length of the session.

No model and no disk reads: one session of so many messages, fifty tokens each, with all its blocks
in the index, and a request that adds a message, or that changed one near the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import numpy as np
import typer

from scripts import results
from scripts.bench import AsJson, Out, Quick, run, words, workplace
from scripts.results import Goal, Spread, environment, number, progress, spread
from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.cli.output import Column
from sessiond.engine.fake import CHATML, FakeModel
from sessiond.engine.memory import Memory, MemoryKind, Tokens, as_tokens
from sessiond.sessions.composition import Composer, Composition
from sessiond.sessions.plan import plan
from sessiond.sessions.rates import Rates
from sessiond.sessions.review import Reviewer
from sessiond.sessions.transcript import Chat, Message, read_chat
from sessiond.sessions.tree import SessionTree, Turn, TurnStats
from sessiond.store.chain import BLOCK_TOKENS
from sessiond.store.store import Store

PER_MESSAGE = 50
WITHIN_MS = 50.0
"""For matching and planning at the longest length."""
T = TypeVar("T")
STEPS = ("match", "compose", "review", "look up", "plan")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_STATS = TurnStats(0, 0, 0, 0, "new", None, 0.0, 0.0)
_PAYLOAD = b"x"


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of each step of an append, of reading its JSON, and of judging a rewrite."""

    messages: int
    tokens: int
    steps: dict[str, Spread]
    total: Spread
    read: Spread
    rewrite: Spread


@dataclass(frozen=True, slots=True)
class World:
    """A session of one line and what its turns are planned with."""

    tree: SessionTree
    store: Store
    composer: Composer
    append: list[dict[str, Any]]
    rewrite: list[dict[str, Any]]

    def chat(self, request: list[dict[str, Any]]) -> Chat:
        return read_chat(request)

    def compose(self, chat: Chat) -> Composition:
        return self.composer.compose(chat, self.tree)

    def reviewer(self) -> Reviewer:
        composer = self.composer
        return Reviewer(
            session="bench",
            policy="append-only",
            declared=False,
            max_rewind=2048,
            renderer=composer.renderer,
            tokenizer=composer.tokenizer,
            rates=Rates(),
            now=composer.now,
        )


@contextmanager
def world(messages: int) -> Iterator[World]:
    """Half of the messages are the user's. Every block is in the index, with one byte of state."""
    renderer = TemplateRenderer(FakeModel(), ChatTemplate(CHATML))
    request = _conversation(messages)
    tree, tokens = _tree(request, renderer)
    append = [*request, {"role": "user", "content": words(PER_MESSAGE, "new")}]
    rewrite = [*append[:2], {"role": "user", "content": "Another question."}, *append[3:]]
    with workplace() as place:
        store = Store(
            place / "cache",
            place / "index.sqlite",
            fingerprint="bench",
            quota=1 << 34,
            keep_free=0,
        )
        for start in range(0, len(tokens), BLOCK_TOKENS):
            store.put_block(tokens[: start + BLOCK_TOKENS], start, _PAYLOAD)
        yield World(tree, store, Composer(renderer, "bytes", NOW), append, rewrite)
        store.close()


def _conversation(messages: int) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    said = [
        {"role": roles[n % 2], "content": words(PER_MESSAGE, str(n))} for n in range(messages - 1)
    ]
    return [{"role": "system", "content": "You are a helpful assistant."}, *said]


def _tree(
    request: Sequence[dict[str, Any]], renderer: TemplateRenderer
) -> tuple[SessionTree, Tokens]:
    """Each turn is fifty tokens of prompt and fifty of reply, whatever the words are."""
    tree, draw, parent = SessionTree(), np.random.default_rng(1), None
    chat = read_chat(list(request))
    for number_, index in enumerate(range(1, len(request) - 1, 2), start=1):
        new = chat.messages[0 if parent is None else index : index + 1]
        prompt, reply = (as_tokens(draw.integers(0, 256, PER_MESSAGE)) for _ in range(2))
        turn = _turn(number_, parent, new, tree, prompt, reply, chat.messages[index + 1].content)
        tree.add(turn)
        parent = number_
    return tree, tree.path_tokens(parent or 1)


def _turn(
    number_: int,
    parent: int | None,
    new: tuple[Message, ...],
    tree: SessionTree,
    prompt: Tokens,
    reply: Tokens,
    text: str,
) -> Turn:
    return Turn(
        number=number_,
        parent=parent,
        content=Chat(new),
        kept=tree.length(parent),
        prompt_tokens=prompt,
        reply_tokens=reply,
        reply=text,
        finish_reason="stop",
        tokenizer="bytes",
        fingerprint="bench",
        model="bench",
        settings="bench",
        stats=_STATS,
        created=float(number_),
    )


def measure(messages: int, rounds: int) -> Costs:
    taken: dict[str, list[float]] = {step: [] for step in (*STEPS, "read", "rewrite")}
    with world(messages) as bench:
        for turn in range(rounds + 1):
            times = _append(bench) | _rewrite(bench)
            if turn:
                for step, ms in times.items():
                    taken[step].append(ms)
        tokens = len(bench.compose(bench.chat(bench.append)).prompt)
    steps = {step: spread(taken[step]) for step in STEPS}
    totals = [sum(each) for each in zip(*(taken[step] for step in STEPS), strict=True)]
    read, rewrite = spread(taken["read"]), spread(taken["rewrite"])
    return Costs(messages, tokens, steps, spread(totals), read, rewrite)


def _append(bench: World) -> dict[str, float]:
    """As a turn does it; composing matches once more, which is taken off again."""
    read, chat = _timed(lambda: bench.chat(bench.append))
    match, _ = _timed(lambda: bench.tree.match(chat))
    composing, composed = _timed(lambda: bench.compose(chat))
    review, _ = _timed(lambda: bench.reviewer().review(chat, composed, bench.tree))
    lookup, stored = _timed(lambda: bench.store.lookup(composed.prompt))
    memory, limit = Memory(MemoryKind.ATTENTION), len(composed.prompt) - 1
    planning, _ = _timed(lambda: plan(composed.prompt, limit, [], stored, memory))
    spent = (match, max(0.0, composing - match), review, lookup, planning)
    return {"read": read, **dict(zip(STEPS, spent, strict=True))}


def _rewrite(bench: World) -> dict[str, float]:
    chat = bench.chat(bench.rewrite)
    composed = bench.compose(chat)
    ms, found = _timed(lambda: bench.reviewer().review(chat, composed, bench.tree))
    if found is None or found.outcome != "refused":
        raise SystemExit("bench_match: the rewrite was not seen")
    return {"rewrite": ms}


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    done = work()
    return (time.perf_counter() - began) * 1e3, done


def show(costs: Sequence[Costs]) -> None:
    right = ("TOKENS", *(step.upper() for step in STEPS), "TOGETHER", "READ JSON", "A REWRITE")
    rows = [
        (
            each.messages,
            number(each.tokens),
            *(each.steps[step] for step in STEPS),
            each.total,
            each.read,
            each.rewrite,
        )
        for each in costs
    ]
    columns = (Column("MESSAGES", right=True), *(Column(title, right=True) for title in right))
    results.show("One appended message, ms, median (least-most)", columns, rows)


def main(
    longest: Annotated[int, typer.Option(help="Messages of the longest session.", min=8)] = 2000,
    rounds: Annotated[int, typer.Option(help="Measurements of each.", min=1)] = 9,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What matching and planning take, and how that grows with the session."""
    if quick:
        longest, rounds = 64, 1
    before = environment()
    lengths = [longest // 8, longest // 4, longest // 2, longest]
    costs = []
    for messages in lengths:
        progress(f"{messages} messages")
        costs.append(measure(messages, rounds))
    goals = [Goal("matching and planning, ms", costs[-1].total.median, WITHIN_MS, at_least=False)]
    settings = {"longest": longest, "rounds": rounds, "tokens_per_message": PER_MESSAGE}
    found = {str(each.messages): asdict(each) for each in costs}
    document = results.document("bench_match", settings, found, goals, before)
    if not as_json:
        show(costs)
        results.show_goals(goals)
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
