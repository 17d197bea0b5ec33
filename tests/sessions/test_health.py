"""What /health says of the lines."""

from __future__ import annotations

from pathlib import Path

from tests.sessions.kinds import chat, rig_of


async def test_health_counts_the_lines_in_the_context(state_dir: Path) -> None:
    async with rig_of("attention", state_dir, lines=3).daemon() as daemon:
        before = await daemon.lifecycle.health()
        assert (before.resident_lines, before.max_lines) == (0, 3)
        for name in ("one", "two"):
            await daemon.say(name, chat(f"I am {name}."), max_tokens=3)
        assert (await daemon.lifecycle.health()).resident_lines == 2
        await daemon.lifecycle.park("one")
        assert (await daemon.lifecycle.health()).resident_lines == 1
