"""A model that talks as an agent's does: it thinks, says some words, calls a tool, and ends.

It has the layers of the tiny hybrid with their random weights. Beside them some tokens have a
channel of the residual stream of their own, which the output reads: so a token can have followers.
All other words are drawn, so that a wrong state changes the reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType
from numpy.typing import NDArray

Weights = NDArray[np.float32]

CONTEXT_LENGTH = 131_072
"""Claude Code takes any smaller context for 100,000 tokens."""
ENDS_AFTER = 12
"""One of so many words is the last one."""
SEED = 0
SPOKEN = 0.1
MARK = 40.0
ALWAYS, SELDOM, OFTEN, NOW_AND_THEN = 0.8, 0.74, 0.42, 0.42
"""What the output hears of a channel. SELDOM is beside ALWAYS, the last two beside all words."""
BEGINS_AFTER = "Ċ"
"""The last token before a reply, as the tokenizer spells it."""
SPARE_TOKENS = range(3, 17)
"""Tokens of the tiny hybrid's tokenizer that no text has."""
THOUGHT = ("<think>", "\nThey want an answer.\n", "</think>", "\n\n")


@dataclass(frozen=True, slots=True)
class Link:
    """After `token` comes `follower`, as surely as `weight` says; None stands for every word that
    is a last one.
    """

    token: int | None
    follower: int
    weight: float = ALWAYS


def make_talker(source: Path, target: Path, call: Sequence[str]) -> None:
    """Writes a copy of the tiny hybrid `source` that thinks, and says `call` now and then.

    The pieces of `call` become tokens: at most ten, all different, none of them a token already.
    Raises ValueError.
    """
    pieces = [*THOUGHT, *call]
    spelled = dict(zip(pieces, SPARE_TOKENS, strict=False))
    if len(spelled) < len(pieces):
        raise ValueError(f"These are more than {len(SPARE_TOKENS)} different pieces: {pieces}")
    reader = GGUFReader(source)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    if known := set(pieces) & set(tokens):
        raise ValueError(f"These are tokens already: {known}")
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    _copy_fields(reader, writer, spelled)
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            shape = tensor.data.shape
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    end = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    begin = tokens.index(BEGINS_AFTER)
    links = list(
        _links(begin, [spelled[piece] for piece in THOUGHT], [spelled[p] for p in call], end)
    )
    heard, said = _words(shape, links, {begin, end, *spelled.values()})
    writer.add_tensor("token_embd.weight", heard.astype(np.float16))
    writer.add_tensor("output.weight", said.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _links(begin: int, thought: Sequence[int], call: Sequence[int], end: int) -> Iterator[Link]:
    yield Link(None, end)
    yield Link(None, call[0], SELDOM)
    yield Link(begin, thought[0], OFTEN)
    yield Link(begin, call[0], NOW_AND_THEN)
    yield Link(thought[-1], call[0], NOW_AND_THEN)
    for chain in (thought, [*call, end]):
        yield from (Link(*pair) for pair in pairwise(chain))


def _words(
    shape: tuple[int, int], links: Sequence[Link], kept: set[int]
) -> tuple[Weights, Weights]:
    """What a token adds to the residual stream, and what the output hears in it."""
    random = np.random.default_rng(SEED)
    heard = random.standard_normal(shape, dtype=np.float32)
    said = random.standard_normal(shape, dtype=np.float32) * np.float32(SPOKEN)
    channels = {token: number for number, token in enumerate({link.token: 0 for link in links})}
    other = len(channels)
    heard[:, : other + 1] = said[:, : other + 1] = 0
    heard[:, other] = MARK
    said[list(kept)] = 0
    last = np.setdiff1d(np.arange(ENDS_AFTER, shape[0], ENDS_AFTER), list(kept))
    for token, channel in channels.items():
        marked = last if token is None else token
        heard[marked, other] = 0
        heard[marked, channel] = MARK
    for link in links:
        said[link.follower, channels[link.token]] = link.weight
    return heard, said


def _copy_fields(reader: GGUFReader, writer: GGUFWriter, spelled: Mapping[str, int]) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        if name.endswith(".context_length"):
            value = CONTEXT_LENGTH
        for piece, token in spelled.items():
            if name == "tokenizer.ggml.tokens":
                value[token] = piece
            elif name == "tokenizer.ggml.token_type":
                value[token] = int(TokenType.USER_DEFINED)
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
