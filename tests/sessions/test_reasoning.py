"""Reasoning of earlier replies: kept as it is, or dropped when the user speaks again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.sessions.rules import Rules
from tests.rig import Daemon, Reply, Rig
from tests.sessions.families import TOOLS, Message, call_of, renderer, spelled
from tests.sessions.kinds import FRONT, KINDS, MEMORIES

OPENING = "<|im_start|>assistant\n"
ROUND = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n" + OPENING
THOUGHT = "<think>\nOne could think about this for a while.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "/a"}}\n</tool_call>'
each_kind = pytest.mark.parametrize("kind", KINDS)
contrasts = pytest.mark.parametrize("kind", ["attention", "hybrid"])


@dataclass
class Client:
    """Drops reasoning, as clients do. `script` holds what the model says next."""

    kind: str
    directory: Path
    reasoning: str = "template"
    family: str = "qwen"
    pinned: tuple[str, ...] = ()
    script: deque[str] = field(default_factory=deque)
    messages: list[Message] = field(default_factory=lambda: [{"role": "system", "content": FRONT}])

    @property
    def rig(self) -> Rig:
        def open_() -> tuple[FakeModel, FakeContext]:
            model = FakeModel(MEMORIES[self.kind])
            model.replies = self.script
            return model, FakeContext(model)

        rules = Rules(reasoning=self.reasoning, pinned_front=self.pinned)
        template = None if self.family == "chatml" else _template(self.family)
        return Rig(self.directory, open_, template=template, rules=rules)

    async def says(self, daemon: Daemon, text: str, raw: str, role: str = "user") -> Reply:
        asked: Message = {"role": role, "content": text}
        if role == "tool":
            asked["tool_call_id"] = "call00000"
        self.script.append(raw)
        self.messages.append(asked)
        reply = await daemon.say("talk", self.messages, max_tokens=None, tools=TOOLS)
        self.messages.append(_echo(raw))
        return reply


def _template(family: str) -> str:
    return (Path(__file__).parent.parent / "templates" / f"{family}.jinja").read_text()


def _echo(raw: str) -> Message:
    said = raw.replace(THOUGHT, "")
    if CALL not in said:
        return {"role": "assistant", "content": said}
    call = call_of(0, "read_file", {"path": "/a"})
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def ended(reply: Reply) -> int:
    return reply.report.prompt_tokens + reply.report.completion_tokens


async def path_of(daemon: Daemon, turn: int) -> str:
    tree = await daemon.lifecycle._register.tree("talk")
    return spelled(tree.path_tokens(turn))


def tokens(text: str) -> int:
    return len(renderer("qwen").text(text, first=False))


@each_kind
async def test_kept_reasoning_costs_nothing(state_dir: Path, kind: str) -> None:
    client = Client(kind, state_dir, reasoning="keep")
    async with client.rig.daemon() as daemon:
        last = await client.says(daemon, "A?", f"{THOUGHT}An A.")
        for number in range(3):
            reply = await client.says(daemon, f"B{number}?", f"{THOUGHT}A B.")
            assert reply.report.cached_tokens == ended(last)
            assert reply.report.prefilled_tokens == tokens(ROUND.format("B0?"))
            last = reply
        assert (await path_of(daemon, 4)).count(THOUGHT) == 4


@each_kind
@pytest.mark.parametrize("restart", [False, True])
async def test_reasoning_is_dropped_when_the_user_speaks_again(
    state_dir: Path, kind: str, restart: bool
) -> None:
    """Every turn lands behind the last question and reads the answer without its reasoning."""
    client = Client(kind, state_dir)
    rig = client.rig
    daemon = Daemon(rig)
    await daemon.start()
    last = await client.says(daemon, "A?", f"{THOUGHT}An A.")
    for number in range(4):
        if restart:
            await daemon.stop()
            daemon = Daemon(rig)
            await daemon.start()
        reply = await client.says(daemon, f"B{number}?", f"{THOUGHT}A B.")
        assert reply.report.cached_tokens in (
            last.report.prompt_tokens,
            last.report.prompt_tokens - 1,
        )
        again = len("An A.") if number == 0 else len("A B.")
        assert reply.report.prefilled_tokens <= again + tokens(ROUND.format("B0?")) + 1
        assert reply.report.miss is None
        last = reply
    path = await path_of(daemon, 5)
    assert path.count(THOUGHT) == 1
    assert path.endswith(f"{THOUGHT}A B.")
    assert path.count("A B.") == 4
    await daemon.kill()


@contrasts
async def test_nothing_is_dropped_inside_a_tool_loop(state_dir: Path, kind: str) -> None:
    client = Client(kind, state_dir)
    async with client.rig.daemon() as daemon:
        first = last = await client.says(daemon, "Look.", THOUGHT + CALL)
        for number in range(4):
            raw = THOUGHT + (CALL if number < 3 else "That is all.")
            reply = await client.says(daemon, f"{number} files", raw, role="tool")
            assert reply.report.cached_tokens == ended(last)
            last = reply
        assert (await path_of(daemon, 5)).count(THOUGHT) == 5
        reply = await client.says(daemon, "And now?", f"{THOUGHT}Done.")
        path = await path_of(daemon, 6)
        assert first.report.prompt_tokens - reply.report.cached_tokens in (0, 1)
        assert path.count(THOUGHT) == 1
        assert path.count("files") == 4
        assert path.count(CALL) == 4


@contrasts
async def test_replies_without_reasoning_are_appended_to(state_dir: Path, kind: str) -> None:
    client = Client(kind, state_dir)
    async with client.rig.daemon() as daemon:
        last = await client.says(daemon, "A?", "An A.")
        reply = await client.says(daemon, "B?", f"{THOUGHT}A B.")
        assert reply.report.cached_tokens == ended(last)
        asked = reply.report.prompt_tokens
        reply = await client.says(daemon, "C?", "A C.")
        assert asked - reply.report.cached_tokens in (0, 1)
        last, reply = reply, await client.says(daemon, "D?", "A D.")
        assert reply.report.cached_tokens == ended(last)
        assert THOUGHT not in await path_of(daemon, 4)


@contrasts
async def test_the_line_with_its_reasoning_stays_for_those_who_go_back(
    state_dir: Path, kind: str
) -> None:
    client = Client(kind, state_dir)
    async with client.rig.daemon() as daemon:
        await client.says(daemon, "A?", f"{THOUGHT}An A.")
        await client.says(daemon, "B?", f"{THOUGHT}A B.")
        assert (await path_of(daemon, 1)).count(THOUGHT) == 1
        again = await daemon.say("talk", client.messages[:4], max_tokens=None, tools=TOOLS)
        assert again.report.prefilled_tokens == 1


@contrasts
async def test_with_a_pinned_clock_the_question_is_found_too(state_dir: Path, kind: str) -> None:
    """What was told with a question stays with it, though the client does not know of it."""
    client = Client(kind, state_dir, pinned=("clock",))
    async with client.rig.daemon() as daemon:
        prompts = []
        for number in range(5):
            client.messages[0]["content"] = f"{FRONT}\nIt is 10:0{number}."
            reply = await client.says(daemon, f"Question {number}?", f"{THOUGHT}Answer {number}.")
            prompts.append(reply.report)
        path = await path_of(daemon, 5)
    for before, after in pairwise(prompts):
        assert before.prompt_tokens - after.cached_tokens in (0, 1)
    assert path.count(THOUGHT) == 1
    for number in range(1, 5):
        question, told = f"Question {number}?", f"It is 10:0{number}."
        assert path.count(told) == 1
        assert path.index(question) < path.index(told) < path.find(f"Answer {number}")


@contrasts
async def test_a_template_that_repeats_its_front_is_rendered_whole(
    state_dir: Path, kind: str
) -> None:
    """The prompt is the template's own, and what it shares with the last one is not read again."""
    client = Client(kind, state_dir, reasoning="keep", family="mistral_tools")
    async with client.rig.daemon() as daemon:
        first = await client.says(daemon, "A?", f"{THOUGHT}An A.")
        reply = await client.says(daemon, "B?", f"{THOUGHT}A B.")
        path = await path_of(daemon, 2)
    front = path.index("[AVAILABLE_TOOLS]")
    assert path.startswith("<s>[INST] A?[/INST] An A.<|im_end|>[AVAILABLE_TOOLS]")
    assert reply.report.cached_tokens <= front
    if kind == "attention":
        assert reply.report.cached_tokens == tokens("<s>[")
    assert first.report.prompt_tokens > front
