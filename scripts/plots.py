"""Pictures of what was measured: some lines or bars in panels above one another, as a PNG.

The same thing has the same colour in every picture: sessiond blue, what it is compared with orange,
what a client sent grey, a bound dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

INK, FAINT, PAPER = "#1f2933", "#d5dae1", "#ffffff"
WIDTH, HEIGHT = 9.0, 3.4
"""Inches, of a panel."""
_MOST_TICKS = 24
_BAR = 0.8


class Role(Enum):
    """What a series is; the value is its colour."""

    OURS = "#1d5fd1"
    OURS_TOO = "#7aa7f0"
    OTHER = "#e07b1a"
    OTHER_TOO = "#f2bd85"
    SENT = "#9aa5b1"
    BOUND = "#30363d"


@dataclass(frozen=True, slots=True)
class Series:
    """One value for each place of the panel; None leaves a gap.

    `low` and `high` are the smallest and the largest of what was measured there.
    """

    label: str
    values: Sequence[float | None]
    role: Role
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """`x` are the places: numbers for lines, any names for bars, where they are written below.

    `title` and the labels of both axes say the units. `marks`: places at which something happened,
    and what.
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[float | str]
    series: Sequence[Series]
    bars: bool = False
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = field(default=())


def save(panels: Sequence[Panel], path: Path, title: str = "") -> Path:
    """Writes the picture; panels stand above one another."""
    figure = Figure(figsize=(WIDTH, HEIGHT * len(panels)), layout="constrained", facecolor=PAPER)
    if title:
        figure.suptitle(title, color=INK, fontsize=13, fontweight="bold", x=0.01, ha="left")
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, facecolor=PAPER)
    return path


def _draw(axes: Axes, panel: Panel) -> None:
    named = any(isinstance(place, str) for place in panel.x)
    places = [n if isinstance(place, str) else float(place) for n, place in enumerate(panel.x)]
    if panel.bars:
        _bars(axes, panel.series, places)
    else:
        _lines(axes, panel.series, places)
    if named:
        _name_places(axes, [str(place) for place in panel.x])
    if panel.log_x:
        axes.set_xscale("log")
        _ratio_ticks(axes.xaxis)
    if panel.log_y:
        axes.set_yscale("log")
        _ratio_ticks(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    _dress(axes, panel)
    for at, what in panel.marks:
        axes.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        note = axes.annotate(
            what, (at, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -3),
            textcoords="offset points", va="top", fontsize=7, color=INK, annotation_clip=True,
        )  # fmt: skip
        note.set_in_layout(False)


def _ratio_ticks(axis: Axis) -> None:
    """At 1, 2, 5, 10, 20 and so on, and written as they are said."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_plain))


def _plain(value: float, _: int) -> str:
    return f"{value:,.10g}"


def _lines(axes: Axes, series: Sequence[Series], places: Sequence[float]) -> None:
    for one in series:
        values = [float("nan") if value is None else value for value in one.values]
        bound = one.role is Role.BOUND
        axes.plot(
            places, values, label=one.label, color=one.role.value, zorder=3 if bound else 2,
            linestyle="--" if bound else "-", marker="" if bound else "o", markersize=4,
            linewidth=1.4 if bound else 1.8,
        )  # fmt: skip
        if one.low and one.high:
            axes.fill_between(
                places, one.low, one.high, color=one.role.value, alpha=0.15, linewidth=0
            )


def _bars(axes: Axes, series: Sequence[Series], places: Sequence[float]) -> None:
    """A bound is a dashed stroke over all bars of its place."""
    solid = [one for one in series if one.role is not Role.BOUND]
    width = _BAR / max(len(solid), 1)
    for number, one in enumerate(solid):
        shift = (number - (len(solid) - 1) / 2) * width
        values = [0.0 if value is None else value for value in one.values]
        at = [place + shift for place in places]
        axes.bar(at, values, width * 0.92, label=one.label, color=one.role.value, zorder=2)
        if one.low and one.high:
            below = [v - low for v, low in zip(values, one.low, strict=True)]
            above = [high - v for v, high in zip(values, one.high, strict=True)]
            axes.errorbar(
                at, values, yerr=[below, above], fmt="none", ecolor=INK, elinewidth=0.8, zorder=3
            )
    for one in series:
        if one.role is Role.BOUND:
            known = [(p, v) for p, v in zip(places, one.values, strict=True) if v is not None]
            axes.hlines(
                [value for _, value in known],
                [place - _BAR / 2 for place, _ in known],
                [place + _BAR / 2 for place, _ in known],
                color=one.role.value, linestyle="--", linewidth=1.4, label=one.label, zorder=4,
            )  # fmt: skip


def _name_places(axes: Axes, names: Sequence[str]) -> None:
    step = max(1, -(-len(names) // _MOST_TICKS))
    shown = range(0, len(names), step)
    long = max(map(len, names), default=0) * len(names) > 90
    angle, side = (35, "right") if long else (0, "center")
    axes.set_xticks(
        list(shown), [names[at] for at in shown], rotation=angle, ha=side,
        rotation_mode="anchor" if long else "default",
    )  # fmt: skip
    axes.set_xlim(-0.6, len(names) - 0.4)


def _dress(axes: Axes, panel: Panel) -> None:
    axes.set_facecolor(PAPER)
    axes.set_title(panel.title, loc="left", color=INK, fontsize=10.5)
    axes.set_xlabel(panel.x_label, color=INK, fontsize=9)
    axes.set_ylabel(panel.y_label, color=INK, fontsize=9)
    axes.tick_params(colors=INK, labelsize=8, length=3)
    axes.grid(axis="y", color=FAINT, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    if len(panel.series) > 1:
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, labelcolor=INK
        )
