"""The figures in README and docs/benchmarks.md are those of the results files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts import benchmark_pages
from scripts.benchmark_pages import (
    NONE_YET,
    PAGE,
    README,
    figures,
    filled,
    part,
    places,
    read,
    script_of,
)

ENVIRONMENT = {
    "cpu": "A CPU",
    "cores": 2,
    "memory_bytes": 8_000_000_000,
    "load_before": 0.5,
    "system": "Linux",
    "libraries": {"llama-cpp-python": "0.3"},
    "python": "3.11",
    "commit": "0123456789abcdef-dirty",
    "date": "2026-01-02T03:04:05+00:00",
}
PAGE_TEXT = "Words.\n\n<!-- figures bench_writes -->\nold 7\n<!-- /figures -->\n\nMore.\n"


def document(script: str, results: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    goals = [
        {"name": "flat", "measured": 1.1, "wanted": 1.25, "at_least": False, "met": True},
        {"name": "fast", "measured": 0.5, "wanted": 0.9, "at_least": True, "met": False},
    ]
    found = {
        "script": script,
        "environment": ENVIRONMENT,
        "settings": {"turns": 6, "sizes": [{"sessions": 1_000}], "server": ""},
        "results": results,
        "goals": goals,
    }
    return f"{script}.json", found | more


WRITES = document(
    "bench_writes",
    {"smollm2": {"growth": {"store": {"median": 2e6, "first": 1e6, "last": 3e6, "slope": 0.0}}}},
    command="python -m scripts.bench_writes --turns 6",
)


@pytest.mark.parametrize("page", [README, PAGE], ids=lambda page: page.name)
def test_the_pages_agree_with_the_results_files(page: Path) -> None:
    """If not: `python -m scripts.benchmark_pages`."""
    text = page.read_text()
    assert filled(text, read()) == text


def test_every_results_file_has_a_place() -> None:
    there = places(PAGE.read_text())
    assert len(there) == len(set(there))
    assert {script_of(document) for document in read()} <= set(there)


def test_readmes_figures_stand_between_the_marks() -> None:
    """Result: without what is generated no digit is left in the section."""
    (section,) = re.findall(r"^## Figures\n(.*?)^## ", README.read_text(), re.M | re.S)
    assert places(section) == [""]
    words = benchmark_pages.PLACE.sub("", section)
    assert not re.search(r"\d", words), words


def test_a_place_is_filled_and_nothing_else_changes() -> None:
    text = filled(PAGE_TEXT, [WRITES])
    assert text.startswith("Words.\n\n<!-- figures bench_writes -->\n\n`benchmarks/bench_writes")
    assert text.endswith("\n\n<!-- /figures -->\n\nMore.\n")
    assert "old 7" not in text
    assert filled(text, [WRITES]) == text
    assert filled(text, []) != text
    assert NONE_YET in filled(text, [])


def test_a_part_has_command_machine_tables_and_goals() -> None:
    told = "\n".join(part(WRITES))
    assert "`python -m scripts.bench_writes --turns 6`; turns 6, sizes (sessions 1,000)" in told
    assert "A CPU, 2 cores, 8.00 GB, load 0.500 before" in told
    assert "commit 0123456789ab-dirty, 2026-01-02." in told
    assert "| SmolLM2-135M | store | 3.00 | 2.00 | 0.000 |" in told
    assert "| flat | at most 1.25 | 1.10 | met |" in told
    assert "| fast | at least 0.900 | 0.500 | **MISSED** |" in told


def test_missed_goals_are_listed_with_their_file() -> None:
    assert figures("missed", [WRITES])[2:] == [
        "| fast | at least 0.900 | 0.500 | `bench_writes.json` |"
    ]
    assert figures("missed", []) == ["No goal was missed."]


def test_a_run_that_did_not_happen_says_why() -> None:
    assert "no GPU" in part(("cuda.json", {"ran": False, "why": "no GPU"}))[0]


def test_a_script_without_tables_of_its_own_has_goals() -> None:
    assert "| flat |" in "\n".join(part(document("bench_new", {})))


def test_readme_tells_what_a_turn_writes() -> None:
    told = "\n".join(figures("", [WRITES]))
    assert "the last of 6 over the first: 3.00 on SmolLM2-135M (`bench_writes.json`)" in told


def test_an_idle_daemon_is_told_by_the_minute() -> None:
    one = {
        "sessions": 24,
        "memory": {"anonymous": 5_000_000},
        "seconds": 30.0,
        "cpu": 0.01,
        "wakes": 20,
        "disk": 0,
    }
    results = {"resident": one, "per_parked": {"memory": 2_000.0, "disk": 3_000.0}}
    idle = document("footprint", results)
    assert "| resident | 24 | 20.0 | 40.0 | 5.00 | 0.000 |" in "\n".join(part(idle))
    assert "20.0 ms of a processor" in "\n".join(figures("", [idle]))


def test_the_command_checks_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed results file: the check fails until the script has run."""
    results, page, readme = tmp_path / "results", tmp_path / "page.md", tmp_path / "README.md"
    results.mkdir()
    page.write_text(PAGE_TEXT)
    readme.write_text("<!-- figures -->\n<!-- /figures -->\n")
    (results / WRITES[0]).write_text(json.dumps(WRITES[1]))
    for name, value in (("PAGE", page), ("README", readme), ("ROOT", tmp_path)):
        monkeypatch.setattr(benchmark_pages, name, value)
    found = read(results)
    monkeypatch.setattr(benchmark_pages, "read", lambda: found)
    for check, code in ((True, 1), (False, 0), (True, 0)):
        with pytest.raises(SystemExit) as ended:
            benchmark_pages.main(check=check)
        assert ended.value.code == code
    assert "page.md differs" in capsys.readouterr().out
    assert "| SmolLM2-135M | store |" in page.read_text()
