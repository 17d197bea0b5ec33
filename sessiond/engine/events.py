"""What a run reports while it goes on, in order: Progress*, Delta*, Ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprob:
    """The chosen token and the most likely ones at its position, natural logarithms."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill so far: `processed` of `total` prompt tokens are there, `cached` of them reused."""

    total: int
    cached: int
    processed: int
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Delta:
    """Whole characters only; empty while a character or a possible stop string is incomplete."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run. `tokens` are all sampled tokens but an end-of-generation token.

    `prefilled` prompt tokens were evaluated by this run; times are engine milliseconds.
    `stopped_by` is the stop string, if one ended it.
    """

    reason: FinishReason
    tokens: tuple[int, ...]
    text: str
    prefilled: int
    prefill_ms: float
    decode_ms: float
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class Starved:
    """The pool has no free cells. The run waits until it is told to go on or to end."""


Event = Progress | Delta | Ended | Starved
