"""The measuring scripts: they start, they measure, and what they say is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import bench_load, bench_ring, bench_writes, decode_loops, load_loops, results
from scripts.bench_resume import plain_copy
from scripts.bench_ring import Asked, Level
from scripts.bench_writes import growth
from scripts.daemon import Daemon, DaemonFailed, events
from scripts.fetch_models import ROOT
from scripts.load_loops import Heard
from scripts.results import Goal, spread
from sessiond.engine.core import STEP_BUDGET_MS

SCRIPTS = (
    "demo",
    "bench_resume",
    "bench_decode",
    "bench_writes",
    "bench_store",
    "bench_stream",
    "bench_capture",
    "bench_ring",
    "bench_load",
    "bench_growth",
    "bench_footprint",
    "bench_day",
    "bench_prefix",
    "bench_memory",
    "proof_durability",
)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(models: Callable[[str], Path]) -> Run:
    """Runs a script with its models in place; fails with what it said when it fails."""

    def go(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", f"scripts.{name}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done

    return go


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_how_it_is_used(run: Run, name: str) -> None:
    assert "--json" in run(name, "--help").stdout


def test_the_demo_shows_a_turn_that_survives_a_kill(run: Run, hybrid_path: Path) -> None:
    """Result: three turns before the kill, one after it, from disk, of its new tokens only."""
    said = run("demo", "--model", str(hybrid_path), "--max-tokens", "4", "--threads", "1", "--json")
    cold, *warm, after = json.loads(said.stdout)
    assert (cold["source"], cold["evaluated"]) == ("new", cold["prompt_tokens"])
    assert 1_400 <= cold["prompt_tokens"] <= 1_700
    assert [turn["source"] for turn in warm] == ["resident", "resident"]
    assert after["source"] == "disk"
    assert after["evaluated"] < 60 < after["prompt_tokens"] - cold["prompt_tokens"]
    assert "kill -9" in said.stderr


def test_bytes_written_per_turn_are_flat(
    run: Run, hybrid_path: Path, mamba_path: Path, tmp_path: Path
) -> None:
    """Six turns of the tiny models, parked after each. Result: the last cost what the first did."""
    kept = tmp_path / "kept.json"
    said = run("bench_writes", "--quick", "--json", "--out", str(kept))
    document: dict[str, Any] = json.loads(said.stdout)
    assert document == json.loads(kept.read_text())
    assert document["script"] == "bench_writes"
    for name in ("hybrid-tiny", "mamba2-tiny"):
        turns = document["results"][name]["turns"]
        assert len(turns) == 6
        assert all(turn["store"] > 0 for turn in turns)
    assert [goal["met"] for goal in document["goals"]] == [True, True]
    assert document["environment"]["libraries"]["llama-cpp-python"]


def test_captures_are_compared_with_blocking_exports(run: Run, hybrid_path: Path) -> None:
    """400 tokens, three places. Result: two are frozen and one is direct; none is left out."""
    document: dict[str, Any] = json.loads(run("bench_capture", "--quick", "--json").stdout)
    places = document["settings"]["places"]
    assert [place["rank"] for place in places] == ["front", "last_boundary", "last_boundary"]
    kinds = {name: kind["rounds"][0] for name, kind in document["results"]["hybrid-tiny"].items()}
    assert [kind for kind, once in kinds.items() if once["taken"]] == ["capture", "blocking"]
    for name in ("capture", "blocking"):
        taken = kinds[name]["taken"]
        assert [one["position"] for one in taken] == [place["at"] for place in places]
        assert 0 < kinds[name]["capture_ms"] < kinds[name]["prefill_ms"]
    assert [one["how"] for one in kinds["capture"]["taken"]] == ["frozen", "frozen", "direct"]
    assert len(kinds["capture"]["snapshot_bytes"]) == len(places) + 1
    assert kinds["blocking"]["snapshot_bytes"] == []


def test_a_small_ring_costs_tokens_and_never_more_bytes(run: Run, hybrid_path: Path) -> None:
    """Three talks of four turns. Result: with all in the ring a return evaluates one token.

    With a quarter it evaluates more, and still less than the prompts; going on costs the same.
    """
    document: dict[str, Any] = json.loads(run("bench_ring", "--quick", "--json").stdout)
    whole, quarter = document["results"]["all"], document["results"]["1/4"]
    assert [asked["evaluated"] for asked in whole["returns"]] == [1] * len(whole["returns"])
    assert whole["landings"]["ring"] == len(whole["returns"]) + len(whole["appends"])
    assert quarter["budget"] == whole["full"] // 4
    assert quarter["highest"] <= quarter["budget"]
    assert 1 < quarter["returns_mean"]
    assert quarter["returns_of_prompt"] < 1
    assert quarter["appends"] == whole["appends"]


def test_streams_are_compared_with_a_bare_loop(run: Run, hybrid_path: Path) -> None:
    """One and two streams of the tiny hybrid. Result: rates of all, and a stream that went on.

    Two that are never at it together, as on a busy machine, have no rate together.
    """
    document: dict[str, Any] = json.loads(run("bench_load", "--quick", "--json").stdout)
    rates, ratios = document["results"]["tokens_per_s"], document["results"]["of_better"]
    for count in ("1", "2"):
        for phase in ("prefill", "decode"):
            median = {name: rate[0] for name, rate in rates[count][phase].items()}
            assert set(median) == {"daemon", "engine", "bare"}
            assert count == "2" or min(median.values()) > 0
            wanted = median["daemon"] / median["bare"] if median["bare"] else 0.0
            assert ratios[count][phase]["daemon"] == pytest.approx(wanted)
    for gap in document["results"]["gaps"]["hybrid-tiny"].values():
        assert 0 < gap["median"][0] <= gap["longest"][0] <= gap["reading_ms"][0]
        assert gap["budgets"] == pytest.approx(gap["longest"][2] / STEP_BUDGET_MS)
    assert len(document["goals"]) == 2 * 2 * 2 + 2


def test_other_servers_are_read_by_the_same_client(
    run: Run, hybrid_path: Path, tmp_path: Path, free_port: int
) -> None:
    """A stand-in for llama-server, started here, and one that runs. Result: rates and gaps of both.

    The best of them and the loop is the measure; they have no goals; a picture is drawn.
    """
    binary, kept = ROOT / "tests" / "llama_server.py", tmp_path / "kept.json"
    url = f"http://127.0.0.1:{free_port}"
    asked = ("--launch", "llama-server", str(binary), "--launch-options", "--poll 0", "--url", url)
    stock = [sys.executable, str(binary), "--host", "127.0.0.1", "--port", str(free_port)]
    with subprocess.Popen(stock, stderr=subprocess.DEVNULL) as running:
        try:
            run("bench_load", "--quick", "--json", "--out", str(kept), *asked)
        finally:
            running.kill()
    document: dict[str, Any] = json.loads(kept.read_text())
    rates, ratios = document["results"]["tokens_per_s"], document["results"]["of_better"]
    for count in ("1", "2"):
        rate = {name: rate[0] for name, rate in rates[count]["prefill"].items()}
        better = max(rate["llama-server"], rate[url], rate["bare"])
        of_better = rate["engine"] / better if better else 0.0
        assert ratios[count]["prefill"]["engine"] == pytest.approx(of_better)
    assert list(document["results"]["gaps"]["hybrid-tiny"]) == [
        *("daemon", "engine", "llama-server", url)
    ]
    assert len(document["goals"]) == 2 * 2 * 2 + 2
    options = document["settings"]["llama_server"]
    assert options[options.index("-b") + 1] == str(document["settings"]["n_batch"])
    assert options[options.index("-np") + 1] == str(load_loops.LINES)
    assert options[-2:] == ["--poll", "0"]
    assert (tmp_path / "kept-hybrid-tiny.png").read_bytes().startswith(b"\x89PNG")


def test_rates_count_only_while_all_streams_do_the_same() -> None:
    first, second = Heard(0.0, [1.0, 2.0, 3.0, 4.0]), Heard(0.5, [2.0, 2.5, 3.0])
    assert bench_load.prefill_rate([first, second], 100) == pytest.approx(100.0)
    assert bench_load.decode_rate([first, second]) == pytest.approx(3.0)


def test_a_gap_is_from_the_last_token_before_to_the_first_of_the_other() -> None:
    talking = Heard(0.0, [1.0, 2.0, 4.0, 4.5, 9.0])
    assert bench_load.gaps(talking, Heard(2.5, [4.6])) == [2000.0, 500.0]


def test_growth_is_told_for_two_sizes(run: Run) -> None:
    """20 and 200 sessions. Result: all are listed, a session's state is found in its blocks."""
    document: dict[str, Any] = json.loads(run("bench_growth", "--quick", "--json").stdout)
    small, large = document["results"]["20"], document["results"]["200"]
    assert (small["listed"], large["listed"]) == (20, 200)
    assert (small["found"], large["found"]) == (small["tokens"], large["tokens"])
    for costs in (small, large):
        assert costs["command"] > costs["second_list"] > 0
        assert min(costs["append"] + costs["begin"] + costs["strange"]) > 0
    assert len(document["goals"]) == 6


