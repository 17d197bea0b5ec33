"""The picture of a document of bench_load: rates by streams, and the longest waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts import plots
from scripts.bench import name_of
from scripts.page_figures import named, spread
from scripts.plots import Panel, Role, Series
from scripts.results import Json, Spread

TITLES = {
    "prefill": "Prefill: prompt tokens of all streams together (median, least to most)",
    "decode": "Decode: tokens of all streams together (median, least to most)",
}
NAMES = {
    "daemon": ("sessiond over HTTP", Role.OURS),
    "engine": ("sessiond's engine", Role.OURS_TOO),
    "llama-server": ("llama-server", Role.OTHER),
    "bare": ("bare llama.cpp loop", Role.SENT),
}
ELSEWHERE = Role.OTHER_TOO


def draw(found: Json, at: Path) -> Path:
    """A picture beside the document `found`, which is, or will be, at `at`."""
    model, measured = found["settings"]["model"], found["results"]
    panels = [_rates(phase, measured["tokens_per_s"]) for phase in TITLES]
    panels.append(_gaps(found["settings"], measured["gaps"]))
    path = at.with_name(f"{at.stem}-{name_of(model)}.png")
    return plots.save(panels, path, f"{named(model)}: many streams at once")


def _rates(phase: str, rates: Json) -> Panel:
    counts = list(rates)
    names = list(rates[counts[0]][phase])
    series = [
        _series(name, [spread(rates[count][phase][name]) for count in counts]) for name in names
    ]
    return Panel(TITLES[phase], "streams", "tokens per second", counts, series, bars=True)


def _gaps(settings: Json, gaps: Json) -> Panel:
    models = list(gaps)
    names = list(gaps[models[0]])
    series = []
    for name in names:
        them = [gaps[model].get(name) for model in models]
        series.append(_series(name, [spread(one["longest"]) if one else None for one in them]))
    budget = settings["step_budget_ms"]
    bound = f"sessiond's step budget, {budget:.0f} ms"
    series.append(Series(bound, [budget] * len(models), Role.BOUND))
    beside = f"while another line reads {settings['long']:,} tokens"
    return Panel(
        f"Longest wait for a token {beside} (logarithmic; median, least to most)",
        *("", "milliseconds", [named(model) for model in models], series),
        bars=True,
        log_y=True,
    )


def _series(name: str, found: Sequence[Spread | None]) -> Series:
    label, role = NAMES.get(name, (name, ELSEWHERE))
    return Series(
        label,
        [one.median if one else None for one in found],
        role,
        [one.low if one else 0.0 for one in found],
        [one.high if one else 0.0 for one in found],
    )
