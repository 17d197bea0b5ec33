"""A scripted talk: the same words every time, replies appended as the daemon gave them."""

from __future__ import annotations

from typing import Any

from tests.rig import Daemon, Reply

NAME = "talk"


class Conversation:
    """Keeps the messages a client would re-send."""

    def __init__(self, front_words: int = 20) -> None:
        words = " ".join(f"rule{number}" for number in range(front_words))
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": f"Follow {words}."}]
        self._turns = 0

    async def turn(self, daemon: Daemon, *, max_tokens: int = 3) -> Reply:
        self._turns += 1
        self.messages.append({"role": "user", "content": f"Say {self._turns}."})
        reply = await daemon.say(NAME, self.messages, max_tokens=max_tokens)
        self.messages.append({"role": "assistant", "content": reply.text})
        return reply

    async def turns(self, daemon: Daemon, count: int) -> list[Reply]:
        return [await self.turn(daemon) for _ in range(count)]
