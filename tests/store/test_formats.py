"""A store that the first released version has left is used as it is, and a newer one left alone.

`golden/store-1` was written by that version: a line of two blocks with two snapshots, a block of
another model and owner; its index as SQL.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sessiond.store.chain import Kind
from sessiond.store.database import SCHEMA
from tests.store.samples import fill, line, open_store, payload

GOLDEN = Path(__file__).parent / "golden" / "store-1"


def restore(folder: Path, *, index: bool = True) -> Path:
    """The files, and the index or none."""
    for shelf in ("blocks", "snapshots"):
        shutil.copytree(GOLDEN / shelf, folder / "cache" / shelf)
    path = folder / "state" / "index.sqlite"
    path.parent.mkdir()
    if index:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((GOLDEN / "index.sql").read_text())
    return path


@pytest.mark.parametrize("index", [True, False])
def test_all_of_it_is_found_and_read(tmp_path: Path, index: bool) -> None:
    restore(tmp_path, index=index)
    store = open_store(tmp_path)
    stored = store.lookup(line(300, 1))
    assert stored.tokens == 300
    assert [bytes(store.read(b.key)) for b in stored.blocks] == [
        payload(100, 10_000),
        payload(100, 10_256),
    ]
    assert [(s.position, s.kind, bytes(store.read(s.key))) for s in stored.snapshots] == [
        (290, Kind.SNAPSHOT, payload(50, 7)),
        (300, Kind.WHOLE, payload(60, 8)),
    ]
    assert (store.usage().blocks, store.usage().snapshots) == (3, 2)
    assert store.verify().damaged == ()
    fill(store, line(600, 1), 100, 1)
    store.pin([block.key for block in store.lookup(line(600, 1)).blocks])
    assert store.lookup(line(600, 1)).tokens == 600
    store.check_integrity()
    store.close()
    other = open_store(tmp_path, fingerprint="model-b", owner="ada")
    assert other.lookup(line(40, 2)).tokens == 40
    other.close()


def test_a_newer_index_is_put_aside_whole_and_made_anew(tmp_path: Path) -> None:
    path = restore(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = path.read_bytes()
    store = open_store(tmp_path)
    assert Path(f"{path}.newer").read_bytes() == before
    assert store.lookup(line(300, 1)).tokens == 300
    store.check_integrity()
    store.close()
