"""Log probabilities of a sampled token and its likeliest alternatives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sessiond.engine.context import Model
from sessiond.engine.events import Logprob, TokenLogprob


def logprob(logits: npt.NDArray[np.float32], token: int, count: int, model: Model) -> Logprob:
    """Of the model itself, before sampling changes anything. `logits` has shape (n_vocab,)."""
    peak = float(logits.max())
    log_total = peak + float(np.log(np.exp(logits - peak, dtype=np.float64).sum()))
    likeliest = np.argpartition(logits, -count)[-count:] if count else np.empty(0, np.intp)
    ordered = likeliest[np.argsort(-logits[likeliest], kind="stable")]

    def of(candidate: int) -> TokenLogprob:
        raw = model.piece(candidate, special=True)
        text = raw.decode(errors="replace")
        return TokenLogprob(candidate, text, raw, float(logits[candidate]) - log_total)

    return Logprob(of(token), tuple(of(int(candidate)) for candidate in ordered))
