"""`bench_prefix`: prompts share what they say they share, and what reuse changes is counted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scripts.bench_prefix import fronts, tenths
from scripts.benchmark_pages import figures, part
from scripts.fetch_models import ROOT
from scripts.prefix_arms import LONGEST, SHORTEST, Scored, common, likeness, prompts


def test_a_quick_run_on_the_hybrid(hybrid_path: Path, tmp_path: Path) -> None:
    """Two fronts, four prompts each, two of them both ways.

    Result: with reuse just the prompt's own tokens are evaluated, the scores are the same, the
    pages can show it, and the picture is there.
    """
    kept = tmp_path / "found.json"
    command = [sys.executable, "-m", "scripts.bench_prefix", "--quick", "--out", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(kept.read_text())
    found = document["results"]["hybrid-tiny"]
    assert len(found) == len(fronts(100)) == 2
    for front in found:
        assert front["reused"]["sources"] == {"fork": 4}
        assert front["without"]["sources"] == {"new": 2}
        assert 1 <= front["beyond"] < 1.1
        assert 0.4 < front["share"] < 0.9
        assert front["speed_up"][3] == len(front["pairs"]) == 2
        assert front["same_replies"] == 1
        assert front["hit"]["agreed"] == front["hit"]["tokens"] == 4
        assert front["hit"]["scores"] < 1e-3
        assert 0 < sum(front["added"].values()) < sum(front["first"].values())
    assert found[0]["tokens"] < found[1]["tokens"]
    assert (tmp_path / "found-hybrid-tiny.png").read_bytes().startswith(b"\x89PNG")
    assert document["command"] == f"python -m scripts.bench_prefix --quick --out {kept}"
    told = "\n".join(part(("found.json", document)))
    assert document["command"] in told
    assert "| front, tokens |" in told
    (sentence,) = [line for line in figures("", [("found.json", document)]) if line]
    assert "times sooner" in sentence


def test_prompts_share_their_front_alone() -> None:
    asked = prompts(60, 40)
    assert {prompt.front for prompt in asked} == {asked[0].front}
    assert len(asked[0].front.split()) == 60
    assert len({prompt.said for prompt in asked}) == 40
    sizes = {len(prompt.said.split()) for prompt in asked}
    assert SHORTEST <= min(sizes) < max(sizes) <= LONGEST
    assert prompts(60, 2) == asked[:2]


def test_fronts_grow_by_equal_ratios_up_to_the_last() -> None:
    found = fronts(8_000)
    assert (found[0], found[-1]) == (50, 8_000)
    ratios = [after / before for before, after in pairwise(found)]
    assert ratios == [pytest.approx(ratios[0], rel=0.02)] * len(ratios)
    assert 1.7 < ratios[0] < 2.4
    assert fronts(100) == [50, 100]


def test_likeness_counts_what_agrees_and_the_largest_difference() -> None:
    """The first token that differs is still looked at, what comes after it is not."""
    one = [_scored(b"a", a=-0.1, b=-2.0), _scored(b"b", b=-0.7, c=-0.8), _scored(b"d", d=-0.1)]
    other = [_scored(b"a", a=-0.1, b=-2.5), _scored(b"c", b=-0.8, c=-0.7), _scored(b"d", d=-9.0)]
    found = likeness(one, other)
    assert (found.tokens, found.agreed) == (3, 1)
    assert found.scores == pytest.approx(0.5)
    moved = [(2.0, 2.5), (0.7, 0.8)]
    largest = max(math.exp(-a) - math.exp(-b) for a, b in moved)
    assert found.probability == pytest.approx(largest)
    assert likeness(one, one).scores == 0
    assert likeness(one, one).agreed == 3


def test_common_beginnings() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [1, 2, 3]) == 2
    assert common([], [1]) == 0


def test_tenths() -> None:
    assert tenths([5.0]) == (5.0, 5.0)
    low, high = tenths([float(n) for n in range(101)])
    assert (low, high) == (pytest.approx(10.0), pytest.approx(90.0))


def _scored(token: bytes, **likeliest: float) -> Scored:
    return Scored(token, {name.encode(): score for name, score in likeliest.items()})
