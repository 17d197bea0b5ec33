"""An agent with tools and a front full of what changes, as its client holds the conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessiond.sessions.rules import Rules
from tests.rig import Daemon, Reply, Rig
from tests.rig.rig import fake
from tests.sessions.kinds import MEMORIES

Fields = dict[str, Any]
TEMPLATE = (Path(__file__).parent.parent / "templates" / "qwen.jinja").read_text()
"""It writes the tools into the front."""
SYSTEM = """You are a careful agent that works in a folder.
Time: 10:02
Started: 2025-11-29T10:02:11Z
Log of 2025-11-29
Date: November 29, 2025
Weekday: Saturday
Request: 3f2504e0-4f89-11d3-9a0c-0305e82c3301
Session: sess_01AbCd
git status: M main.py"""
REMINDER = "<system-reminder>Be careful.</system-reminder>"
QUESTIONS = (
    "Today is 2025-11-29. What is in main.py?",
    f"Which of them is the longest? {REMINDER}",
    *(f"And what does function {n} do, in a few words?" for n in range(2, 10)),
)
CALL = (
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "main.py", "from": 1}}\n</tool_call>'
)
OUTPUT = "".join(f"def function_{n}(): return {n} * {n}\n" for n in range(6))
REPLIES = (
    f"Let me look.\n{CALL}",
    "It has six functions, one under the other.",
    *(f"That of function {n} is what you ask for, it seems to me." for n in range(1, 10)),
)


def tool(name: str, description: str = "", limit: int = 10) -> Fields:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "limit": limit}
    function = {"name": name, "description": description or name, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [tool("read_file", "reads a file"), tool("grep")]


@dataclass
class Agent:
    """`standing`: tokens that are evaluated when the last turn has ended."""

    session: str = "talk"
    messages: list[Fields] = field(default_factory=lambda: [_system()])
    tools: list[Fields] = field(default_factory=lambda: [dict(one) for one in TOOLS])
    standing: int = 0

    def asking(self, text: str) -> list[Fields]:
        return [*self.messages, {"role": "user", "content": text}]

    async def say(self, daemon: Daemon, *new: Fields) -> Reply:
        """An append: what is new is evaluated at most; another line may have begun it too."""
        told = [*self.messages, *new]
        reply = await daemon.say(self.session, told, tools=self.tools, max_tokens=300)
        report = reply.report
        if self.standing:
            assert report.cached_tokens >= self.standing
            assert report.miss is None
        self.standing = report.prompt_tokens + report.completion_tokens
        self.standing -= report.finish_reason == "length"
        self.messages = [*told, as_client(reply.text)]
        return reply

    async def ask(self, daemon: Daemon, text: str) -> Reply:
        return await self.say(daemon, {"role": "user", "content": text})

    async def work(self, daemon: Daemon, questions: Sequence[str] = QUESTIONS) -> None:
        """The first question is answered with the help of a tool."""
        for number, question in enumerate(questions):
            await self.ask(daemon, question)
            if not number:
                call = self.messages[-1]["tool_calls"][0]["id"]
                await self.say(daemon, {"role": "tool", "tool_call_id": call, "content": OUTPUT})


def _system() -> Fields:
    return {"role": "system", "content": SYSTEM}


def as_client(reply: str) -> Fields:
    """As a client keeps a reply: its call parsed."""
    text, mark, rest = reply.partition("<tool_call>")
    message: Fields = {"role": "assistant", "content": text.strip()}
    if mark:
        function = json.loads(rest.removesuffix("</tool_call>"))
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    return message


def agent_rig(kind: str, directory: Path, *more: str, max_rewind: int = 60) -> Rig:
    """`more` is said after the replies to all questions; then replies are made up."""
    return Rig(
        directory,
        fake(MEMORIES[kind], replies=[*REPLIES, *more]),
        template=TEMPLATE,
        rules=Rules(max_rewind=max_rewind),
    )
