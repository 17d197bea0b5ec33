"""Writes the figures in docs/benchmarks.md and README.md from the results files, never by hand.

What stands between `<!-- figures NAME -->` and `<!-- /figures -->` is replaced. NAME is a script's
as its results files say it: their tables, goals, commands and machines. `missed` is all goals that
were missed; `readme`, the one without a name, is what README shows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from scripts.day_figures import Document, day
from scripts.fetch_models import ROOT
from scripts.page_figures import FIGURES, Lines, table
from scripts.readme_figures import readme
from scripts.results import RESULTS, Goal, Json, number

README, PAGE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
MISSED = "missed"
PLACE = re.compile(
    r"^(?P<begin><!-- figures(?: (?P<name>\w+))? -->)\n.*?^(?P<end><!-- /figures -->)$",
    re.MULTILINE | re.DOTALL,
)
NONE_YET = "There are no results yet."
TABLES = FIGURES | {"bench_day": day}
WHOLE = "day.png"
"""Of many pictures, the one that is shown; to the others there are links."""
MANY_GOALS = 20


def read(folder: Path = RESULTS) -> list[Document]:
    """All results files, by their path below the folder."""
    paths = sorted(folder.rglob("*.json"))
    return [(path.relative_to(folder).as_posix(), json.loads(path.read_text())) for path in paths]


def script_of(document: Document) -> str:
    """A file that says no script is named like it."""
    name, found = document
    return str(found.get("script") or Path(name).stem)


def places(text: str) -> list[str]:
    """The names of all places for figures."""
    return [place["name"] or "" for place in PLACE.finditer(text)]


def filled(text: str, documents: Sequence[Document]) -> str:
    """The page with the figures of these documents."""

    def put(place: re.Match[str]) -> str:
        lines = figures(place["name"] or "", documents)
        return "\n".join([place["begin"], "", *_trimmed(lines), "", place["end"]])

    return PLACE.sub(put, text)


def figures(name: str, documents: Sequence[Document]) -> Lines:
    if not name:
        return readme(documents)
    if name == MISSED:
        return missed(documents)
    found = [document for document in documents if script_of(document) == name]
    return [line for document in found for line in part(document)] or [NONE_YET]


def part(document: Document) -> Lines:
    """Of one results file."""
    name, found = document
    if "results" not in found:
        return [f"`benchmarks/{name}`: {found.get('why', NONE_YET)}", ""]
    script = script_of(document)
    tables = TABLES[script](found) if script in TABLES else []
    return [
        *origin(document),
        "",
        *_trimmed(tables),
        "",
        *_pictures(name),
        *goals(found),
        "",
    ]


def origin(document: Document) -> Lines:
    """The command, the settings and the machine of a results file."""
    name, found = document
    where = found["environment"]
    settings = {key: value for key, value in found["settings"].items() if key != "traces"}
    kept = found.get("command", settings.pop("command", ""))
    command = f"`{kept}`" if kept else "its command was not yet kept"
    if "command_from" in found:
        command += f" (as its {found['command_from']} say: the command was not yet kept)"
    told = ", ".join(f"{key} {_setting(value)}" for key, value in settings.items())
    return [
        f"`benchmarks/{name}`: {command}; {told}.",
        f"{where['cpu']}, {where['cores']} cores, {number(where['memory_bytes'] / 1e9)} GB, load"
        f" {number(where['load_before'])} before; {where['system']}; llama-cpp-python"
        f" {where['libraries']['llama-cpp-python']}, Python {where['python']}; commit"
        f" {where['commit'][:12]}{'-dirty' * where['commit'].endswith('-dirty')},"
        f" {where['date'][:10]}.",
    ]


def _setting(value: object) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_setting, value))})"
    if isinstance(value, dict):
        return " ".join(f"{key} {_setting(one)}" for key, one in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value) or "none"


def _pictures(name: str) -> Lines:
    """In a folder of a results file's name, or beside it with that name before a dash."""
    stem = Path(name).with_suffix("")
    inside = sorted(RESULTS.glob(f"{stem}/*.png"))
    many = any(path.name == WHOLE for path in inside)
    shown = [path for path in inside if path.name == WHOLE] if many else inside
    shown = [*sorted(RESULTS.glob(f"{stem}-*.png")), *shown]
    linked = [path for path in inside if path not in shown]
    lines = [line for path in shown for line in (f"!{_link(path)}", "")]
    return [*lines, *([f"Event by event: {', '.join(map(_link, linked))}.", ""] if linked else [])]


def _link(picture: Path) -> str:
    return f"[{picture.stem}](benchmarks/{picture.relative_to(RESULTS).as_posix()})"


def goals(found: Json) -> Lines:
    """Of many, those that were met are folded up."""
    asked = [_goal(told) for told in found["goals"]]
    if len(asked) <= MANY_GOALS:
        return _goal_table(asked)
    met = [goal for goal in asked if goal.met]
    missed_ = [goal for goal in asked if not goal.met]
    return [
        *(_goal_table(missed_) if missed_ else ["No goal was missed."]),
        "",
        f"<details><summary>{len(met)} of {len(asked)} goals were met</summary>",
        "",
        *_goal_table(met),
        "",
        "</details>",
    ]


def _goal_table(asked: Iterable[Goal]) -> Lines:
    return table(
        ("goal", "asked", "measured", ""),
        ((g.name, g.asked, g.measured, "met" if g.met else "**MISSED**") for g in asked),
    )


def missed(documents: Iterable[Document]) -> Lines:
    rows = [
        (goal.name, goal.asked, goal.measured, f"`{name}`")
        for name, found in documents
        for goal in map(_goal, found.get("goals", ()))
        if not goal.met
    ]
    return table(("goal", "asked", "measured", "file"), rows) if rows else ["No goal was missed."]


def _goal(told: Json) -> Goal:
    return Goal(told["name"], told["measured"], told["wanted"], told["at_least"])


def _trimmed(lines: Sequence[str]) -> Lines:
    text = "\n".join(lines).strip("\n")
    return text.split("\n")


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; 1 if one differs.")
    ] = False,
) -> None:
    """Write the figures in docs/benchmarks.md and README.md anew."""
    documents = read()
    differs = []
    for page in (README, PAGE):
        text = page.read_text()
        if (wanted := filled(text, documents)) != text:
            differs.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(wanted)
    for name in differs:
        print(f"{name} {'differs from the results files' if check else 'is written anew'}")
    sys.exit(1 if check and differs else 0)


if __name__ == "__main__":
    typer.run(main)
