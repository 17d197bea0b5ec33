"""Log probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence

from sessiond.api.dialect import Json
from sessiond.engine.events import Logprob, TokenLogprob

# OpenAI's own word for "practically impossible"; JSON has no infinity.
_FLOOR = -9999.0


def chat_logprobs(logprobs: Sequence[Logprob]) -> Json:
    content = [
        {**_token(each.chosen), "top_logprobs": [_token(token) for token in each.top]}
        for each in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(logprobs: Sequence[Logprob], offset: int) -> tuple[Json, int]:
    """`offset`: characters before the first token. Returns the characters after the last, too."""
    offsets = []
    for each in logprobs:
        offsets.append(offset)
        offset += len(each.chosen.text)
    block = {
        "tokens": [each.chosen.text for each in logprobs],
        "token_logprobs": [_finite(each.chosen.logprob) for each in logprobs],
        "top_logprobs": [
            {token.text: _finite(token.logprob) for token in each.top} for each in logprobs
        ],
        "text_offset": offsets,
    }
    return block, offset


def _token(token: TokenLogprob) -> Json:
    return {
        "token": token.text,
        "logprob": _finite(token.logprob),
        "bytes": list(token.raw),
    }


def _finite(logprob: float) -> float:
    return max(logprob, _FLOOR) if logprob == logprob else _FLOOR
