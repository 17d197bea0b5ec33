"""A talk as a client holds it, and the rules every turn of it must keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.rig import Daemon, Reply, Rig
from tests.sessions.kinds import FRONT, Messages, chat, control

Between = Literal["nothing", "park", "stop", "kill"]
BETWEEN: tuple[Between, ...] = ("nothing", "park", "stop", "kill")


@dataclass
class Talk:
    """Replies are compared with a control that evaluates everything from scratch."""

    kind: str
    session: str = "talk"
    messages: Messages = field(default_factory=lambda: chat(front=FRONT))
    replies: list[Reply] = field(default_factory=list)

    def copy(self, count: int | None = None) -> Talk:
        """The first `count` turns of it, all but the last for -1."""
        kept = self.replies[:count]
        return Talk(self.kind, self.session, self.messages[: 1 + 2 * len(kept)], kept)

    async def say(self, daemon: Daemon, text: str, *, max_tokens: int = 12) -> Reply:
        asked = [*self.messages, {"role": "user", "content": text}]
        reply = await checked(daemon, self.kind, self.session, asked, max_tokens=max_tokens)
        self.messages = [*asked, {"role": "assistant", "content": reply.text}]
        self.replies.append(reply)
        return reply

    async def turns(self, daemon: Daemon, count: int) -> None:
        for _ in range(count):
            await self.say(daemon, f"Question {len(self.replies) + 1}?")

    @property
    def standing(self) -> int:
        """How many tokens were evaluated when the last turn ended."""
        report = self.replies[-1].report
        unevaluated = report.finish_reason == "length"
        return report.prompt_tokens + report.completion_tokens - unevaluated


async def checked(
    daemon: Daemon,
    kind: str,
    session: str | None,
    messages: Messages | str,
    *,
    max_tokens: int = 12,
    named: bool = True,
) -> Reply:
    """One turn; what must be true of any turn is checked."""
    before = daemon.evaluated
    reply = await daemon.say(session, messages, max_tokens=max_tokens, named=named)
    report = reply.report
    assert reply.text == control(kind, messages, max_tokens)
    assert report.cached_tokens + report.prefilled_tokens == report.prompt_tokens
    assert 0 <= report.restored_tokens <= report.cached_tokens
    assert report.prefilled_tokens >= 1
    decoded = report.completion_tokens - (report.finish_reason == "length")
    assert daemon.evaluated - before == report.prefilled_tokens + decoded
    return reply


async def interrupted(rig: Rig, daemon: Daemon, between: Between, session: str) -> Daemon:
    """The daemon that serves the next turn, after what happens between two turns."""
    if between == "nothing":
        return daemon
    if between == "park":
        await daemon.lifecycle.park(session)
        return daemon
    if between == "kill":
        await daemon.machine.saver.save_all()
    await (daemon.kill() if between == "kill" else daemon.stop())
    following = Daemon(rig)
    await following.start()
    return following
