"""Where a prompt and an edit of it part, in tokens: found in their texts, and near the seam only.

A seam in the text is no seam in the tokens: how a message begins can change the tokens before it.
So a few beginnings are tried, from the last control token before the seam on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import neg

import numpy as np

from sessiond.engine.context import Model
from sessiond.engine.memory import Tokens, common_prefix, is_prefix

BEGINNINGS = ("", "x", "1", ".", "<", "é", "世", " x", "  x", "\nx", "\n\nx")
_WINDOW = 32
"""Tokens before a seam among which a control token is looked for."""
_BEYOND = 128
"""How much text after a seam is looked at."""


class Spelling:
    """A prompt's tokens beside the text they spell, read backwards from their common end.

    Further up the tokens may spell something else: nothing is found there. Only as much is read as
    a seam needs. For one thread at a time.
    """

    def __init__(
        self, tokens: Tokens, text: str, model: Model, tokenize: Callable[[str], Tokens]
    ) -> None:
        """`tokenize` gives the tokens of a text inside a prompt."""
        self._tokens = tokens
        self._raw = text.encode()
        self._model = model
        self._tokenize = tokenize
        # Where the last token, the one before it, ... begin in the text, in bytes.
        self._starts: list[int] = []
        self._reading = self._read()

    def parting(self, head: str, tail: str) -> int | None:
        """How many tokens are shared with `head`, any message and `tail`; None if not found."""
        before = head.encode()
        seam = _common_bytes(self._raw, before)
        first = self._first_at(seam)
        if first is None:
            return None
        anchor = self._anchor(first)
        start = self._starts[anchor]
        beyond = seam - start + _BEYOND
        near = before[start:].decode(errors="ignore")
        texts = {(near + beginning + tail)[:beyond] for beginning in BEGINNINGS}
        position = self._position(anchor)
        known = self._tokens[position : self._position(first)]
        return position + min(common_prefix(self._tokenize(text), known) for text in texts)

    def _position(self, index: int) -> int:
        return len(self._tokens) - 1 - index

    def _first_at(self, offset: int) -> int | None:
        """Index of the last token that begins at or before `offset`."""
        if not self._starts or self._starts[-1] > offset:
            for start in self._reading:
                if start <= offset:
                    break
        index = bisect_left(self._starts, -offset, key=neg)
        return index if index < len(self._starts) else None

    def _anchor(self, first: int) -> int:
        """Index of a token before `first`, from which on tokens do not depend on what is before."""
        before = first
        for index in range(first + 1, first + 1 + _WINDOW):
            if index == len(self._starts) and next(self._reading, None) is None:
                break
            if self._is_control(int(self._tokens[self._position(index)])):
                return index
            before = index
        whole = (i for i in range(before, first, -1) if self._gives_itself(i, first))
        return next(whole, before)

    def _gives_itself(self, index: int, first: int) -> bool:
        """Whether the text from token `index` on has the prompt's tokens, up to `first`."""
        near = self._raw[self._starts[index] : self._starts[first] + _BEYOND]
        known = self._tokens[self._position(index) : self._position(first)]
        tokens = self._tokenize(near.decode(errors="ignore"))
        return is_prefix(known, tokens)

    def _read(self) -> Iterator[int]:
        """The starts, one after the other, as far as the tokens spell the text."""
        raw, end, tokens = self._raw, len(self._raw), self._tokens.tolist()
        while tokens:
            piece = self._model.piece(tokens.pop(), special=True)
            if not raw.endswith(piece, 0, end):
                # Some vocabularies put spaces before text.
                piece = piece.removeprefix(b" ")
                if not raw.endswith(piece, 0, end):
                    return
            end -= len(piece)
            self._starts.append(end)
            yield end

    def _is_control(self, token: int) -> bool:
        return not self._model.piece(token) and bool(self._model.piece(token, special=True))


def _common_bytes(a: bytes, b: bytes) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n))
    return int(different[0]) if len(different) else n
