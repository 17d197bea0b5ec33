"""`bench_memory`: what a daemon takes is looked at, and slopes are of what comes after warm-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench_memory import (
    RECORDS,
    Plan,
    Standing,
    each,
    goals,
    has_room,
    must_stay,
    settings_of,
)
from scripts.benchmark_pages import figures, part
from scripts.fetch_models import ROOT
from scripts.growth_turns import Growth, Look, slopes


def test_a_quick_run_on_the_hybrid(hybrid_path: Path, tmp_path: Path) -> None:
    """Two sessions in the context, three parked, a ring of a megabyte, twenty turns.

    Result: each kind was looked at, the ring kept its budget, and the pages can show it.
    """
    kept = tmp_path / "found.json"
    command = [sys.executable, "-m", "scripts.bench_memory", "--quick", "--out", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(kept.read_text())
    found = document["results"]["models"]["hybrid-tiny"]
    kinds = ("idle", "first", "resident", "one_parked", "parked")
    assert [found[kind]["sessions"] for kind in kinds] == [0, 1, 2, 1, 3]
    assert all(found[kind]["own"] > 10_000_000 for kind in kinds)
    assert found["per_parked"]["disk"] > 0
    assert found["per_resident"]["ring"] > 0
    assert 0 < found["ring"]["bytes"] <= found["ring"]["budget"]
    for one in document["results"]["growth"].values():
        assert one["looks"][0]["turn"] == 0
        assert one["looks"][-1]["turn"] == 20
        assert set(one["slopes"]) == {"rss", "own", "threads", "files", "disk"}
    looks = document["results"]["growth"]["dropped"]["looks"]
    assert looks[-1]["threads"] <= looks[1]["threads"] + 4
    assert looks[-1]["files"] <= looks[1]["files"] + 4
    assert (tmp_path / "found-growth.png").read_bytes().startswith(b"\x89PNG")
    told = "\n".join(part(("found.json", document)))
    assert "a full ring" in told
    assert "| dropped | 20 |" in told
    assert any("A parked session" in line for line in figures("", [("found.json", document)]))


def test_slopes_leave_the_warm_up_out() -> None:
    """Much at first, then three a turn: three."""
    looks = [Look(n, 1_000 * min(n, 50) + 3 * n, 0, 9, 16 + n % 2, 7) for n in range(101)]
    found = slopes(looks)
    assert found["rss"] == pytest.approx(3.0)
    assert (found["threads"], found["disk"]) == (0.0, 0.0)
    assert abs(found["files"]) < 0.01


def test_each_session_is_what_came_on_top() -> None:
    before, after = Standing(1, 0, 1_000, 10, 100), Standing(5, 0, 3_000, 50, 900)
    found = each(before, after, 1_000)
    assert (found.own, found.ring, found.disk, found.tokens) == (500, 10, 200, 200)


def test_a_ring_is_full_when_the_next_snapshot_does_not_fit() -> None:
    assert has_room({"ring_bytes": 80, "ring_entries": 8, "ring_budget": 90})
    assert not has_room({"ring_bytes": 80, "ring_entries": 8, "ring_budget": 89})


def test_a_kept_turn_may_add_what_it_said_and_its_records() -> None:
    """Four bytes for a token, in the turn and in four paths, its text; a byte more is missed."""
    assert must_stay(100) == RECORDS + 100 * (4 + 4 * 4 + 1)

    def missed(own: float) -> list[str]:
        still = dict.fromkeys(("own", "disk", "threads", "files"), 0.0)
        kept = Growth((), {**still, "own": own}, 1.0, 100.0)
        found = goals({}, {"kept": kept, "dropped": Growth((), still, 1.0, 0.0)})
        return [goal.name for goal in found if not goal.met]

    assert missed(must_stay(100)) == []
    assert missed(must_stay(100) + 1) == [
        "memory that a turn of a kept session adds, 100 tokens, bytes"
    ]


def test_a_template_is_told_to_the_daemon_and_kept_by_name(tmp_path: Path) -> None:
    shown = tmp_path / "own.jinja"
    plan = Plan(2, 3, 4, 5, 1, template=shown)
    assert plan.options[-2:] == ("--model-chat-template-file", str(shown))
    assert settings_of(plan)["template"] == "own.jinja"
    plain = Plan(2, 3, 4, 5, 1)
    assert "--model-chat-template-file" not in plain.options
    assert settings_of(plain)["template"] == ""
