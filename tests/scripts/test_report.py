"""What a day comes to: sums, moments and times, against another server, on pages and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from scripts import bench, page_figures
from scripts.bench import MODELS, model_path, name_of
from scripts.benchmark_pages import figures, part
from scripts.day import report, trace
from scripts.day.replay import Cost, Day
from scripts.day.times import Moment, Pair, compared, moments
from scripts.day.trace import Trace
from scripts.fetch_models import Model
from tests.scripts.test_pages import document

OTHER = "llama-server"
SENT, LOWER = 100, 10
Evaluated = dict[str, int | None]


def cost(event: str, ttft_ms: float, evaluated: int | None, stated: int = LOWER) -> Cost:
    return Cost(
        event, "s", "new", SENT, 5, evaluated, LOWER, stated, ttft_ms, 9.0, 1, 1 << 24,
        "disk", "", "stop", after_restart=False,
    )  # fmt: skip


def played(
    server: str,
    one: Trace,
    ms: float,
    evaluated: int | None = LOWER,
    special: Evaluated | None = None,
) -> Day:
    """`special` are events that took another number of tokens."""
    counts = {turn.id: evaluated for turn in one.turns} | (special or {})
    costs = tuple(cost(event, ms, tokens) for event, tokens in counts.items())
    return Day(server, costs, (1.0,), 0, 2_000_000)


def two() -> list[Trace]:
    return trace.named(["growth", "regenerate"])


def a_day(ours: float = 1.0, theirs: float = 4.0, **more: Any) -> dict[str, report.Days]:
    """Two rounds of two traces; ours and theirs are milliseconds."""
    return {
        one.name: {
            "sessiond": [played("sessiond", one, ours * n) for n in (1, 2)],
            OTHER: [played(OTHER, one, theirs * n, **{"evaluated": 40, **more}) for n in (1, 2)],
        }
        for one in two()
    }


def kept(
    found: dict[str, report.Days], name: str = "day/smollm2.json"
) -> tuple[str, dict[str, Any]]:
    """As it stands in the results file."""
    traces = two()
    results = report.as_json(found, traces)
    more = {"sums": report.whole_json(found, traces), "beyond": report.beyond(found)}
    about = {one.name: one.header.about for one in traces}
    settings = {"model": "smollm2", "traces": about}
    _, whole = document("bench_day", results, settings=settings, **more)
    return name, json.loads(json.dumps(whole))


# --- when an event comes


def test_an_event_is_warm_if_what_it_goes_on_from_was_asked_since_the_start() -> None:
    (turns,) = trace.named(["taking-turns"])
    found = moments(turns)
    assert [found[f"north {n}"] for n in (1, 2, 3, 4)] == [
        Moment.FIRST,
        Moment.RESTARTED,
        Moment.WARM,
        Moment.RESTARTED,
    ]
    assert found["west 2"] is Moment.RESTARTED
    (compaction,) = trace.named(["compaction"])
    assert moments(compaction)["compacted"] is Moment.CHANGED
    (tools,) = trace.named(["tools"])
    assert {moments(tools)[turn.id] for turn in tools.turns if turn.calls} == {Moment.CALLED}


def test_times_are_compared_by_median_where_warm_and_in_sum() -> None:
    pairs = [Pair(Moment.WARM, ours, 10.0) for ours in (5.0, 8.0, 90.0)]
    pairs += [Pair(Moment.RESTARTED, 30.0, 60.0), Pair(Moment.FIRST, 7.0, 10.0), Pair(None, 9, 0)]
    pairs += [Pair(Moment.CALLED, 900.0, 1.0)]
    found = compared(pairs)
    assert (found.warm, found.restarted) == (0.8, 0.5)
    assert found.all == pytest.approx(140 / 100)
    assert compared(pairs, restarts=False).restarted is None
    nothing = compared([])
    assert (nothing.warm, nothing.all, nothing.restarted) == (None, None, None)


# --- goals and sums


def test_goals_for_time_are_met_by_the_sooner_server() -> None:
    sooner, later = (report.goals_of(a_day(ours), two()) for ours in (1.0, 8.0))
    names = [goal.name for goal in sooner if "first token" in goal.name]
    assert names[:3] == [
        f"all traces: time to the first token, {words} / {OTHER}"
        for words in ("warm", "in sum", "after a restart")
    ]
    assert f"all traces: evaluated of the bound / {OTHER}" in [goal.name for goal in sooner]
    assert all(goal.met for goal in sooner)
    missed = [goal for goal in later if not goal.met]
    assert [goal.name for goal in missed] == [goal.name for goal in later if "first" in goal.name]
    assert {goal.measured for goal in missed} == {2.0}


def test_all_traces_together_are_their_sums() -> None:
    found = a_day()
    sums = report.sums_of(found)
    each = [report.sum_of(days["sessiond"]) for days in found.values()]
    whole = sums["sessiond"]
    assert whole.sent == sum(one.sent for one in each)
    assert (whole.evaluated, whole.ratio) == (whole.lower, 1.0)
    assert (whole.written, whole.resident) == (4_000_000, 1 << 24)
    events = sum(len(one.turns) for one in two())
    assert whole.ttft_s[:3] == pytest.approx((1.5e-3 * events, 1e-3 * events, 2e-3 * events))
    assert sums[OTHER].ratio == 4.0


def test_of_a_server_that_counts_nothing_times_are_told() -> None:
    found = a_day(evaluated=None)
    assert report.sums_of(found)[OTHER].evaluated is None
    names = {goal.name for goal in report.goals_of(found, two()) if OTHER in goal.name}
    assert len(names) == 3
    assert all("first token" in name for name in names)
    assert report.beyond(found) == []
    told = "\n".join(part(kept(found)))
    assert f"| {OTHER} |  | " in told


def test_an_event_that_cost_too_much_is_told_with_what_the_other_took() -> None:
    one = two()[0]
    event = one.turns[2].id
    ours = played("sessiond", one, 1.0, special={event: 50})
    found = a_day() | {one.name: {"sessiond": [ours], OTHER: [played(OTHER, one, 1.0, 40)]}}
    (told,) = report.beyond(found)
    assert (told["event"], told["over"], told["more_than"]) == (event, True, [OTHER])
    assert (told["evaluated"], told["others"]) == (50, {OTHER: 40})


# --- pages


def test_the_page_has_sums_traces_and_no_event_that_cost_too_much() -> None:
    lines = part(kept(a_day()))
    told = "\n".join(lines)
    assert "SmolLM2-135M, 2 traces, in sum:" in lines
    assert lines.index("Each trace:") > lines.index("SmolLM2-135M, 2 traces, in sum:")
    assert "| growth | sessiond | 1.00 | 1,000 | 100 | 100 | 0.015 (0.010-0.020) |" in told
    assert f"| growth | {OTHER} | 4.00 | 1,000 | 400 | 100 |" in told
    assert "| 0.250 | 0.250 | 0.250 | 2.00 | 16.8 | 1.00 (1.00-1.00) |" in told
    assert "than another server, in all and over the lower bound: none." in told
    assert "- growth: " in told


def test_the_page_lists_events_that_cost_too_much() -> None:
    one = two()[0]
    event = one.turns[2].id
    found = a_day()
    found["growth"] = {
        "sessiond": [played("sessiond", one, 1.0, special={event: 50})] * 2,
        OTHER: found["growth"][OTHER],
    }
    assert f"| growth | {event} | 50 | 10 | 10 | 40 |  |" in part(kept(found))


def test_readme_has_every_model_in_sum_and_every_trace_as_ratios() -> None:
    days = [kept(a_day()), kept(a_day(2.0), "day/other.json")]
    days[1][1]["settings"]["model"] = "/my/other.gguf"
    lines = figures("", days)
    told = "\n".join(lines)
    assert "(`day/smollm2.json`, `day/other.json`, A CPU)" in told
    assert "| SmolLM2-135M | 1.00 | 4.00 | 4.00 |" in told
    assert "| Other | 1.00 | 4.00 | 2.00 |" in told
    assert "| growth | 4.00 | 4.00 | 4.00 | 2.00 |" in lines
    assert "| all together | 4.00 | 4.00 | 4.00 | 2.00 |" in lines


def test_readme_has_a_sentence_where_there_was_no_other_server() -> None:
    found = {name: {"sessiond": days["sessiond"]} for name, days in a_day().items()}
    (line,) = [line for line in figures("", [kept(found)]) if line]
    assert "2 traces of agents, SmolLM2-135M: 1.00 of the fewest" in line
    assert "10.0 % of those sent (`day/smollm2.json`)" in line


def test_many_goals_are_folded_up_but_those_that_were_missed() -> None:
    goal = {"measured": 1.0, "wanted": 1.0, "at_least": False}
    goals = [{"name": f"goal {n}", **goal} for n in range(30)]
    goals[7]["measured"] = 2.0
    lines = part(document("bench_new", {}, goals=goals))
    missed = lines.index("| goal 7 | at most 1.00 | 2.00 | **MISSED** |")
    folded = lines.index("<details><summary>29 of 30 goals were met</summary>")
    assert missed < folded < lines.index("| goal 8 | at most 1.00 | 1.00 | met |")


# --- pictures


def test_the_whole_day_is_a_picture(tmp_path: Path) -> None:
    picture = report.plot_day(a_day(), tmp_path / "model", "A day")
    assert picture == tmp_path / "model" / "day.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_one_picture_is_shown_and_the_others_are_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.benchmark_pages.RESULTS", tmp_path)
    name, found = kept(a_day())
    for picture in ("growth", "day", "regenerate"):
        path = tmp_path / "day" / "smollm2" / f"{picture}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    lines = part((name, found))
    assert "![day](benchmarks/day/smollm2/day.png)" in lines
    (linked,) = [line for line in lines if line.startswith("Event by event: ")]
    assert "[growth](benchmarks/day/smollm2/growth.png), [regenerate](" in linked
    (tmp_path / "bench_prefix-smollm2.png").write_bytes(b"")
    assert "![bench_prefix-smollm2](benchmarks/bench_prefix-smollm2.png)" in part(
        document("bench_prefix", {})
    )


# --- models


def test_a_model_is_a_name_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"")
    assert model_path(str(mine)) == mine
    assert (name_of(str(mine)), name_of("smollm2")) == ("mine", "smollm2")
    assert page_figures.named(str(mine)) == "mine"
    known: dict[str, Model] = {"one": MODELS["smollm2"]}
    monkeypatch.setattr(bench, "MODELS", known)
    monkeypatch.setattr("scripts.fetch_models.fetch", lambda model: model.path)
    assert model_path("one") == MODELS["smollm2"].path
    for name, words in ((str(tmp_path / "no.gguf"), "no such file"), ("none", "one of: one")):
        with pytest.raises(typer.BadParameter, match=words):
            model_path(name)