def test_flash_attention_is_measured_beside_none(run: Run) -> None:
    """The tiny hybrid. Result: one row for each size of a batch, times of both, their ratio."""
    document: dict[str, Any] = json.loads(run("bench_attention", "--quick", "--json").stdout)
    batches = document["results"]["hybrid-tiny"]
    assert [each["size"] for each in batches] == document["settings"]["sizes"] == [1, 24, 64]
    for each in batches:
        flash, plain = each["flash"][0], each["plain"][0]
        assert flash > 0 and plain > 0
        assert each["ratio"] == pytest.approx(flash / plain)


def test_a_curve_shows_mean_and_worst() -> None:
    asked = (Asked(1, 100, 50), Asked(2, 100, 0))
    level = Level(2, 10, 10, 10, 1, (), asked, {})
    bar, scale = bench_ring.plot([level])
    assert bar.split("|")[1] == ("#" * 15 + "-" * 15).ljust(60)
    assert scale.endswith("100 = the longest prompt")


def test_a_quick_run_keeps_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "docs")
    found = results.document("bench_x", {}, {}, [], {})
    results.finish(found, as_json=True, keep=False, out=None)
    assert not (tmp_path / "docs").exists()
    results.finish(found, as_json=True, keep=True, out=None)
    assert json.loads((tmp_path / "docs" / "bench_x.json").read_text()) == found


