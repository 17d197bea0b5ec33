"""Writes a random-weight Mamba-2 model: recurrent state only, no attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.random_gguf import RandomGguf


@dataclass(frozen=True, slots=True)
class MambaShape:
    layers: int
    width: int
    inner: int
    state: int
    heads: int
    groups: int
    conv_kernel: int

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: the input beside B and C of every group."""
        return self.inner + 2 * self.groups * self.state


SHAPES = {
    "tiny": MambaShape(layers=4, width=256, inner=512, state=64, heads=8, groups=1, conv_kernel=4),
}


def make_mamba2(source: Path, target: Path, size: str = "tiny") -> None:
    """Writes `target` with the tokenizer of `source`. Raises `KeyError` for an unknown size."""
    shape = SHAPES[size]
    with RandomGguf(source, target, arch="mamba2", name=f"mamba2-{size}") as model:
        model.describe(layers=shape.layers, width=shape.width, feed_forward=0, heads=0)
        model.describe_state(
            kernel=shape.conv_kernel,
            inner=shape.inner,
            state=shape.state,
            heads=shape.heads,
            groups=shape.groups,
        )
        model.embeddings(shape.width)
        for index in range(shape.layers):
            _layer(model, shape, f"blk.{index}.")


def _layer(model: RandomGguf, shape: MambaShape, block: str) -> None:
    projected = shape.inner + shape.conv_width + shape.heads
    group_width = shape.inner // shape.groups
    model.constant(block + "attn_norm.weight", shape.width, value=1.0)
    model.normal(block + "ssm_in.weight", projected, shape.width)
    model.normal(
        block + "ssm_conv1d.weight", shape.conv_width, shape.conv_kernel, scale=0.5, exact=True
    )
    model.constant(block + "ssm_conv1d.bias", shape.conv_width, value=0.0)
    model.constant(block + "ssm_dt.bias", shape.heads, value=0.5)
    model.decay(block + "ssm_a", shape.heads, 1)
    model.constant(block + "ssm_d", shape.heads, 1, value=1.0, exact=True)
    model.constant(block + "ssm_norm.weight", shape.groups, group_width, value=1.0, exact=True)
    model.normal(block + "ssm_out.weight", shape.width, shape.inner)


def main(
    source: Annotated[
        Path, typer.Argument(help="The GGUF whose tokenizer is copied.", exists=True)
    ],
    target: Annotated[Path, typer.Argument(help="The GGUF to write.")],
    size: Annotated[str, typer.Option(help=f"One of: {', '.join(SHAPES)}.")] = "tiny",
) -> None:
    """Write a random-weight Mamba-2 model of 30 MB."""
    if size not in SHAPES:
        raise typer.BadParameter(
            f"{size!r} is not one of: {', '.join(SHAPES)}", param_hint="--size"
        )
    make_mamba2(source, target, size)


if __name__ == "__main__":
    typer.run(main)
