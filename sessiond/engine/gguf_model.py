"""What a GGUF's header tells of the model: its memory, its size, and what a context of it takes.

Estimates from keys and shapes, for models that are not loaded. What llama.cpp says of a loaded one
counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sessiond.engine.gguf import BrokenGguf, Header
from sessiond.engine.memory import MemoryKind

CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32} | {
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes of one value of the KV cache."""

_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M "
    "Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M "
    "BF16 - - - TQ1_0 TQ2_0 MXFP4"
).split()
_TENSOR_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K", 30: "BF16"}
_WINDOW_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2} | {
    "llama4": 4,
    "olmo2": 4,
    "exaone4": 4,
    "smallthinker": 4,
}
"""Of so many layers the last is not windowed, where the file does not say which are."""
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
_BOTH_IN_EACH = frozenset({"falcon-h1"})
_NOT_TEXT = re.compile(r"clip|.*bert.*|t5encoder|.*-embedding|.*tokenizer.*|vits|flux|sd.*|wan")
_STATE_VALUE = 4
_WINDOW_SLACK = 512
"""llama.cpp keeps a batch beside the window."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Values of keys and of values that one token takes in the layers of one kind."""

    keys: int = 0
    values: int = 0

    def bytes(self, type_k: str, type_v: str) -> float:
        return self.keys * CACHE_BYTES[type_k] + self.values * CACHE_BYTES[type_v]


@dataclass(frozen=True, slots=True)
class GgufModel:
    """`size` is bytes of the weights, `state` of one line's recurrent state. `window` is in tokens,
    0 without one; `windowed` is what a token takes in windowed layers, `cells` in the others.
    `template` is "" for none.
    """

    title: str
    architecture: str
    kind: MemoryKind
    parameters: int
    quant: str
    size: int
    n_ctx_train: int
    layers: int
    cells: Cells
    window: int = 0
    windowed: Cells = Cells()
    state: int = 0
    template: str = ""

    def token_bytes(self, type_k: str = "f16", type_v: str = "f16") -> float:
        """What each further token of a context takes."""
        return self.cells.bytes(type_k, type_v)

    def line_bytes(self, type_k: str = "f16", type_v: str = "f16") -> int:
        """What a line takes whatever its length: recurrent state and window."""
        slots = self.window + _WINDOW_SLACK if self.window else 0
        return self.state + int(slots * self.windowed.bytes(type_k, type_v))

    def context_bytes(self, tokens: int, type_k: str = "f16", type_v: str = "f16") -> int:
        """One line of `tokens` tokens."""
        return int(tokens * self.token_bytes(type_k, type_v)) + self.line_bytes(type_k, type_v)


def model_of(parts: Sequence[Header]) -> GgufModel:
    """Of all files of a model; the keys are those of the first. Raises BrokenGguf."""
    for header in parts:
        if header.missing:
            raise BrokenGguf(f"it is cut off: {header.missing:,} bytes are missing")
    keys = _Keys(parts[0])
    tensors = [tensor for header in parts for tensor in header.tensors]
    if not tensors or keys.text("general.type") in ("mmproj", "adapter", "vocab"):
        raise BrokenGguf("it has no language model in it")
    if _NOT_TEXT.fullmatch(keys.architecture):
        raise BrokenGguf(f"a model of the kind {keys.architecture} writes no text")
    layers = _Layers(keys)
    return GgufModel(
        title=keys.text("general.name"),
        architecture=keys.architecture,
        kind=layers.kind,
        parameters=sum(tensor.values for tensor in tensors),
        quant=_quant(keys, Counter({t.type: 0 for t in tensors}), parts),
        size=sum(header.size for header in parts),
        n_ctx_train=keys.number("context_length"),
        layers=layers.count,
        cells=layers.cells(windowed=False),
        window=layers.window,
        windowed=layers.cells(windowed=True),
        state=layers.state,
        template=keys.text("tokenizer.chat_template"),
    )


def _quant(keys: _Keys, weights: Counter[int], parts: Sequence[Header]) -> str:
    number = keys.value("general.file_type")
    if type(number) is int and 0 <= number < len(_FILE_TYPES) and _FILE_TYPES[number] != "-":
        return _FILE_TYPES[number]
    for header in parts:
        for tensor in header.tensors:
            weights[tensor.type] += tensor.values
    most = weights.most_common(1)[0][0]
    return _TENSOR_TYPES.get(most, "mixed")


