"""Whether a model's memory obeys the state codec, found out in a child process.

Some architectures assert inside `seq_cp`: an abort must not take the daemon with it. The child cuts
a short state into blocks and a snapshot, puts it together in a fresh context and compares logits
and bytes. `python -m sessiond.engine.probe` reads settings as JSON on stdin and answers one JSON
line.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sessiond.engine.codec import HEADER, StateCodec
from sessiond.engine.context import Context, Payload
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.engine.settings import ContextSettings

_CUTS = (0, 64, 96)
_TAIL = 8
_SEQUENCES = 4
_LINE, _OTHER, _MOVER, _EMPTY = range(_SEQUENCES)
_TOLERANCE = 0.01
"""Share of the largest logit. A wrong state is off by far more, rounding on a GPU by far less."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`codec` is "blocks", or "whole" with the reason in `detail`.

    Sizes for planning: `token_bytes` per token in blocks, `snapshot_bytes` of one sequence without
    a window, `window_token_bytes` per token of the window on top.
    """

    codec: Literal["blocks", "whole"]
    detail: str
    token_bytes: int
    snapshot_bytes: int
    window_token_bytes: int


def probe(settings: ContextSettings, timeout: float = 600.0) -> Verdict:
    """Blocks for as long as loading the model takes, plus a few small evaluations."""
    request = asdict(settings) | {"model": str(settings.model)}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "sessiond.engine.probe"],
            input=json.dumps(request, default=str),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _untested(f"the self-test did not end within {timeout:.0f} s")
    except OSError as error:
        return _untested(f"the self-test could not be started: {error}")
    if child.returncode:
        return _untested(f"the self-test died: {_last_words(child)}")
    try:
        return Verdict(**json.loads(child.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        return _untested("the self-test gave no answer")


def _untested(why: str) -> Verdict:
    return Verdict("whole", why, 0, 0, 0)


def _last_words(child: subprocess.CompletedProcess[str]) -> str:
    """What llama.cpp asserted, else the last line, with the signal if there was one."""
    lines = child.stderr.strip().splitlines()
    asserted = [line for line in lines if "GGML_ASSERT" in line or "GGML_ABORT" in line]
    words = (asserted or lines or [""])[-1][:200]
    code = child.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"{words} ({how})" if words else how


def examine(first: Context, second: Context, n_vocab: int) -> Verdict:
    """Save from one context, restore into another of the same shape, compare."""
    tokens = as_tokens(np.random.default_rng(1).integers(3, n_vocab - 1, _CUTS[-1] + _TAIL))
    body, tail = tokens[: _CUTS[-1]], tokens[_CUTS[-1] :]
    codec = StateCodec(first, mover=_MOVER, empty=_EMPTY)
    first.decode(body, 0, _LINE, logits=False)
    blocks, snapshot = _export(first, codec, _LINE)
    problem = _layout_problem(first)
    first.decode(tail, len(body), _LINE, logits=True)
    expected = first.logits(-1).copy()
    restored = StateCodec(second, mover=_MOVER, empty=_EMPTY)
    problem = problem or _restore_problem(second, restored, blocks, snapshot, len(body))
    problem = problem or _logits_problem(second, tail, len(body), expected)
    return _verdict(first, problem, blocks, snapshot)


def _export(context: Context, codec: StateCodec, seq: int) -> tuple[list[Payload], Payload | None]:
    spans = list(pairwise(_CUTS)) if context.memory.has_blocks else []
    blocks = [codec.export_block(seq, start, stop) for start, stop in spans]
    return blocks, codec.export_snapshot(seq) if context.memory.needs_snapshot else None


def _layout_problem(context: Context) -> str:
    """Blocks are cut off before the snapshot where there is a window."""
    if not context.memory.n_swa:
        return ""
    whole = bytes(context.get_state(_LINE, partial=False))
    partial = bytes(context.get_state(_LINE, partial=True))
    if not whole.endswith(partial[HEADER:]):
        return "the snapshot does not stand at the end of the whole state"
    return ""


def _restore_problem(
    context: Context,
    codec: StateCodec,
    blocks: list[Payload],
    snapshot: Payload | None,
    position: int,
) -> str:
    try:
        for block in blocks:
            codec.import_block(block, _LINE, upto=position)
        if snapshot is not None:
            codec.import_snapshot(snapshot, _LINE, position)
        elif not codec.stands_at(_LINE, position):
            return "a restored sequence does not end where it should"
    except Exception as error:
        return f"a restore was refused: {error}"
    again, other = _export(context, codec, _LINE)
    same = all(bytes(a) == bytes(b) for a, b in zip(blocks, again, strict=True))
    if not same or (other is not None and snapshot is not None and bytes(other) != bytes(snapshot)):
        return "a restored state exports to other bytes"
    return ""


def _logits_problem(
    context: Context, tail: Tokens, position: int, expected: npt.NDArray[np.float32]
) -> str:
    context.decode(tail, position, _LINE, logits=True)
    scale = float(np.abs(expected).max()) or 1.0
    worst = float(np.abs(context.logits(-1) - expected).max()) / scale
    return "" if worst <= _TOLERANCE else f"logits after a restore are {worst:.0%} off"


def _verdict(
    context: Context, problem: str, blocks: list[Payload], snapshot: Payload | None
) -> Verdict:
    recurrent, window = len(snapshot or b""), 0
    if context.memory.n_swa and snapshot is not None:
        window = len(snapshot) // _CUTS[-1]
        recurrent = 0 if not context.memory.recurrent else recurrent
    token_bytes = len(blocks[0]) // _CUTS[1] if blocks else 0
    codec: Literal["blocks", "whole"] = "whole" if problem else "blocks"
    return Verdict(codec, problem, token_bytes, recurrent, window)


def _main() -> None:
    from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend

    request = json.load(sys.stdin)
    request["model"] = Path(request["model"])
    settings = replace(
        ContextSettings(**request), n_ctx=1024, n_seq_max=_SEQUENCES, n_batch=128, n_ubatch=128
    )
    start_backend()
    model = LlamaModel(settings)
    verdict = examine(
        LlamaContext(model, settings), LlamaContext(model, settings), model.info.n_vocab
    )
    sys.stdout.write(json.dumps(asdict(verdict)) + "\n")


if __name__ == "__main__":
    _main()
