from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.store.store import Store
from tests.store.samples import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with room; what a test leaves behind must add up."""
    store = open_store(tmp_path)
    yield store
    store.close()
