"""The models that the project fetches and makes are whole, repeatable, and of their kind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import llama_cpp
import numpy as np
import pytest

from scripts.fetch_models import FetchError, Model, fetch, sha256
from scripts.make_hybrid import make_hybrid
from scripts.make_mamba2 import make_mamba2

TEXT = b"The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def loaded(model_path: Path) -> Iterator[ctypes.c_void_p]:
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(model_path).encode(), parameters)
    assert model
    yield model
    llama_cpp.llama_model_free(model)


def logits(model: ctypes.c_void_p) -> np.ndarray:
    """Logits after TEXT, shape (vocabulary,)."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads, parameters.n_threads_batch = 256, 1, 1
    context = llama_cpp.llama_init_from_model(model, parameters)
    assert context
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    tokens = (llama_cpp.llama_token * 64)()
    count = llama_cpp.llama_tokenize(vocabulary, TEXT, len(TEXT), tokens, 64, True, False)
    assert count > 0
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count)) == 0
    size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    found = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (size,)).copy()
    llama_cpp.llama_free(context)
    return found


def test_a_model_of_each_memory_kind_decodes(loaded: ctypes.c_void_p, memory_kind: str) -> None:
    first = logits(loaded)
    assert np.isfinite(first).all()
    assert first.std() > 0
    assert (first == logits(loaded)).all()
    assert llama_cpp.llama_model_is_hybrid(loaded) == (memory_kind == "hybrid")
    assert llama_cpp.llama_model_is_recurrent(loaded) == (memory_kind == "recurrent")
    assert (llama_cpp.llama_model_n_swa(loaded) > 0) == (memory_kind == "swa")


@pytest.mark.parametrize(("make", "kind"), [(make_hybrid, "hybrid"), (make_mamba2, "recurrent")])
def test_a_made_model_is_the_same_bytes_each_time(
    make: Callable[[Path, Path], None],
    kind: str,
    smol_path: Path,
    tmp_path: Path,
    models: Callable[[str], Path],
) -> None:
    again = tmp_path / "again.gguf"
    make(smol_path, again)
    assert sha256(again) == sha256(models(kind))


def test_a_damaged_model_is_replaced_and_a_good_one_is_not(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(part: Path) -> None:
        made.append(part)
        part.write_bytes(b"weights")

    model = Model(tmp_path / "models" / "a.gguf", make)
    fetch(model)
    fetch(model)
    assert len(made) == 1
    model.path.write_bytes(b"weighty")
    assert fetch(model).read_bytes() == b"weights"
    assert len(made) == 2


def test_a_model_with_another_checksum_is_refused(tmp_path: Path) -> None:
    model = Model(tmp_path / "a.gguf", _write_other, sha256="00" * 32)
    with pytest.raises(FetchError, match=r"a\.gguf has SHA-256"):
        fetch(model)
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def _write_other(part: Path) -> None:
    part.write_bytes(b"other")


def test_the_gemma_template_puts_the_system_prompt_into_the_first_user_turn(
    gemma_template: Path,
) -> None:
    environment = jinja2.Environment(autoescape=False)  # noqa: S701
    template = environment.from_string(gemma_template.read_text())
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hello "},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ]
    assert template.render(messages=messages, bos_token="<bos>", add_generation_prompt=True) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n"
        "<start_of_turn>model\nHi.<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
