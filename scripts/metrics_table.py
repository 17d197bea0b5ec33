"""Writes the table of docs/metrics.md anew, from the registry: python -m scripts.metrics_table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from sessiond import metrics

PAGE = Path(__file__).resolve().parent.parent / "docs/metrics.md"
BEGIN, END = "<!-- begin: python -m scripts.metrics_table -->", "<!-- end -->"


def known() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Name as it is exported, type, labels and meaning of each metric, by name."""
    found = [each for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    families = [(next(iter(each.describe())), each) for each in found]
    for family, metric in sorted(families, key=lambda pair: pair[0].name):
        suffix = "_total" if family.type == "counter" else ""
        yield f"{family.name}{suffix}", family.type, metric._labelnames, family.documentation


def table() -> str:
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, kind, labels, meaning in known():
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {kind} | {shown} | {meaning} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """`text` with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
