"""Writes a random-weight Gated DeltaNet hybrid (llama.cpp architecture `qwen35`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.random_gguf import RandomGguf

CONV_KERNEL = 4
ROPE_BASE = 1e6


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Every `attention_every`-th layer is attention, the others are Gated DeltaNet."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    state: int
    value_heads: int
    key_heads: int
    quantised: bool
    attention_every: int = 4

    @property
    def key_width(self) -> int:
        return self.state * self.key_heads

    @property
    def value_width(self) -> int:
        return self.state * self.value_heads


SHAPES = {
    "tiny": HybridShape(
        layers=4,
        width=256,
        heads=4,
        kv_heads=1,
        head_width=64,
        feed_forward=512,
        state=32,
        value_heads=8,
        key_heads=4,
        quantised=False,
    ),
    "0.8b": HybridShape(
        layers=24,
        width=1024,
        heads=8,
        kv_heads=2,
        head_width=256,
        feed_forward=3584,
        state=128,
        value_heads=16,
        key_heads=16,
        quantised=True,
    ),
    "27b-state": HybridShape(
        layers=64,
        width=256,
        heads=4,
        kv_heads=4,
        head_width=256,
        feed_forward=512,
        state=128,
        value_heads=48,
        key_heads=16,
        quantised=True,
    ),
}
"""`27b-state`: snapshots of 149.6 MiB and cells of 64 KiB, as Qwen3.6-27B has, but few weights."""


def make_hybrid(source: Path, target: Path, size: str = "tiny") -> None:
    """Writes `target` with the tokenizer of `source`. Raises `KeyError` for an unknown size."""
    shape = SHAPES[size]
    with RandomGguf(
        source, target, arch="qwen35", name=f"hybrid-{size}", quantised=shape.quantised
    ) as model:
        _describe(model, shape)
        model.embeddings(shape.width)
        for index in range(shape.layers):
            _layer(model, shape, index)


def _describe(model: RandomGguf, shape: HybridShape) -> None:
    model.describe(
        layers=shape.layers,
        width=shape.width,
        feed_forward=shape.feed_forward,
        heads=shape.heads,
    )
    model.describe_state(
        kernel=CONV_KERNEL,
        inner=shape.value_width,
        state=shape.state,
        heads=shape.value_heads,
        groups=shape.key_heads,
    )
    writer = model.writer
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(shape.head_width // 4)
    section = shape.head_width // 16
    writer.add_rope_dimension_sections([section, section, section, 0])
    writer.add_full_attention_interval(shape.attention_every)


def _layer(model: RandomGguf, shape: HybridShape, index: int) -> None:
    block = f"blk.{index}."
    model.constant(block + "attn_norm.weight", shape.width, value=1.0)
    model.constant(block + "post_attention_norm.weight", shape.width, value=1.0)
    if (index + 1) % shape.attention_every == 0:
        _attention(model, shape, block)
    else:
        _delta_net(model, shape, block)
    model.normal(block + "ffn_gate.weight", shape.feed_forward, shape.width)
    model.normal(block + "ffn_up.weight", shape.feed_forward, shape.width)
    model.normal(block + "ffn_down.weight", shape.width, shape.feed_forward)


def _attention(model: RandomGguf, shape: HybridShape, block: str) -> None:
    inner = shape.heads * shape.head_width
    outer = shape.kv_heads * shape.head_width
    # The query matrix also holds the output gate.
    model.normal(block + "attn_q.weight", 2 * inner, shape.width)
    model.normal(block + "attn_k.weight", outer, shape.width)
    model.normal(block + "attn_v.weight", outer, shape.width)
    model.normal(block + "attn_output.weight", shape.width, inner)
    model.constant(block + "attn_q_norm.weight", shape.head_width, value=1.0)
    model.constant(block + "attn_k_norm.weight", shape.head_width, value=1.0)


def _delta_net(model: RandomGguf, shape: HybridShape, block: str) -> None:
    mixed = 2 * shape.key_width + shape.value_width
    model.normal(block + "attn_qkv.weight", mixed, shape.width)
    model.normal(block + "attn_gate.weight", shape.value_width, shape.width)
    model.normal(block + "ssm_conv1d.weight", mixed, CONV_KERNEL, scale=0.5, exact=True)
    model.constant(block + "ssm_dt.bias", shape.value_heads, value=0.5)
    model.decay(block + "ssm_a", shape.value_heads)
    model.normal(block + "ssm_beta.weight", shape.value_heads, shape.width)
    model.normal(block + "ssm_alpha.weight", shape.value_heads, shape.width)
    model.constant(block + "ssm_norm.weight", shape.state, value=1.0)
    model.normal(block + "ssm_out.weight", shape.width, shape.value_width)


def main(
    source: Annotated[
        Path, typer.Argument(help="The GGUF whose tokenizer is copied.", exists=True)
    ],
    target: Annotated[Path, typer.Argument(help="The GGUF to write.")],
    size: Annotated[str, typer.Option(help=f"One of: {', '.join(SHAPES)}.")] = "tiny",
) -> None:
    """Write a random-weight Gated DeltaNet hybrid.

    tiny is 32 MB, 0.8b has Qwen3.5-0.8B's shape, 27b-state a 27B's state in 0.4 GB."""
    if size not in SHAPES:
        raise typer.BadParameter(
            f"{size!r} is not one of: {', '.join(SHAPES)}", param_hint="--size"
        )
    make_hybrid(source, target, size)


if __name__ == "__main__":
    typer.run(main)
