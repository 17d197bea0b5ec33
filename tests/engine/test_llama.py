"""llama.cpp behind the engine's protocol: settings, vocabulary, decodes and their failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessiond.engine.context import BatchRow
from sessiond.engine.llama import (
    LlamaContext,
    LlamaModel,
    known_extra,
    library_files,
    start_backend,
)
from sessiond.engine.memory import MemoryKind, as_tokens
from sessiond.engine.settings import ContextSettings
from sessiond.errors import ConfigError, DecodeFailed, PoolFull

TOKENS = as_tokens(range(300, 400))


@pytest.fixture(scope="module")
def settings(smol_path: Path) -> ContextSettings:
    return ContextSettings(smol_path, n_ctx=256, n_seq_max=4, n_batch=64, n_ubatch=64, threads=1)


@pytest.fixture(scope="module")
def model(settings: ContextSettings) -> Iterator[LlamaModel]:
    start_backend()
    model = LlamaModel(settings)
    yield model
    model.close()


@pytest.fixture
def opened(model: LlamaModel, settings: ContextSettings) -> Iterator[Callable[..., LlamaContext]]:
    contexts: list[LlamaContext] = []

    def open_(**changes: Any) -> LlamaContext:
        contexts.append(LlamaContext(model, replace(settings, **changes)))
        return contexts[-1]

    yield open_
    for context in contexts:
        context.close()


# --- settings


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_quantised_values_need_flash_attention(
    opened: Callable[..., LlamaContext], kv_type: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        opened(type_v=kv_type, flash_attn=False)
    assert refused.value.param == "model.type_v"
    assert "flash_attn = true" in refused.value.hint
    opened(type_k=kv_type, flash_attn=False)


@pytest.mark.parametrize(
    "name", ["kv_unified", "swa_full", "n_rs_seq", "n_seq_max", "embeddings", "vocab_only"]
)
def test_what_sessiond_depends_on_is_fixed(
    opened: Callable[..., LlamaContext], settings: ContextSettings, name: str
) -> None:
    for make in (opened, lambda extra: LlamaModel(replace(settings, extra=extra))):
        with pytest.raises(ConfigError, match="fixed") as refused:
            make(extra={name: 1})
        assert refused.value.param == f"model.extra.{name}"


@pytest.mark.parametrize(
    ("name", "key"), [("n_ctx", "model.n_ctx"), ("flash_attn_type", "model.flash_attn")]
)
def test_what_has_a_key_of_its_own_is_set_there(
    opened: Callable[..., LlamaContext], name: str, key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        opened(extra={name: 1})
    assert key in refused.value.hint


@pytest.mark.parametrize(("name", "value"), [("rope_freq_base", "fast"), ("n_threads_batch", 1.5)])
def test_a_value_of_the_wrong_type_names_its_key(
    opened: Callable[..., LlamaContext], name: str, value: object
) -> None:
    with pytest.raises(ConfigError) as refused:
        opened(extra={name: value})
    assert refused.value.param == f"model.extra.{name}"


@pytest.mark.parametrize("split", ["half", [1.0] * 200, ["a"]])
def test_a_split_that_is_none_names_its_key(settings: ContextSettings, split: object) -> None:
    with pytest.raises(ConfigError) as refused:
        LlamaModel(replace(settings, extra={"tensor_split": split}))
    assert refused.value.param == "model.extra.tensor_split"


def test_extra_settings_reach_llama_cpp(opened: Callable[..., LlamaContext]) -> None:
    rows = []
    for extra in ({}, {"rope_freq_base": 500.0}):
        context = opened(extra=extra)
        context.decode(TOKENS[:30], 0, 0, logits=True)
        rows.append(context.logits(-1).copy())
    assert not np.allclose(*rows)


@pytest.mark.parametrize(
    ("name", "known"), [("tensor_split", True), ("rope_freq_base", True), ("n_gqa", False)]
)
def test_names_llama_cpp_has_are_known(name: str, known: bool) -> None:
    assert known_extra(name) is known


def test_a_file_that_is_no_model_names_the_path(tmp_path: Path, settings: ContextSettings) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(ConfigError, match=r"broken\.gguf") as refused:
        LlamaModel(replace(settings, model=broken))
    assert refused.value.param == "model.path"


# --- the model


def test_loading_reports_its_progress(settings: ContextSettings) -> None:
    shares: list[float] = []
    LlamaModel(settings, shares.append).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_each_kind_of_memory_is_recognised(memory_kind: str, model_path: Path) -> None:
    model = LlamaModel(ContextSettings(model_path, n_ctx=0, n_seq_max=0))
    info = model.info
    model.close()
    assert info.memory.kind == MemoryKind(memory_kind)
    assert info.memory.n_swa == (512 if memory_kind == "swa" else 0)
    assert info.name == model_path.stem
    assert info.n_ctx_train > 0 and info.n_vocab > 0 and info.size_bytes > 0


def test_the_tokenizers_digest_is_that_of_the_vocabulary(
    models: Callable[[str], Path], model: LlamaModel
) -> None:
    """The hybrid was made with SmolLM2's vocabulary; Gemma has its own."""
    others = {}
    for kind in ("hybrid", "swa"):
        other = LlamaModel(ContextSettings(models(kind), n_ctx=0, n_seq_max=0))
        others[kind] = other.info.tokenizer
        other.close()
    assert others["hybrid"] == model.info.tokenizer != others["swa"]


