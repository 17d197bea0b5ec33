"""Worlds are made once and shared; contexts are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.engine.worlds import REAL, WORLDS, World, fake_world, real_world

settings.register_profile("engine", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("engine")


@pytest.fixture(scope="session")
def worlds(models: Callable[[str], Path]) -> Callable[[str], World]:
    """The world of that name: a memory kind for a real model, or one of the fakes."""
    made: dict[str, World] = {}

    def of(name: str) -> World:
        if name not in made:
            made[name] = real_world(name, models(name)) if name in REAL else fake_world(name)
        return made[name]

    return of


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> Iterator[World]:
    """Every memory kind, real and fake, one after the other."""
    found = worlds(request.param)
    yield found
    found.close_contexts()


@pytest.fixture
def smol(worlds: Callable[[str], World]) -> Iterator[World]:
    found = worlds("attention")
    yield found
    found.close_contexts()
