"""Agents in a loop of tool calls: reasoning dropped, calls written anew, and nothing read twice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.sessions.transcript import read_chat
from tests.rig import Daemon, Reply, Rig
from tests.sessions.families import (
    FAMILIES,
    NOW,
    TOOLS,
    Family,
    Message,
    call_of,
    renderer,
    spelled,
)
from tests.sessions.kinds import FRONT, KINDS, MEMORIES
from tests.sessions.talk import Between, interrupted

SLACK = 16
TURNS = 12
QUESTIONS = {0: "Look around.", 5: "And the other one?", 9: "Write it down."}
"""Turns that begin with the user; the others with what the tool called before gave."""
BREAKS: dict[int, Between] = {3: "stop", 6: "kill", 8: "park"}
"""What happens before these turns."""


@dataclass
class Agent:
    """Says what a client says in such a loop, and counts what is new in every request."""

    family: Family
    script: deque[str]
    messages: list[Message] = field(default_factory=lambda: [{"role": "system", "content": FRONT}])
    written: list[str] = field(default_factory=list)
    standing: int = 0

    def rig(self, kind: str, directory: Path) -> Rig:
        """All its daemons read from one script."""

        def open_() -> tuple[FakeModel, FakeContext]:
            model = FakeModel(MEMORIES[kind], chat_template=self.family.template)
            model.replies = self.script
            return model, FakeContext(model)

        return Rig(directory, open_)

    async def turn(self, daemon: Daemon, number: int) -> None:
        """One turn, whose cost is checked."""
        new = self._asked(number)
        raw, echo = self._answer(number)
        self.script.append(raw)
        reply = await daemon.say("loop", [*self.messages, *new], max_tokens=None, tools=TOOLS)
        assert reply.text == raw
        self._check(reply, new)
        self.messages += [*new, echo]
        self.written.append(raw)
        self.standing = reply.report.prompt_tokens + reply.report.completion_tokens

    def _check(self, reply: Reply, new: list[Message]) -> None:
        report = reply.report
        assert report.miss is None
        assert report.cached_tokens == self.standing
        if self.standing:
            assert report.prefilled_tokens <= self._tokens_of(new) + SLACK

    def _tokens_of(self, new: list[Message]) -> int:
        """As the template writes them, with the generation prompt."""
        family, asked = self.family, [*self.messages, *new]
        if new[0]["role"] == "user":
            return family.tokens(family.text(asked).rpartition(self.messages[-1]["content"])[2])
        return family.count(asked) - family.count(self.messages) + family.tokens(family.opening)

    def _asked(self, number: int) -> list[Message]:
        if number in QUESTIONS:
            return [{"role": "user", "content": QUESTIONS[number]}]
        calls = self.messages[-1]["tool_calls"]
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": f"{number}: " + "line\n" * 3}
            for call in calls
        ]

    def _answer(self, number: int) -> tuple[str, Message]:
        """What the model writes, and how the client sends it back ever after."""
        thought = self.family.reasoned(f"What next, in {number}?")
        if number + 1 in QUESTIONS or number == TURNS - 1:
            said = f"That was step {number}."
            return f"{thought}{said}", {"role": "assistant", "content": said}
        said = f"I call for step {number}." if self.family.talks and number % 2 else ""
        calls = self._calls(number)
        raw = thought + said + "".join(self.family.called(name, given) for name, given in calls)
        echoed = [call_of(10 * number + i, *call) for i, call in enumerate(calls)]
        content = said or (None if number % 4 else "")
        return raw, {"role": "assistant", "content": content, "tool_calls": echoed}

    def _calls(self, number: int) -> list[tuple[str, dict[str, Any]]]:
        read = ("read_file", {"path": f"/src/{number}.py", "limit": 10 * number})
        content = '{"version": %d}' % number  # noqa: UP031
        write = ("write_file", {"path": f"/src/{number}.json", "content": content})
        return (
            [read, write] if self.family.many and number % 3 == 1 else [[read, write][number % 2]]
        )


async def path_text(daemon: Daemon) -> str:
    """What the line's tokens spell."""
    tree = await daemon.lifecycle._register.tree("loop")
    (leaf,) = tree.leaves()
    return spelled(tree.path_tokens(leaf))


OTHERS = [name for name in FAMILIES if name != "qwen"]


@pytest.mark.parametrize(
    ("family", "kind"),
    [*product(["qwen"], KINDS), *product(OTHERS, ["hybrid+swa"]), ("mistral_calls", "attention")],
)
async def test_a_tool_loop_evaluates_what_is_new_through_restarts(
    state_dir: Path, family: str, kind: str
) -> None:
    agent = Agent(FAMILIES[family], deque())
    rig = agent.rig(kind, state_dir)
    daemon = Daemon(rig)
    await daemon.start()
    try:
        for number in range(TURNS):
            daemon = await interrupted(rig, daemon, BREAKS.get(number, "nothing"), "loop")
            await agent.turn(daemon, number)
        text = await path_text(daemon)
    finally:
        await daemon.kill()
    at = -1
    for raw in agent.written:
        at = text.index(raw, at + 1)


@pytest.mark.parametrize(
    ("family", "rest"),
    [
        (
            "qwen",
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nout\n</tool_response><|im_end|>\n",
        ),
        ("llama_tools", '<|im_end|><|start_header_id|>ipython<|end_header_id|>\n\n"out"<|im_end|>'),
        ("mistral_calls", "<|im_end|>[TOOL_RESULTS]call00000[TOOL_CONTENT]out[/TOOL_RESULTS]"),
        ("gemma_code", "<|im_end|>\n<start_of_turn>user\n```tool_output\nout\n```<|im_end|>\n"),
        (
            "harmony",
            "<|im_end|><|start|>functions.read_file to=assistant<|channel|>commentary<|message|>"
            '"out"<|end|>',
        ),
    ],
)
def test_the_cut_after_a_call_is_where_the_reply_ends(family: str, rest: str) -> None:
    """Also where templates refuse a result without a call, or end a call as nothing else."""
    call = call_of(0, "read_file", {"path": "<|im_end|>", "limit": 3})
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "out"},
    ]
    suffix = renderer(family).suffix(read_chat(messages, TOOLS), 2, NOW)
    assert suffix is not None
    assert spelled(suffix) == rest + FAMILIES[family].opening
