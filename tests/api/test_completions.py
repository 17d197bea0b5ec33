"""Raw completions as OpenAI's own client reads them."""

from __future__ import annotations

import json

import httpx
import openai

from sessiond.sessions.transcript import Text
from tests.api.scripted import ScriptedTurns


def test_a_whole_completion(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    reply = sdk.completions.create(model="m", prompt="Once", max_tokens=5)
    assert (reply.object, reply.model) == ("text_completion", "scripted")
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("Hello wörld", "stop")
    assert reply.usage
    assert reply.usage.total_tokens == 14
    assert turns.requests[0].content == Text("Once")
    assert turns.requests[0].ending.max_tokens == 5


def test_a_streamed_completion(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    got = list(sdk.completions.create(model="m", prompt="Once", stream=True))
    assert [c.choices[0].text for c in got] == [*turns.deltas, ""]
    assert [c.choices[0].finish_reason for c in got] == [None, None, None, "stop"]


def test_logprobs_count_characters(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    """Result: offsets go on over the chunks of a stream, and are the same in a whole reply."""
    whole = sdk.completions.create(model="m", prompt="x", logprobs=2).choices[0].logprobs
    parts = [
        c.choices[0].logprobs
        for c in sdk.completions.create(model="m", prompt="x", logprobs=2, stream=True)
    ]
    assert whole
    assert whole.text_offset == [0, 3, 6]
    assert whole.tokens == list(turns.deltas)
    assert whole.token_logprobs == [-0.5] * 3
    assert whole.top_logprobs
    assert whole.top_logprobs[0] == {"Hel": -0.5, "Hel~1": -1.0}
    assert [part.text_offset for part in parts if part] == [[0], [3], [6]]


def test_the_last_chunk_carries_the_report(client: httpx.Client, turns: ScriptedTurns) -> None:
    text = client.post("/s/raw/v1/completions", json={"prompt": "x", "stream": True}).text
    events = text.strip().split("\n\n")
    last = json.loads(events[-2].removeprefix("data: "))
    assert events[-1] == "data: [DONE]"
    assert last["sessiond"]["session"] == "raw"
    assert last["timings"]["prompt_n"] == 7
