"""One conversation, with tools and reasoning, that goes on through another API."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from sessiond.sessions.parts import Called, Part, Said, Thought, calls, said, thought
from tests.api.live.families import DEFINITIONS
from tests.api.live.recorder import Json
from tests.api.live.speakers import SPEAKERS, Answer, Asked
from tests.api.live.world import World, rig_of, template, world_of

FRONT = "You look into files. " * 12
NEW = 260
"""Tokens of a question or two results with all that the template puts around them, at most."""
CALLS = (
    "<think>\nI look into both.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "read", "arguments": {"path": "/a", "limit": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "write", "arguments": {"path": "/c", "content": "{}\\n"}}\n</tool_call>'
)
ANSWER = "<think>\nIt is empty.\n</think>\n\nThere is nothing in it."
Step = tuple[str, tuple[Part, ...], str]
"""Whose it is: user, results, or reply; its parts; its text."""


class Conversation:
    """What was said, however it was told; each turn is worded for the API that it goes through."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: list[Step] = []
        self._standing = 0

    async def turn(self, api: str, raw: str, *, keeps: bool, stream: bool) -> Answer:
        """Checks that only what is new was evaluated. `keeps`: reasoning is sent back."""
        made = calls(self._steps[-1][1]) if self._steps else ()
        self._steps.append(("results", made, "line 1\n") if made else ("user", (), "And now?"))
        self._world.will_say(raw)
        asked = Asked("talk", self._history(api, keeps), DEFINITIONS, FRONT, stream=stream)
        answer = await SPEAKERS[api].ask(self._world, asked)
        told = answer.told["sessiond"]
        assert (told["session"], told["miss"]) == ("talk", None)
        if self._standing:
            new = answer.prompt - self._standing
            assert 0 < new <= NEW
            assert new <= told["prefilled_tokens"] <= new + 1
        self._standing = answer.standing
        self._steps.append(("reply", answer.parts, ""))
        return answer

    def _history(self, api: str, keeps: bool) -> list[Json]:
        speaker = SPEAKERS[api]
        history: list[Json] = []
        for whose, parts, text in self._steps:
            if whose == "user":
                history += speaker.user(text)
            elif whose == "results":
                history += speaker.results(calls(parts), text)
            else:
                history += speaker.reply(parts, keeps=keeps)
        return history


@pytest.mark.parametrize(("kind", "path"), [("attention", None), ("hybrid", "talk")])
@pytest.mark.parametrize(("first", "second"), [*product(SPEAKERS, SPEAKERS)])
async def test_a_conversation_keeps_its_prefix_whatever_it_goes_on_through(
    tmp_path: Path, kind: str, path: str | None, first: str, second: str
) -> None:
    """The session is named by a header, or by the path, which only accepts additions.

    1. Through the first API: calls of two tools.
    2. Through the second: their results, and an answer; a question, and calls.
    3. Through the first again: their results, and a question.
    Result: every turn evaluates its new tokens and one more at most, without a miss.
    """
    async with world_of(rig_of(kind, tmp_path, template("qwen.jinja")), session=path) as world:
        talk = Conversation(world)
        for number, (api, raw) in enumerate(
            [
                (first, CALLS),
                (second, ANSWER),
                (second, CALLS),
                (first, ANSWER),
                (first, "Good."),
                (second, "Bye."),
            ]
        ):
            keeps = (number + (first < second)) % 2 == 0
            answer = await talk.turn(api, raw, keeps=keeps, stream=number % 2 == 0)
            check(answer, raw)


def check(answer: Answer, raw: str) -> None:
    made = calls(answer.parts)
    if raw == CALLS:
        assert [call.name for call in made] == ["read", "write"]
        assert (thought(answer.parts), said(answer.parts)) == ("I look into both.", "I look.")
    elif raw == ANSWER:
        assert answer.parts == (Thought("It is empty."), Said("There is nothing in it."))
    else:
        assert answer.parts == (Said(raw),)
    assert all(isinstance(call, Called) and call.id for call in made)
