"""Anthropic's own client, on the server that all tests of the API share."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest

from tests.api.scripted import ScriptedTurns


@pytest.fixture(scope="session")
def shared_claude(shared: tuple[str, ScriptedTurns]) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared[0], api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def claude(shared_claude: anthropic.Anthropic, turns: ScriptedTurns) -> anthropic.Anthropic:
    return shared_claude
