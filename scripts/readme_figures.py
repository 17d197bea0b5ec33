"""README's figures: what someone decides by, from the results files, ratios first.

A benchmark that has no results file yet is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scripts.day_figures import Document, readme_tables, sentences
from scripts.page_figures import TURNS, Lines, capital, named, of_cold, spread, table, worded
from scripts.results import Json, number

RESUME_AT = 4_096


def readme(documents: Sequence[Document]) -> Lines:
    """The day against other servers, turns of each model, one sentence for each other benchmark."""
    lines = readme_tables(documents)
    lines += [line for document in documents for line in _resume(*document)]
    said = [
        f"- {sentence} (`{name}`)."
        for script, word in SENTENCES.items()
        for name, found in documents
        if found.get("script") == script
        for sentence in word(found)
    ]
    return [*lines, *said]


def _resume(name: str, found: Json) -> Lines:
    if found.get("script") != "bench_resume":
        return []
    lines: Lines = []
    for model, lengths in found["results"].items():
        for length in lengths:
            if length["tokens"] != RESUME_AT:
                continue
            cold = spread(length["cold"]["ttft_ms"]).median
            title = f"{capital(named(model))}, a prompt of {RESUME_AT:,} tokens"
            lines += [f"{title} (`{name}`, {found['environment']['cpu']}):", ""]
            lines += table(
                ("", "time to the first token, of cold", "tokens evaluated", "ms"),
                (
                    (
                        words,
                        of_cold(cold, spread(length[turn]["ttft_ms"]).median),
                        length[turn]["evaluated"],
                        spread(length[turn]["ttft_ms"]).median,
                    )
                    for turn, words in TURNS.items()
                ),
            )
            lines += [""]
    return lines


def _prefix(found: Json) -> Lines:
    said: Lines = []
    for model, fronts in found["results"].items():
        last = fronts[-1]
        said.append(
            f"A front of {last['tokens']:,} tokens that another session had before, {named(model)}:"
            f" the first token comes {worded(spread(last['speed_up']))} times sooner, each"
            f" further token takes {number(last['pace'])} of the time, each further session"
            f" {number(_share(last))} of the bytes of the first"
        )
    return said


def _share(front: Json) -> float:
    return float(sum(front["added"].values()) / sum(front["first"].values()))


def _capture(found: Json) -> Lines:
    shares = {
        named(model): 100 * spread(kinds["capture"]["share"]).median
        for model, kinds in found["results"].items()
    }
    each = ", ".join(f"{number(share)} % on {model}" for model, share in shares.items())
    tokens = found["settings"]["tokens"]
    return [f"Keeping state to go back to takes, of a prefill of {tokens:,} tokens, {each}"]


def _writes(found: Json) -> Lines:
    ratios = {
        named(model): one["growth"]["store"]["last"] / one["growth"]["store"]["first"]
        for model, one in found["results"].items()
    }
    each = ", ".join(f"{number(ratio)} on {model}" for model, ratio in ratios.items())
    turns = found["settings"]["turns"]
    return [f"Bytes written by a turn, the last of {turns} over the first: {each}"]


def _load(found: Json) -> Lines:
    ratios = found["results"]["of_better"]
    ends = {
        (phase, who): [phases[phase][who] for phases in ratios.values()]
        for phase in ("prefill", "decode")
        for who in ("engine", "daemon")
    }
    told = {key: f"{number(min(each))} to {number(max(each))}" for key, each in ends.items()}
    *few, most = ratios
    counts = f"{', '.join(few)} and {most}" if few else most
    return [
        f"{counts} streams together, of what a bare llama.cpp loop does: the engine reads"
        f" {told['prefill', 'engine']} and decodes {told['decode', 'engine']}; over HTTP, with"
        f" client and daemon on the same {found['environment']['cores']} cores,"
        f" {told['prefill', 'daemon']} and {told['decode', 'daemon']}",
        *_gaps(found),
    ]


def _gaps(found: Json) -> Lines:
    long = found["settings"]["long"]
    return [
        f"The longest wait for a token while another line reads {long:,} tokens, {named(model)}:"
        f" {number(them['daemon']['budgets'])} step budgets of"
        f" {found['settings']['step_budget_ms']:.0f} ms"
        for model, them in found["results"]["gaps"].items()
        if model == found["settings"]["model"]
    ]


def _ring(found: Json) -> Lines:
    whole, quarter = found["results"]["all"], found["results"]["1/4"]
    return [
        f"{found['settings']['sessions']} sessions of {found['settings']['turns']} turns: going"
        f" back to an earlier one evaluates {number(whole['returns_mean'])} tokens, and"
        f" {number(quarter['returns_mean'])} with a quarter of the memory for that"
    ]


def _growth(found: Json) -> Lines:
    most = max(found["results"].values(), key=lambda one: one["sessions"])
    start, killed = (
        most["ledger_open"] + most[kind] for kind in ("store_open", "store_after_kill")
    )
    turns = [spread(most[kind]).median for kind in ("append", "begin", "strange")]
    return [
        f"{most['sessions']:,} sessions and {most['blocks']:,} blocks: `sessiond list` takes"
        f" {number(most['command'])} ms, start-up without the model {number(start)} ms"
        f" ({number(killed)} after a kill), planning a turn {number(min(turns))} to"
        f" {number(max(turns))} ms"
    ]


def _attention(found: Json) -> Lines:
    """Where the two differ most."""
    said: Lines = []
    for model, batches in found["results"].items():
        most = max(batches, key=lambda each: each["ratio"])
        said.append(
            f"llama.cpp's flash attention on this CPU, {named(model)}: a turn of {most['size']} new"
            f" tokens takes {number(most['ratio'])} times as long as without it"
            " (`model.flash_attn = false`)"
        )
    return said


def _memory(found: Json) -> Lines:
    each = {named(name): one["per_parked"] for name, one in found["results"]["models"].items()}
    told = ", ".join(
        f"{number(one['own'] / 1e3)} kB and {number(one['disk'] / 1e6)} MB of disk on {model}"
        for model, one in each.items()
    )
    tokens = next(iter(each.values()))["tokens"]
    return [f"A parked session of {tokens:.0f} tokens takes memory of {told}"]


def _footprint(found: Json) -> Lines:
    busy = found["results"]["resident"]
    minute = 60 / busy["seconds"]
    return [
        f"An idle daemon with {busy['sessions']} sessions in the context uses"
        f" {number(1e3 * busy['cpu'] * minute)} ms of a processor in a minute and wakes up"
        f" {number(busy['wakes'] * minute)} times"
    ]


SENTENCES: dict[str, Callable[[Json], Lines]] = {
    "bench_prefix": _prefix,
    "bench_day": sentences,
    "bench_capture": _capture,
    "bench_writes": _writes,
    "bench_ring": _ring,
    "bench_load": _load,
    "bench_attention": _attention,
    "bench_growth": _growth,
    "bench_memory": _memory,
    "footprint": _footprint,
}