class _Keys:
    """Values by name; those of the architecture without its prefix. Wrong types count as absent."""

    def __init__(self, header: Header) -> None:
        self._values = header.values
        self.architecture = self.text("general.architecture")
        if not self.architecture:
            raise BrokenGguf("it does not say of what architecture it is")

    def value(self, key: str) -> object:
        own = f"{self.architecture}.{key}"
        return self._values.get(own, self._values.get(key)) if key else None

    def text(self, key: str) -> str:
        found = self._values.get(key)
        return found if isinstance(found, str) else ""

    def number(self, key: str, default: int = 0) -> int:
        found = self._values.get(f"{self.architecture}.{key}")
        if isinstance(found, tuple):
            found = max((n for n in found if type(n) is int), default=default)
        return found if type(found) is int and 0 <= found < 1 << 31 else default

    def of_layers(self, key: str, count: int, default: int) -> list[int]:
        found = self._values.get(f"{self.architecture}.{key}")
        if isinstance(found, tuple):
            numbers = [int(n) if isinstance(n, bool | int) else default for n in found[:count]]
            return numbers + [default] * (count - len(numbers))
        return [found if type(found) is int else default] * count


class _Layers:
    def __init__(self, keys: _Keys) -> None:
        self._keys = keys
        self.count = min(keys.number("block_count"), 4096)
        if not self.count:
            raise BrokenGguf("it does not say how many layers it has")
        heads = keys.number("attention.head_count")
        self._heads = keys.of_layers("attention.head_count_kv", self.count, heads)
        width = keys.number("embedding_length") // heads if heads else 0
        self._key = keys.number("attention.key_length", width)
        self._value = keys.number("attention.value_length", width)
        self._attends, self._remembers = self._kinds_of_layers()
        self.window, self._is_windowed = self._windows()

    @property
    def kind(self) -> MemoryKind:
        if any(self._remembers):
            return MemoryKind.HYBRID if any(self._attends) else MemoryKind.RECURRENT
        return MemoryKind.SWA if self.window else MemoryKind.ATTENTION

    def cells(self, *, windowed: bool) -> Cells:
        heads = sum(
            heads
            for heads, attends, is_windowed in zip(
                self._heads, self._attends, self._is_windowed, strict=True
            )
            if attends and is_windowed is windowed
        )
        key, value = self._key, self._value
        if windowed:
            key = self._keys.number("attention.key_length_swa", key)
            value = self._keys.number("attention.value_length_swa", value)
        return Cells(heads * key, heads * value)

    @property
    def state(self) -> int:
        """Bytes of a line, in single precision."""
        return sum(self._remembers) * self._state_values() * _STATE_VALUE

    def _kinds_of_layers(self) -> tuple[list[bool], list[bool]]:
        attends = [heads > 0 for heads in self._heads]
        if not self._state_values():
            return attends, [False] * self.count
        architecture = self._keys.architecture
        if architecture in _BOTH_IN_EACH:
            return attends, [True] * self.count
        every = self._keys.number("full_attention_interval", _INTERVALS.get(architecture, 0))
        if every:
            attends = [(number + 1) % every == 0 for number in range(self.count)]
        elif architecture.startswith(("mamba", "rwkv", "arwkv")):
            attends = [False] * self.count
        forward = self._forward()
        return attends, [
            not a and not (architecture.startswith("nemotron_h") and wide)
            for a, wide in zip(attends, forward, strict=True)
        ]

    def _forward(self) -> list[int]:
        """Of layers that only have a feed-forward network, its width."""
        return self._keys.of_layers("feed_forward_length", self.count, 0)

    def _state_values(self) -> int:
        """Of one recurrent layer, as llama.cpp keeps them."""
        number = self._keys.number
        if inner := number("ssm.inner_size"):
            groups, state = number("ssm.group_count"), number("ssm.state_size")
            kernel = max(number("ssm.conv_kernel"), 1)
            return (kernel - 1) * (inner + 2 * groups * state) + inner * state
        if kernel := number("shortconv.l_cache"):
            return (kernel - 1) * number("embedding_length")
        if head := number("wkv.head_size"):
            shifts = number("token_shift_count", 2)
            return number("embedding_length") * (head + shifts)
        return 0

    def _windows(self) -> tuple[int, list[bool]]:
        size = self._keys.number("attention.sliding_window")
        size = size or self._keys.number("attention.chunk_size")
        pattern = self._keys.value("attention.sliding_window_pattern")
        every = _WINDOW_EVERY.get(self._keys.architecture, 0)
        if isinstance(pattern, tuple):
            windowed = self._keys.of_layers("attention.sliding_window_pattern", self.count, 0)
            return size, [bool(size) and bool(each) for each in windowed]
        if type(pattern) is int and pattern > 0:
            every = pattern
        if not size or not every:
            return 0, [False] * self.count
        return size, [number % every < every - 1 for number in range(self.count)]
