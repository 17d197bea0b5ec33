"""How far a line has its tokens in common with the stored states of other lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from sessiond.store.chain import BLOCK_TOKENS, Kind
from sessiond.store.index import FEW, Index


def shared(index: Index, path: Sequence[str], own: Sequence[bytes]) -> int:
    """The last position at which a block of another line has the same tokens as the first of `own`.

    `own` are the tokens of all lines that do not count as others, `path` the chain keys of the
    first. The caller holds the vault's lock.
    """
    known, counts = index.records(path), index.counts(path, [Kind.BLOCK])
    for place in reversed(range(len(path))):
        below = path[place + 1] if place + 1 < len(path) else ""
        if counts.get(path[place], 0) > (below in known):
            start = place * BLOCK_TOKENS
            if found := _shared_after(index, path[place], [line[4 * start :] for line in own]):
                return start + found
    return 0


def _shared_after(index: Index, parent: str, own: Sequence[bytes]) -> int:
    family = index.siblings(parent)
    strangers = (
        (key, count)
        for key, count in family.nearest(own[0])
        if not any(line.startswith(family.tokens(key)) for line in own)
    )
    while some := dict(islice(strangers, FEW)):
        present = [key for key, record in index.records(some).items() if record.present]
        if present:
            return max(some[key] for key in present)
    return 0
