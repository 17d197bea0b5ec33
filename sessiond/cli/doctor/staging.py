"""The memory that snapshots are copied into: pinned, locked or neither."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.cli import words
from sessiond.cli.doctor.finding import Finding, ok, warning
from sessiond.engine.staging import BUFFERS

UNLIMITED = -1
_KINDS = {"device": "pinned by the GPU's driver", "locked": "locked", "none": "none needed"}
_MEND = "LimitMEMLOCK=infinity in the unit, or before serve: ulimit -l unlimited"


@dataclass(frozen=True, slots=True)
class Facts:
    """`kind` as in health, "" where no daemon says. `limit` of locked memory in bytes, of the
    daemon or else of this shell; `needed` bytes for two buffers. `privileged`: no limit holds.
    """

    kind: str
    detail: str
    limit: int
    needed: int
    privileged: bool = False


def observe(kind: str, detail: str, snapshot_bytes: int, pid: int | None) -> Facts:
    limit = _limit_of(pid) if pid is not None else None
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Facts(kind, detail, limit, BUFFERS * snapshot_bytes, os.geteuid() == 0)


def judge(facts: Facts) -> Iterator[Finding]:
    if facts.kind == "pageable":
        yield warning(
            "staging",
            f"pageable: {facts.detail}",
            "Snapshots are copied more slowly, and while they are the engine waits.",
            _MEND,
        )
    elif facts.kind:
        yield ok("staging", _KINDS.get(facts.kind, facts.kind))
    if facts.kind in ("device", "none"):
        return
    allowed = "any amount" if _is_free(facts) else words.size(facts.limit)
    if _is_free(facts) or facts.limit >= facts.needed:
        yield ok("memlock", f"{allowed} may be locked, {words.size(facts.needed)} needed")
    elif not facts.kind:
        yield warning(
            "memlock",
            f"{allowed} may be locked, {words.size(facts.needed)} needed",
            "Snapshots are copied through pageable memory, which is slower.",
            _MEND,
        )


def _is_free(facts: Facts) -> bool:
    return facts.privileged or facts.limit == UNLIMITED


def _limit_of(pid: int) -> int | None:
    """The soft limit of a process, None where it cannot be seen."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("Max locked memory")]
    if not found:
        return None
    soft = found[0][3]
    return UNLIMITED if soft == "unlimited" else int(soft)
