from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sessiond.store.store import Store
from tests.store.samples import open_store

MEMORY = Path("/dev/shm")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with room; what a test leaves behind must add up."""
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """In memory if there is such a place, for what writes very much."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="sessiond-test-") as directory:
        yield Path(directory)
