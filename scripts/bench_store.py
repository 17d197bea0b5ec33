"""How fast verified states come back from a warm page cache, next to a plain read and copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from sessiond.engine.memory import Tokens
from sessiond.store.chain import BLOCK_TOKENS
from sessiond.store.store import Store

Bytes = npt.NDArray[np.uint8]


def main(
    files: Annotated[int, typer.Option(help="How many blocks.")] = 40,
    size: Annotated[int, typer.Option(help="Bytes of one block.")] = 6_000_000,
    rounds: Annotated[int, typer.Option(help="The best of so many counts.")] = 5,
    directory: Annotated[Path | None, typer.Option(help="Where to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Writes blocks, then reads them back plainly, one by one, and as a stream."""
    with TemporaryDirectory(dir=directory) as folder:
        result = measure(Path(folder), files, size, rounds)
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, value in result.items():
        typer.echo(f"{name:<24}{value:>12,.3f}")


def measure(folder: Path, files: int, size: int, rounds: int) -> dict[str, float]:
    store = Store(
        folder / "cache",
        folder / "index.sqlite",
        fingerprint="bench",
        quota=2 * files * size,
        keep_free=0,
    )
    tokens = np.arange(files * BLOCK_TOKENS, dtype=np.int32)
    wrote = _seconds(lambda: _write(store, tokens, size), 1)
    found = store.lookup(tokens)
    keys = [block.key for block in found.blocks]
    paths = sorted(path for path in (folder / "cache" / "blocks").glob("*/*"))
    target: Bytes = np.empty(size, dtype=np.uint8)
    plain = read = stream = float("inf")
    for _ in range(rounds):
        plain = min(plain, _seconds(lambda: _plain(paths, size, target), 1))
        read = min(read, _seconds(lambda: _read(store, keys, target), 1))
        stream = min(stream, _seconds(lambda: _stream(store, keys, target), 1))
    total = files * size / 1e9
    result = {
        "write_GB_per_s": total / wrote,
        "plain_GB_per_s": total / plain,
        "read_GB_per_s": total / read,
        "stream_GB_per_s": total / stream,
        "read_of_plain": plain / read,
        "stream_of_plain": plain / stream,
        "lookup_ms": 1e3 * _seconds(lambda: store.lookup(tokens), rounds),
        "touch_ms": 1e3 * _seconds(lambda: store.touch(keys), rounds),
    }
    store.close()
    return result


def _write(store: Store, tokens: Tokens, size: int) -> None:
    payload = np.random.default_rng(1).bytes(size)
    for start in range(0, len(tokens), BLOCK_TOKENS):
        store.put_block(tokens[: start + BLOCK_TOKENS], start, payload)


def _plain(paths: list[Path], size: int, target: Bytes) -> None:
    for path in paths:
        target[:] = np.frombuffer(path.read_bytes(), dtype=np.uint8)[-size:]


def _read(store: Store, keys: list[str], target: Bytes) -> None:
    for key in keys:
        target[:] = np.frombuffer(store.read(key), dtype=np.uint8)


def _stream(store: Store, keys: list[str], target: Bytes) -> None:
    for payload in store.stream(keys):
        target[:] = np.frombuffer(payload, dtype=np.uint8)


def _seconds(work: Callable[[], object], rounds: int) -> float:
    """The best of `rounds`."""
    taken: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


if __name__ == "__main__":
    typer.run(main)
