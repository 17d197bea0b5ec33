"""`bench load`: who takes part, what the client does when a server fails, and the picture."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts import load_plot, plots
from scripts.benchmark_pages import part
from scripts.daemon import DaemonFailed
from scripts.day import llama_server
from scripts.day.llama_server import LlamaServer
from scripts.day.servers import Place
from scripts.fetch_models import ROOT
from scripts.load_loops import N_BATCH, HttpClient, Stream
from scripts.plots import Panel
from scripts.rivals import Rivals
from sessiond.engine.settings import ContextSettings

PLACE = Place(Path("/models/some.gguf"), None, 4096, 8, 2)
STAND_IN = ROOT / "tests" / "llama_server.py"


class _Guarded(BaseHTTPRequestHandler):
    """One word below /front, for those with the key."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        known = self.headers["Authorization"] == "Bearer right"
        self.send_response(200 if known and self.path == "/front/v1/completions" else 401)
        self.end_headers()
        event = {"choices": [{"text": " word", "finish_reason": "length"}]}
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n" if known else b"Who?")


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Guarded)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/front/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_key_is_sent_to_the_server_that_runs_already(url: str) -> None:
    stream = Stream("Hello", 1, "/v1/completions")
    talks, reads = HttpClient(url, "right").run([stream, Stream("Hello", 1, stream.path, after=8)])
    assert len(talks.times) == len(reads.times) == 1
    assert talks.times[0] <= reads.began


def test_a_refusal_is_told_in_words(url: str) -> None:
    with pytest.raises(SystemExit, match=r"/v1/completions: .*401 Who\?"):
        HttpClient(url).run([Stream("Hello", 1, "/v1/completions")])
    with pytest.raises(SystemExit, match="no address"):
        HttpClient("localhost:8080")


def test_all_have_the_same_batch() -> None:
    batch = ContextSettings(PLACE.model, PLACE.n_ctx, PLACE.slots).n_batch
    assert llama_server.N_BATCH == N_BATCH == batch


def test_the_settings_say_how_others_were_started_and_no_key() -> None:
    assert Rivals().settings(PLACE) == {"llama_server": "", "url": ""}
    told = Rivals(STAND_IN, ("--poll", "0"), "http://a", "secret").settings(PLACE)
    options = told["llama_server"]
    assert options[:2] == ["-m", "some.gguf"]
    assert options[-2:] == ["--poll", "0"]
    assert "secret" not in str(told)


def test_slots_are_erased_or_it_fails(tmp_path: Path) -> None:
    """All eight; the last one is refused when it is asked again."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200 if len(asked) < 16 else 500)

    server = LlamaServer(STAND_IN, PLACE, tmp_path)
    server.http.close()
    transport = httpx.MockTransport(answer)
    with httpx.Client(base_url=server.url, transport=transport) as server.http:
        server.erase()
        assert asked == [f"/slots/{number}?action=erase" for number in range(8)]
        with pytest.raises(DaemonFailed, match="Slot 7 was not erased"):
            server.erase()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Panel]:
    panels: list[Panel] = []

    def save(given: list[Panel], path: Path, title: str = "") -> Path:
        panels.extend(given)
        return path

    monkeypatch.setattr(plots, "save", save)
    return panels


def document() -> dict[str, Any]:
    """As it was kept before other servers were launched."""
    spread = [2.0, 1.0, 3.0, 3]
    rates = {name: spread for name in ("daemon", "engine", "bare")}
    phases = {"prefill": rates, "decode": rates}
    better = {phase: {"daemon": 1.0, "engine": 1.0} for phase in phases}
    gap = {"longest": spread, "median": spread, "reading_ms": spread, "budgets": 0.1}
    where = {"cpu": "a", "cores": 2, "memory_bytes": 1, "load_before": 0.0, "system": "b"}
    where |= {"libraries": {"llama-cpp-python": "1"}, "python": "3", "commit": "c", "date": "d"}
    return {
        "script": "bench_load",
        "environment": where,
        "settings": {"model": "smollm2", "long": 100, "step_budget_ms": 200.0, "llama_server": ""},
        "results": {
            "tokens_per_s": {"1": phases, "8": phases},
            "of_better": {"1": better, "8": better},
            "gaps": {"smollm2": {"daemon": gap, "engine": gap}, "hybrid-tiny": {"daemon": gap}},
        },
        "goals": [],
    }


def test_a_picture_has_a_series_for_each_contestant(drawn: list[Panel]) -> None:
    path = load_plot.draw(document(), Path("kept/found.json"))
    assert path == Path("kept/found-smollm2.png")
    prefill, decode, gaps = drawn
    for rates in (prefill, decode):
        assert rates.x == ["1", "8"]
        assert [(one.values, one.low, one.high) for one in rates.series] == [
            ([2.0, 2.0], [1.0, 1.0], [3.0, 3.0])
        ] * 3
    assert [one.values for one in gaps.series] == [[2.0, 2.0], [2.0, None], [200.0, 200.0]]


def test_a_server_with_gaps_on_one_model_is_drawn(tmp_path: Path) -> None:
    found = document()
    for phases in found["results"]["tokens_per_s"].values():
        for by_name in phases.values():
            by_name["http://a"] = [2.0, 1.0, 3.0, 3]
    gaps = found["results"]["gaps"]["smollm2"]
    gaps["http://a"] = gaps["daemon"]
    path = load_plot.draw(found, tmp_path / "found.json")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_pages_read_documents_with_and_without_other_servers() -> None:
    old, new = document(), document()
    new["settings"]["llama_server"] = ["-m", "some.gguf"]
    gaps = new["results"]["gaps"]["smollm2"]
    gaps["llama-server"] = gaps["daemon"]
    assert "llama_server none" in "\n".join(part(("found.json", old)))
    told = "\n".join(part(("found.json", new)))
    assert "llama_server (-m, some.gguf)" in told
    assert "| SmolLM2-135M | llama-server | 0.100 |" in told
