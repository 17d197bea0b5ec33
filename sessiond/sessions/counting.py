"""How many tokens a prompt has, before anybody asks for a reply to it."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.transcript import Content, Text


async def count_tokens(renderer: PromptRenderer, content: Content) -> int:
    """Of a whole rendering; a session that knows its beginning may spell it with a few others.

    Off the event loop. Raises TemplateError.
    """
    return await asyncio.to_thread(_count, renderer, content)


def _count(renderer: PromptRenderer, content: Content) -> int:
    if isinstance(content, Text):
        return len(renderer.text(content.prompt, first=True))
    now = datetime.fromtimestamp(time.time()).astimezone()
    return len(renderer.full(content, now))
