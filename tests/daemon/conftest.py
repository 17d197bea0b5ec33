"""Real models in a whole daemon; what is compared is bits and counts, never seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.engine.worlds import narrow_window
from tests.rig import Rig
from tests.rig.rig import real

TEMPLATE = Path(__file__).parents[1] / "templates" / "gemma.jinja"
RigMaker = Callable[..., Rig]


@pytest.fixture
def rig_of(models: Callable[[str], Path], tmp_path: Path) -> RigMaker:
    """A rig on the real model of a memory kind. Every call gets its own directory.

    `narrow` gives Gemma a window of 32, so that lines of 256
    tokens are longer than its window cache; a batch is 32 tokens then, and up to 3 lines.
    """

    def make(kind: str, *, narrow: bool = False, **options: Any) -> Rig:
        directory = tmp_path / f"rig-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        options = {"lines": 1, "n_ctx": 4096, "n_batch": 64, "n_ubatch": 64} | options
        if narrow and kind == "swa":
            options |= {"n_batch": 32, "n_ubatch": 32}
            options["extra"] = {"kv_overrides": narrow_window()}
        template = TEMPLATE.read_text() if kind == "swa" else None
        return Rig(directory, real(models(kind), **options), template=template)

    return make


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """In memory if there is such a place."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory, prefix="sessiond-test-") as directory:
        yield Path(directory)
