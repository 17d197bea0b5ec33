"""Health, metrics, models and verify."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import httpx
import openai
import pytest

from tests.api.scripted import HEALTH, ScriptedTurns


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/s/x/v1/health"])
@pytest.mark.parametrize(
    ("status", "code"),
    [("ok", 200), ("unloaded", 200), ("loading", 503), ("draining", 503), ("failed", 503)],
)
def test_health_says_whether_turns_are_answered(
    client: httpx.Client, turns: ScriptedTurns, path: str, status: Any, code: int
) -> None:
    turns.health_now = replace(HEALTH, status=status, loading_progress=0.5)
    response = client.get(path)
    assert response.status_code == code
    assert response.json() == asdict(turns.health_now)


def test_metrics_are_prometheus_text(client: httpx.Client, turns: ScriptedTurns) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "sessiond_unsupported_parts_total" in response.text


def test_models_lists_the_one_with_its_context(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    (model,) = sdk.models.list().data
    assert (model.id, model.owned_by) == ("scripted", "sessiond")
    assert model.model_dump()["meta"] == {"n_ctx": 4096, "n_ctx_train": 4096}


def test_verify_reports_and_says_whether_all_is_well(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    assert client.post("/v1/verify").json() == {
        "blocks": 2,
        "snapshots": 1,
        "bytes": 4096,
        "damaged": ["b1"],
        "missing": [],
        "turns": 3,
        "unsaved_turns": 0,
        "clean": False,
    }