@pytest.mark.parametrize("text", ["", "plain", "  two  spaces", "naïve 😀 你好", "line\nline\n"])
def test_tokens_stand_for_their_text(model: LlamaModel, text: str) -> None:
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert tokens.dtype == np.int32
    assert b"".join(model.piece(int(token)) for token in tokens).decode() == text


def test_control_tokens_are_silent_unless_asked(model: LlamaModel) -> None:
    (end,) = model.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert model.piece(int(end)) == b""
    assert model.piece(int(end), special=True) == b"<|im_end|>"
    assert model.ends_generation(int(end))
    assert len(model.tokenize("<|im_end|>", add_special=False, parse_special=False)) > 1


def test_the_libraries_are_real_files() -> None:
    files = library_files()
    assert any(path.name.startswith("libllama") for path in files)
    assert all(path.is_file() and not path.is_symlink() for path in files)


# --- decodes


def test_a_batch_never_exceeds_the_context(opened: Callable[..., LlamaContext]) -> None:
    context = opened(n_ctx=256, n_batch=512, n_ubatch=512)
    assert context.n_batch == context.n_ctx == 256
    context.decode(as_tokens([300] * 256), 0, 0, logits=True)


def test_every_line_has_a_row_in_a_batch(opened: Callable[..., LlamaContext]) -> None:
    context = opened(n_batch=1, n_ubatch=1, n_seq_max=4)
    context.decode_rows([BatchRow(300 + seq, 0, seq, True) for seq in range(4)])
    assert [context.pos_max(seq) for seq in range(4)] == [0] * 4


def test_rows_of_one_batch_are_told_apart(opened: Callable[..., LlamaContext]) -> None:
    together, apart = opened(), opened()
    together.decode_rows([BatchRow(300 + seq, 0, seq, seq != 1) for seq in range(3)])
    for row in (0, 2):
        apart.decode_rows([BatchRow(300 + row, 0, row, True)])
        expected = apart.logits(-1)
        assert np.abs(together.logits(row) - expected).max() < 0.05 * np.abs(expected).max()
    assert np.array_equal(together.logits(-1), together.logits(2))


def test_a_full_pool_leaves_every_sequence_as_it_was(
    opened: Callable[..., LlamaContext],
) -> None:
    context = opened(n_ctx=256)
    for start in range(0, 192, 64):
        context.decode(TOKENS[:64], start, 0, logits=False)
    context.decode(TOKENS[:40], 0, 1, logits=False)
    before = [bytes(context.get_state(seq, partial=False)) for seq in (0, 1)]
    with pytest.raises(PoolFull):
        context.decode(TOKENS[:30], 40, 1, logits=True)
    assert [bytes(context.get_state(seq, partial=False)) for seq in (0, 1)] == before
    context.decode(TOKENS[:24], 40, 1, logits=True)


def test_a_token_at_the_wrong_position_fails(opened: Callable[..., LlamaContext]) -> None:
    context = opened()
    context.decode(TOKENS[:10], 0, 0, logits=False)
    with pytest.raises(DecodeFailed):
        context.decode(TOKENS[:10], 20, 0, logits=False)
    context.clear()
    context.decode(TOKENS[:10], 0, 0, logits=True)
