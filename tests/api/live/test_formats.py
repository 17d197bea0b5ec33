"""Replies of every family as the clients read them, whole, cut anywhere, and sent back."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.engine.fake import FakeModel
from sessiond.sessions.parts import Called, Part, calls, said, thought
from tests.api.live.families import DEFINITIONS, FAMILIES, OPENED, cases_of, rig_of_family
from tests.api.live.speakers import SPEAKERS, Answer, Asked, Speaker
from tests.api.live.world import World, world_of
from tests.chat.reply.corpus import Case, plain

APIS = list(SPEAKERS)
QUESTION = "What is in it?"
CUT = {
    "hermes": ("a call", "words behind a call"),
    OPENED: ("opened, and a call", "opened"),
    "qwen_coder": ("json in a function", "null"),
    "llama": ("code", "reasoned"),
    "mistral": ("an id", "reasoned"),
    "mistral_list": ("old", None),
    "gemma": ("words behind", "a list"),
    "gemma4": ("nested", "a call"),
    "functiongemma": ("half", "a call"),
    "harmony": ("an answer", "named early"),
    "generic": ("gemma4: a call", "mistral: a call"),
}
"""A reply that is cut off after every token on a fake of attention, and one on a hybrid."""
KINDS = ("attention", "hybrid")


def read(parts: tuple[Part, ...], api: str) -> tuple[object, ...]:
    """Chat knows no order but its own; messages has no blocks of nothing but white space."""
    if api == "responses":
        return plain(part for part in parts if isinstance(part, Called) or part.text)
    words = said(parts)
    made = plain(calls(parts))
    return thought(parts), words if api == "chat" or words.strip() else "", made


async def first_turn(
    world: World, api: str, session: str, raw: str, *, stream: bool, max_tokens: int = 4096
) -> Answer:
    world.will_say(raw)
    speaker = SPEAKERS[api]
    asked = Asked(
        session,
        speaker.user(QUESTION),
        DEFINITIONS,
        max_tokens=max_tokens,
        stream=stream,
    )
    return await speaker.ask(world, asked)


def the_reason(speaker: Speaker, parts: tuple[Part, ...]) -> str:
    return speaker.called if calls(parts) else speaker.stop


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_reply_is_read_as_what_it_is(tmp_path: Path, family: str) -> None:
    """Result: through each API the client has the same words, reasoning and calls."""
    async with world_of(rig_of_family(family, "attention", tmp_path)) as world:
        for number, case in enumerate(cases_of(family)):
            for turn, api in enumerate(APIS):
                if family == "generic" and turn != number % 3:
                    continue
                for stream in (False, True) if turn == number % 3 else (True,):
                    answer = await first_turn(world, api, f"{number}{api}", case.raw, stream=stream)
                    where = (case.name, api, stream)
                    assert read(answer.parts, api) == read(case.parts, api), where
                    assert answer.reason == the_reason(SPEAKERS[api], case.parts), where
                    if stream:
                        world.wire.last.events()


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.proof_api)])
@pytest.mark.parametrize(
    ("family", "kind", "name"),
    [(family, *one) for family in CUT for one in zip(KINDS, CUT[family], strict=True) if one[1]],
)
async def test_a_reply_that_is_cut_anywhere_is_gone_on_with(
    tmp_path: Path, family: str, kind: str, name: str, step: int
) -> None:
    """Every number of tokens, or each fourth. The client sends back what it has read, with and
    without reasoning.

    Result: a stream that ends well, and a next turn that evaluates what is new.
    """
    (case,) = [case for case in cases_of(family) if case.name == name]
    async with world_of(rig_of_family(family, kind, tmp_path)) as world:
        model = world.daemon.machine.engine.model
        assert isinstance(model, FakeModel)
        first = 1 + len(family) % step
        for number, at in enumerate(range(first, len(model.script(case.raw)) + 1, step)):
            keeps = number // len(APIS) % 2 == 0
            await cut_and_gone_on(world, APIS[number % len(APIS)], case, at, keeps)
    assert {exchange.status for exchange in world.wire.exchanges} == {200}


async def cut_and_gone_on(world: World, api: str, case: Case, at: int, keeps: bool) -> None:
    session, where = f"cut-{at}", (case.name, api, at, keeps)
    answer = await first_turn(world, api, session, case.raw, stream=True, max_tokens=at)
    assert answer.reason == SPEAKERS[api].length, where
    world.wire.last.events()
    then = await next_turn(world, api, session, answer, keeps=keeps)
    told = then.told["sessiond"]
    assert told["miss"] is None, where
    assert then.standing > answer.standing, where
    assert told["cached_tokens"] >= answer.standing - 1, (where, told)


@pytest.mark.parametrize("kind", KINDS)
async def test_results_of_calls_go_back_to_a_template_that_takes_one_call(
    tmp_path: Path, kind: str
) -> None:
    """Result: the model reads both results behind what it wrote, and nothing twice."""
    (case,) = [case for case in cases_of("llama") if case.name == "calls"]
    async with world_of(rig_of_family("llama", kind, tmp_path)) as world:
        for api in APIS:
            answer = await first_turn(world, api, api, case.raw, stream=False)
            assert len(calls(answer.parts)) == 2
            then = await next_turn(world, api, api, answer, keeps=True)
            told = then.told["sessiond"]
            assert told["miss"] is None
            assert told["cached_tokens"] >= answer.standing - 1
            tree = await world.daemon.lifecycle._register.tree(api)
            (leaf,) = tree.leaves()
            tokens = tree.path_tokens(leaf)[answer.standing :]
            model = world.daemon.machine.engine.model
            new = b"".join(model.piece(int(token)) for token in tokens)
            assert new.count(b'"nothing"') == 2
            assert b"read" not in new


async def next_turn(world: World, api: str, session: str, answer: Answer, *, keeps: bool) -> Answer:
    speaker = SPEAKERS[api]
    sent_back = answer.sent_back if keeps else speaker.without_reasoning(answer.sent_back)
    made = calls(answer.parts)
    new = speaker.results(made, "nothing") if made else speaker.user("Go on.")
    asked = Asked(
        session,
        [*speaker.user(QUESTION), *sent_back, *new],
        DEFINITIONS,
        max_tokens=1,
        stream=False,
    )
    world.will_say("Done.")
    return await speaker.ask(world, asked)
