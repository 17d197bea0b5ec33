"""Behind a model swapper: each model's conversations go on where they were, whichever ran between.

The recipe is docs/llama-swap.md, the swapper is tests/swapper.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.swapper import Swapper, Upstream

WORDS = "The quick brown fox jumps over the lazy dog. " * 12
Json = dict[str, Any]


@pytest.fixture(params=["a directory each", "one directory"])
def swapper(
    request: pytest.FixtureRequest, smol_path: Path, hybrid_path: Path, tmp_path: Path
) -> Iterator[Swapper]:
    """As in the recipe."""

    def upstream(name: str, model: Path) -> Upstream:
        shared = request.param == "one directory"
        options = ["--sessions-warm", "0"] if shared else []
        state = tmp_path / ("state" if shared else f"state-{name}")
        nothing = tmp_path / "none.toml"
        nothing.touch()
        return Upstream(
            [
                *(sys.executable, "-m", "sessiond", "serve", "--config", str(nothing)),
                *("--model", str(model), "--port", "${PORT}", "--uds", "off"),
                *("--state-dir", str(state), "--n-ctx", "1024", "--model-threads", "1"),
                *("--sessions-max-active", "1", *options),
            ]
        )

    upstreams = {"smol": upstream("smol", smol_path), "tiny": upstream("tiny", hybrid_path)}
    with Swapper(upstreams, tmp_path / "log") as swapper:
        yield swapper


def ask(swapper: Swapper, model: str, prompt: str, **fields: Any) -> Json:
    """A turn of the model's own session, by a header as agents send it."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}
    answer = httpx.post(
        f"{swapper.url}/v1/completions",
        json=body,
        headers={"X-Session-Id": f"talk-with-{model}"},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    told: Json = answer.json()
    return told


def test_each_conversation_goes_on_with_its_new_tokens_and_one(swapper: Swapper) -> None:
    """
    1. A turn with one model; a stream of it is under way when the other is asked.
    2. A turn with the first.
    Result: the stream is whole; both processes ended with 0; what was said before is read from
    disk.
    """
    said = dict.fromkeys(("smol", "tiny"), WORDS)
    standing = dict.fromkeys(said, 0)

    def turn(model: str) -> None:
        reply = ask(swapper, model, said[model])
        block, usage = reply["sessiond"], reply["usage"]
        if standing[model]:
            new = usage["prompt_tokens"] - standing[model]
            assert (block["source"], block["miss"]) == ("disk", None)
            assert block["prefilled_tokens"] <= new + 1
        standing[model] = usage["prompt_tokens"] + usage["completion_tokens"]
        said[model] += reply["choices"][0]["text"] + " And then?"

    turn("smol")
    through_a_stream(swapper, lambda: turn("tiny"))
    turn("smol")
    assert (swapper.upstreams["smol"].ended, swapper.upstreams["tiny"].ended) == ([0], [0])


def through_a_stream(swapper: Swapper, meanwhile: Callable[[], None]) -> None:
    """Of the model that runs. What is asked meanwhile waits for its end."""
    body = {"model": "smol", "prompt": WORDS, "max_tokens": 24, "stream": True}
    url = f"{swapper.url}/upstream/smol/s/other/v1/completions"
    with ThreadPoolExecutor(1) as pool, httpx.stream("POST", url, json=body, timeout=120) as stream:
        lines = stream.iter_lines()
        assert any('"text":' in line for line in lines)
        other = pool.submit(meanwhile)
        told = [line for line in lines if line.startswith("data: ")]
        other.result()
    assert told[-1] == "data: [DONE]"
    assert json.loads(told[-2].removeprefix("data: "))["sessiond"]["saved"] is True


def test_what_cannot_start_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sessiond", "serve", "--model", str(tmp_path / "none.gguf")]
    with Swapper({"gone": Upstream(command)}, tmp_path / "log") as swapper:
        answer = httpx.post(f"{swapper.url}/v1/completions", json={"model": "gone"}, timeout=60)
        assert (answer.status_code, "exited prematurely" in answer.text) == (502, True)
