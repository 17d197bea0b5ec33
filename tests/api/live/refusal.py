"""A refusal as the clients raise it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anthropic
import openai
import pytest

from tests.api.live.recorder import Json
from tests.api.live.world import World


async def refused(world: World, asked: Awaitable[object]) -> Json:
    """The error of a request, which has not begun a stream."""
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as error:
        await asked
    assert not world.wire.last.streams
    return error_of(error.value)


def error_of(error: openai.APIStatusError | anthropic.APIStatusError) -> Json:
    """OpenAI's client takes the error object out of the body, Anthropic's does not."""
    body: Any = error.body
    inner: Json = body.get("error", body)
    return inner
