"""All of a daemon on a fake engine behind a real socket, and the clients that people use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anthropic
import httpx2
import openai

from sessiond.engine.fake import FakeModel
from sessiond.sessions.limits import Limits
from tests.api.live.recorder import Recorder
from tests.api.serving import serving
from tests.rig import Daemon, Rig
from tests.rig.rig import fake
from tests.sessions.kinds import MEMORIES

TEMPLATES = Path(__file__).parents[2] / "templates"


@dataclass(frozen=True)
class World:
    daemon: Daemon
    url: str
    openai: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic
    wire: Recorder

    def will_say(self, *replies: str) -> None:
        """What the model writes next, whatever it is asked."""
        model = self.daemon.machine.engine.model
        assert isinstance(model, FakeModel)
        assert not model.replies, "what was to be said before was never asked for"
        model.replies.extend(replies)


def template(name: str) -> str:
    return (TEMPLATES / name).read_text()


def rig_of(
    kind: str,
    directory: Path,
    source: str,
    *,
    control: tuple[str, ...] = (),
    tool_format: str = "",
    limit: int | None = None,
    limits: Limits | None = None,
) -> Rig:
    return Rig(
        directory,
        fake(MEMORIES[kind], control=control),
        template=source,
        tool_format=tool_format,
        limit=limit,
        limits=limits or Limits(drain=5.0),
    )


@asynccontextmanager
async def world_of(
    rig: Rig, *, session: str | None = None, retries: int = 0, loaded: bool = True
) -> AsyncGenerator[World, None]:
    """`session`: the clients' base URL is the path of that session. Not `loaded`: not yet."""
    daemon = Daemon(rig)
    await (daemon.start() if loaded else daemon.lifecycle.start())
    try:
        async with (
            serving(daemon.lifecycle) as url,
            _clients(daemon, url, session, retries) as all_,
        ):
            yield all_
    finally:
        await daemon.stop()


@asynccontextmanager
async def _clients(
    daemon: Daemon, url: str, session: str | None, retries: int
) -> AsyncGenerator[World, None]:
    base = f"{url}/s/{session}" if session else url
    wire = Recorder()
    async with (
        httpx2.AsyncClient(transport=wire, timeout=30) as http,
        openai.AsyncOpenAI(
            base_url=f"{base}/v1", api_key="none", max_retries=retries, http_client=http
        ) as chat,
        anthropic.AsyncAnthropic(
            base_url=base, api_key="none", max_retries=retries, http_client=http
        ) as claude,
    ):
        yield World(daemon, url, chat, claude, wire)