def test_a_daemon_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(DaemonFailed, match=r"does not exist"):
        Daemon(tmp_path / "none.gguf", tmp_path / "state").start()


def test_events_are_read_whatever_the_chunks() -> None:
    stream = (
        b': \n\ndata: {"a": 1}\n\ndata: {"b": "\xe2\x80\xa8"}\n\ndata: [DONE]\n\ndata: {"c": 2}\n\n'
    )
    wanted = [{"a": 1}, {"b": "\u2028"}]
    for size in (1, 7, len(stream)):
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert list(events(chunks)) == wanted


def test_growth_tells_flat_from_rising() -> None:
    flat = growth([50.0] + [1.0, 3.0] * 20)
    assert (flat.median, flat.first, flat.last, flat.ratio) == (2.0, 2.0, 2.0, 1.0)
    rising = growth([float(n) for n in range(40)])
    assert rising.ratio > bench_writes.FLAT
    assert rising.slope == pytest.approx(1.0)


def test_goals_and_spreads() -> None:
    assert Goal("x", 0.95, 0.95).met
    assert not Goal("x", 0.94, 0.95).met
    assert not Goal("x", 1.31, 1.3, at_least=False).met
    assert spread([3, 1, 2]) == (2, 1, 3, 3)
    assert str(spread([3.0, 1.0, 2.0])) == "2.00 (1.00-3.00)"


def test_a_plain_copy_counts_every_byte(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for n, path in enumerate(files, 1):
        path.write_bytes(bytes(n * 10_000))
    found = plain_copy(files)
    assert found["bytes"] == 30_000
    assert min(found["plain_ms"], found["tuned_ms"]) > 0


def test_the_pace_of_a_loop_counts_the_gaps_between_tokens() -> None:
    assert decode_loops.decoded([1.0, 1.5, 2.0], "abc")["us_per_token"] == pytest.approx(5e5)
