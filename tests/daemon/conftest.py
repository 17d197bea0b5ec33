"""Real models in a whole daemon; what is compared is bits and counts, never seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rig import Rig
from tests.rig.rig import real

TEMPLATE = Path(__file__).parents[1] / "templates" / "gemma.jinja"
RigMaker = Callable[..., Rig]


@pytest.fixture
def rig_of(models: Callable[[str], Path], tmp_path: Path) -> RigMaker:
    """A rig on the real model of a memory kind. Every call gets its own directory."""

    def make(kind: str, **options: int) -> Rig:
        directory = tmp_path / f"rig-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        options = {"lines": 1, "n_ctx": 4096, "n_batch": 64, "n_ubatch": 64} | options
        template = TEMPLATE.read_text() if kind == "swa" else None
        return Rig(directory, real(models(kind), **options), template=template)

    return make
