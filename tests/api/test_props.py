"""What clients of llama-server read before they begin, and the models there are to choose from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import openai
import pytest

from sessiond.api.routing import ApiConfig
from sessiond.config.presets import Preset
from sessiond.engine.fake import CHATML
from sessiond.errors import Unavailable
from sessiond.sessions.text import Served
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

PRESETS = {"fast": Preset(temperature=0.1), "org/deep 2": Preset(reasoning_effort="high")}


@pytest.fixture(scope="module")
def chosen() -> Iterator[tuple[httpx.Client, ScriptedTurns]]:
    turns = ScriptedTurns()
    with served(turns, ApiConfig(presets=PRESETS, strict_name=True)) as url:
        with httpx.Client(base_url=url, timeout=10) as client:
            yield client, turns


@pytest.mark.parametrize("path", ["/props", "/s/work/props"])
def test_props_say_what_is_served(client: httpx.Client, turns: ScriptedTurns, path: str) -> None:
    told = client.get(path).json()
    settings = told.pop("default_generation_settings")
    assert settings["n_ctx"] == 4096
    assert settings["params"]["temperature"] == 0.8
    assert told.pop("build_info").startswith("sessiond ")
    assert told == {
        "total_slots": 4,
        "model_alias": "scripted",
        "model_path": "/m/s.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": CHATML,
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
    }


@pytest.mark.parametrize("path", ["/props", "/tokenize", "/v1/models", "/v1/models/scripted"])
def test_a_model_that_cannot_be_had_is_said(
    client: httpx.Client, turns: ScriptedTurns, path: str
) -> None:
    turns.fault = Unavailable("The model is still loading.")
    answer = client.post(path, json={"content": ""}) if path == "/tokenize" else client.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


def test_a_client_that_does_not_wait_for_the_model_stops_the_waiting(
    url: str, turns: ScriptedTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = asyncio.Event()

    async def never(self: ScriptedTurns) -> Served:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            given_up.set()
            raise
        raise AssertionError

    monkeypatch.setattr(ScriptedTurns, "served", never)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{url}/props", timeout=0.2)
    for _ in range(500):
        if given_up.is_set():
            return
        httpx.get(f"{url}/health")
    pytest.fail("it still waits")


def test_presets_are_models_to_choose_from(
    chosen: tuple[httpx.Client, ScriptedTurns],
) -> None:
    client, _ = chosen
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="-", max_retries=0) as sdk:
        listed = list(sdk.models.list())
        assert [one.id for one in listed] == ["scripted", "fast", "org/deep 2"]
        for one in listed:
            assert one.model_dump()["meta"] == {"n_ctx": 4096, "n_ctx_train": 4096}
            assert sdk.models.retrieve(one.id) == one
        with pytest.raises(openai.NotFoundError, match="'scripted', 'fast', 'org/deep 2'"):
            sdk.models.retrieve("gpt-9")


@pytest.mark.parametrize(("model", "status"), [("scripted", 200), ("fast", 200), ("slow", 404)])
def test_a_presets_name_is_known_where_names_are_strict(
    chosen: tuple[httpx.Client, ScriptedTurns], model: str, status: int
) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    answer = chosen[0].post("/v1/chat/completions", json=body)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["model"] == "scripted", "the answer carries the real name"
