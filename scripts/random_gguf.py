"""A GGUF of random weights with another GGUF's tokenizer: a real memory kind, small."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

CONTEXT_LENGTH = 32_768
NORM_EPSILON = 1e-6
EMBEDDING_SCALE = 0.02

Weights = NDArray[np.float32]


class RandomGguf:
    """Collects tensors and writes them when the `with` block ends without an error.

    The same source, architecture and calls give the same bytes. Matrices are stored as f16, or
    as Q8_0 with `quantised`; vectors and what is marked `exact` stay f32.
    """

    def __init__(
        self, source: Path, target: Path, *, arch: str, name: str, quantised: bool = False
    ) -> None:
        self.writer = GGUFWriter(target, arch)
        self.writer.add_name(name)
        self._random = np.random.default_rng(seed=0)
        self._quantised = quantised
        self._vocabulary = self._copy_tokenizer(source)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.writer.write_header_to_file()
            self.writer.write_kv_data_to_file()
            self.writer.write_tensors_to_file()
        self.writer.close()

    def describe(self, *, layers: int, width: int, feed_forward: int, heads: int) -> None:
        """The keys that every architecture has."""
        self.writer.add_block_count(layers)
        self.writer.add_context_length(CONTEXT_LENGTH)
        self.writer.add_embedding_length(width)
        self.writer.add_feed_forward_length(feed_forward)
        self.writer.add_head_count(heads)
        self.writer.add_layer_norm_rms_eps(NORM_EPSILON)
        self.writer.add_vocab_size(self._vocabulary)

    def describe_state(
        self, *, kernel: int, inner: int, state: int, heads: int, groups: int
    ) -> None:
        """The keys of a recurrent state: `inner` channels, `state` values per head."""
        self.writer.add_ssm_conv_kernel(kernel)
        self.writer.add_ssm_inner_size(inner)
        self.writer.add_ssm_state_size(state)
        self.writer.add_ssm_time_step_rank(heads)
        self.writer.add_ssm_group_count(groups)

    def embeddings(self, width: int) -> None:
        """Token embeddings, which are also the output matrix, and the norm before it."""
        self.normal("token_embd.weight", self._vocabulary, width, scale=EMBEDDING_SCALE)
        self.constant("output_norm.weight", width, value=1.0)

    def normal(
        self, name: str, *shape: int, scale: float | None = None, exact: bool = False
    ) -> None:
        """Normal weights; by default, a product with unit inputs keeps unit variance."""
        spread = shape[-1] ** -0.5 if scale is None else scale
        drawn = self._random.standard_normal(shape, dtype=np.float32)
        self._add(name, drawn * np.float32(spread), exact=exact)

    def constant(self, name: str, *shape: int, value: float, exact: bool = False) -> None:
        self._add(name, np.full(shape, value, np.float32), exact=exact)

    def decay(self, name: str, *shape: int) -> None:
        """Negative rates between -1 and -0.05: heads that forget at different speeds."""
        rates = -np.exp(self._random.uniform(-3.0, 0.0, shape))
        self._add(name, rates.astype(np.float32), exact=True)

    def _add(self, name: str, weights: Weights, *, exact: bool) -> None:
        if exact or weights.ndim == 1:
            self.writer.add_tensor(name, weights)
        elif self._quantised:
            blocks = quantize(weights, GGMLQuantizationType.Q8_0)
            self.writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            self.writer.add_tensor(name, weights.astype(np.float16))

    def _copy_tokenizer(self, source: Path) -> int:
        fields = GGUFReader(source).fields
        for name, field in fields.items():
            if not name.startswith("tokenizer."):
                continue
            if field.types[0] == GGUFValueType.ARRAY:
                self.writer.add_array(name, field.contents())
            else:
                self.writer.add_key_value(name, field.contents(), field.types[0])
        return len(fields["tokenizer.ggml.tokens"].data)
