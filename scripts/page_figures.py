"""The figures of each benchmark as Markdown: one function for each script that measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scripts.bench import name_of
from scripts.results import Json, Spread, number

Lines = list[str]
MODELS = {
    "smollm2": "SmolLM2-135M",
    "gemma3-270m": "Gemma-3-270M",
    "hybrid-0.8b": "a random hybrid of a 0.8B model's shape",
    "hybrid-tiny": "a tiny random hybrid",
    "mamba2-tiny": "a tiny random Mamba-2",
}
TURNS = {
    "cold": "cold",
    "warm_one": "the same request again",
    "resumed_one": "the same, after a kill and a restart",
    "warm_more": "20 new tokens",
    "resumed_more": "20 new tokens, after a kill and a restart",
}
GAPS = {
    "longest": "longest gap, ms",
    "median": "median gap, ms",
    "reading_ms": "the other line was read in, ms",
}
_MB, _KB = 1e6, 1e3


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Lines:
    """All columns but the first are figures."""
    marks = ["---", *["---:"] * (len(heads) - 1)]
    told = [heads, marks, *([worded(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in told]


def spread(told: Any) -> Spread:
    """As it stands in a results file, in either of its two shapes."""
    return Spread(**told) if isinstance(told, dict) else Spread(*told)


def worded(cell: object) -> str:
    if isinstance(cell, float):
        return number(cell)
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def named(model: str) -> str:
    return MODELS.get(model, name_of(model))


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def resume(found: Json) -> Lines:
    lines: Lines = []
    for model, lengths in found["results"].items():
        for length in lengths:
            cold = spread(length["cold"]["ttft_ms"]).median
            lines += [f"{named(model)}, a prompt of {length['tokens']:,} tokens:", ""]
            lines += table(
                ("turn", "tokens evaluated", "of cold", "ms to the first token", "MB read"),
                (
                    (
                        words,
                        length[turn]["evaluated"],
                        of_cold(cold, spread(length[turn]["ttft_ms"]).median),
                        spread(length[turn]["ttft_ms"]),
                        length[turn]["read_bytes"] / _MB if length[turn]["read_bytes"] else "",
                    )
                    for turn, words in TURNS.items()
                ),
            )
            lines += [""]
    return lines


def of_cold(cold: float, ms: float) -> str:
    return f"1 / {number(cold / ms)}" if ms < cold else "1"


def prefix(found: Json) -> Lines:
    lines: Lines = []
    for model, fronts in found["results"].items():
        lines += [f"{named(model)}:", ""]
        lines += table(
            ("front, tokens", "share %", "times faster", "ms without", "ms with", "of a token"),
            (
                (
                    front["tokens"],
                    100 * front["share"],
                    spread(front["speed_up"]),
                    spread(front["without"]["ttft_ms"]),
                    spread(front["reused"]["ttft_ms"]),
                    front["pace"],
                )
                for front in fronts
            ),
        )
        lines += [""]
        lines += table(
            (
                "front, tokens",
                "evaluated / own",
                "MB, first session",
                "MB, each further",
                "tokens agreed",
                "scores differ by",
                "rounding alone",
            ),
            (
                (
                    front["tokens"],
                    front["beyond"],
                    sum(front["first"].values()) / _MB,
                    sum(front["added"].values()) / _MB,
                    f"{front['hit']['agreed']} of {front['hit']['tokens']}",
                    front["hit"]["scores"],
                    front["rounding"]["scores"],
                )
                for front in fronts
            ),
        )
        lines += [""]
    return lines


def decode(found: Json) -> Lines:
    paces = found["results"]["paces"]
    bare = spread(paces["bare"]["us"]).median
    return table(
        ("loop", "rate, of the bare loop", "µs a token"),
        ((name, bare / spread(p["us"]).median, spread(p["us"])) for name, p in paces.items()),
    )


def load(found: Json) -> Lines:
    rates, ratios = found["results"]["tokens_per_s"], found["results"]["of_better"]
    lines = table(
        ("streams", "phase", "who", "of the better", "tokens a second"),
        (
            (count, phase, who, ratios[count][phase].get(who, ""), spread(rate))
            for count, phases in rates.items()
            for phase, rates_ in phases.items()
            for who, rate in rates_.items()
        ),
    )
    gaps = found["results"]["gaps"]
    lines += ["", f"While another line reads {found['settings']['long']:,} tokens:", ""]
    lines += table(
        ("model", "who", "longest gap, step budgets", *GAPS.values()),
        (
            (named(model), who, gap["budgets"], *(spread(gap[kind]) for kind in GAPS))
            for model, them in gaps.items()
            for who, gap in them.items()
        ),
    )
    return lines


def capture(found: Json) -> Lines:
    return table(
        ("model", "how", "share of the prefill %", "ms", "prefill, ms"),
        (
            (
                named(model),
                kind,
                100 * spread(one["share"]).median,
                spread(one["capture_ms"]),
                spread(one["prefill_ms"]),
            )
            for model, kinds in found["results"].items()
            for kind, one in kinds.items()
            if spread(one["share"]).median
        ),
    )


def ring(found: Json) -> Lines:
    return table(
        ("ring", "MB", "snapshots", "evaluated, mean", "worst", "of the prompt %"),
        (
            (
                part,
                level["full"] / _MB,
                level["entries"],
                level["returns_mean"],
                int(level["returns_worst"]),
                100 * level["returns_of_prompt"],
            )
            for part, level in found["results"].items()
        ),
    )


def match(found: Json) -> Lines:
    return table(
        ("messages", "tokens", "all, ms", "a rewrite, ms"),
        (
            (count, one["tokens"], spread(one["total"]), spread(one["rewrite"]))
            for count, one in found["results"].items()
        ),
    )


def attention(found: Json) -> Lines:
    return table(
        ("model", "new tokens", "flash / plain", "flash, ms", "plain, ms"),
        (
            (
                named(model),
                each["size"],
                each["ratio"],
                spread(each["flash"]),
                spread(each["plain"]),
            )
            for model, batches in found["results"].items()
            for each in batches
        ),
    )


def growth(found: Json) -> Lines:
    kinds = {
        "ledger_open": "open the ledger",
        "store_open": "open the store",
        "store_after_kill": "open the store after a kill",
        "first_list": "first list",
        "list_after_change": "list after a change",
        "command": "`sessiond list`, all of it",
        "as_json": "`sessiond list --json`",
        "put": "store a block",
        "delete": "delete a session",
        "append": "plan a turn of an old session",
        "begin": "plan the first turn of a new one",
    }
    sizes = list(found["results"].values())
    heads = [f"{one['sessions']:,} sessions, {one['blocks']:,} blocks" for one in sizes]
    return table(
        ("ms", *heads),
        (
            (
                words,
                *(spread(one[kind]) if isinstance(one[kind], list) else one[kind] for one in sizes),
            )
            for kind, words in kinds.items()
        ),
    )


def writes(found: Json) -> Lines:
    return table(
        ("model", "what", "last turns / first", "MB a turn, median", "MB more with each turn"),
        (
            (
                named(model),
                kind,
                growth["last"] / growth["first"] if growth["first"] else "",
                growth["median"] / _MB,
                growth["slope"] / _MB,
            )
            for model, one in found["results"].items()
            for kind, growth in one["growth"].items()
        ),
    )


def footprint(found: Json) -> Lines:
    results = found["results"]
    kinds = [kind for kind in results if kind != "per_parked"]
    lines = table(
        ("idle daemon", "sessions", "CPU ms a minute", "wake-ups a minute", "own MB", "disk MB"),
        (
            (
                kind,
                one["sessions"],
                60e3 * one["cpu"] / one["seconds"],
                60 * one["wakes"] / one["seconds"],
                one["memory"]["anonymous"] / _MB,
                one["disk"] / _MB,
            )
            for kind, one in ((kind, results[kind]) for kind in kinds)
        ),
    )
    return [
        *lines,
        "",
        f"Each parked session: {number(results['per_parked']['memory'] / _KB)} kB of memory,"
        f" {number(results['per_parked']['disk'] / _KB)} kB of disk.",
    ]


def durability(found: Json) -> Lines:
    names = ("kills", "acknowledged", "lost", "points", "files", "accepted", "crashes")
    proofs = found["results"]["proofs"].items()
    return table(
        ("proof", *names),
        ((proof, *(counted.get(name, "") for name in names)) for proof, counted in proofs),
    )


def memory(found: Json) -> Lines:
    models = found["results"]["models"]
    lines = table(
        ("daemon", "sessions", "own MB", "of it ring MB", "weights MB", "disk MB"),
        (
            (
                f"{named(model)}, {words}",
                one[kind]["sessions"],
                one[kind]["own"] / _MB,
                one[kind]["ring"] / _MB,
                one["weights"] / _MB,
                one[kind]["disk"] / _MB,
            )
            for model, one in models.items()
            for kind, words in (("idle", "idle"), ("resident", "in use"), ("parked", "parked"))
        ),
    )
    lines += [""]
    lines += table(
        ("each session", "tokens", "memory kB", "of it ring kB", "disk kB"),
        (
            (
                f"{named(model)}, {kind}",
                each["tokens"],
                each["own"] / _KB,
                each["ring"] / _KB,
                each["disk"] / _KB,
            )
            for model, one in models.items()
            for kind, each in (("resident", one["per_resident"]), ("parked", one["per_parked"]))
        ),
    )
    for model, one in models.items():
        if ring := one["ring"]:
            lines += [
                "",
                f"{named(model)}, a full ring: {number(ring['bytes'] / _MB)} of"
                f" {number(ring['budget'] / _MB)} MB, {ring['entries']:,} snapshots,"
                f" {number(ring['of_bytes'])} bytes of memory for each byte in it.",
            ]
    return [*lines, "", *_turns(found["results"]["growth"])]


def _turns(grown: Json) -> Lines:
    """The first look is before any turn."""
    return table(
        (
            "turns of the fake engine",
            "turns",
            "own MB",
            "kB more with each",
            "disk MB",
            "kB more with each",
            "threads",
            "files",
        ),
        (
            (
                kind,
                one["looks"][-1]["turn"],
                one["looks"][-1]["own"] / _MB,
                one["slopes"]["own"] / _KB,
                one["looks"][-1]["disk"] / _MB,
                one["slopes"]["disk"] / _KB,
                one["looks"][-1]["threads"],
                one["looks"][-1]["files"],
            )
            for kind, one in grown.items()
        ),
    )


FIGURES: dict[str, Callable[[Json], Lines]] = {
    "bench_prefix": prefix,
    "bench_resume": resume,
    "bench_load": load,
    "bench_decode": decode,
    "bench_capture": capture,
    "bench_writes": writes,
    "bench_ring": ring,
    "bench_memory": memory,
    "footprint": footprint,
    "durability": durability,
    "bench_growth": growth,
    "bench_match": match,
    "bench_attention": attention,
}
