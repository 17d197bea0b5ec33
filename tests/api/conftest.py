"""One server for all tests of this folder; its script is reset before each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from sessiond.api.routing import ApiConfig
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

LIMIT = 1024 * 1024


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What takes long to collect is, for the proof alone."""
    if collection_path.name == "test_bounds.py" and config.option.markexpr != "proof_api":
        return True
    return None


@pytest.fixture(scope="session")
def shared() -> Iterator[tuple[str, ScriptedTurns]]:
    turns = ScriptedTurns()
    config = ApiConfig(max_body=LIMIT, keepalive=0.1, allowed_hosts=("ai.example", "*.lan.test"))
    with served(turns, config) as url:
        yield url, turns


@pytest.fixture
def turns(shared: tuple[str, ScriptedTurns]) -> ScriptedTurns:
    ScriptedTurns.__init__(shared[1])
    return shared[1]


@pytest.fixture
def url(shared: tuple[str, ScriptedTurns]) -> str:
    return shared[0]


@pytest.fixture(scope="session")
def shared_client(shared: tuple[str, ScriptedTurns]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared[0], timeout=10) as client:
        yield client


@pytest.fixture
def client(shared_client: httpx.Client, turns: ScriptedTurns) -> httpx.Client:
    return shared_client


@pytest.fixture(scope="session")
def shared_sdk(shared: tuple[str, ScriptedTurns]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared[0]}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def sdk(shared_sdk: openai.OpenAI, turns: ScriptedTurns) -> openai.OpenAI:
    return shared_sdk
