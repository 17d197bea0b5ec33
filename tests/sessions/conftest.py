"""Properties are about values, not about how busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from sessiond.sessions import turn_task

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
MEMORY = Path("/dev/shm")
SWITCH_S = 0.0005


@pytest.fixture(autouse=True)
def served() -> Iterator[None]:
    """As in the daemon, the engine thread does not wait long for the interpreter, nor the loop."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def nobody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that leaves has left: a turn does not go on for one that may come again."""
    monkeypatch.setattr(turn_task, "LINGER_S", 0.0)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Where a daemon under test lives: in memory if there is such a place, since it syncs a lot."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="sessiond-test-") as directory:
        yield Path(directory)
