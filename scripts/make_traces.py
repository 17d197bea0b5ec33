"""Writes the traces of `scripts.bench_day` into scripts/traces. docs/traces.md has the format.

They are made for this purpose, after what agents were seen to do; none of their words are in them.
Lengths are in words, about one token each, and stay below 6,000 at `--scale 1`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts.daemon import Json
from scripts.day.trace import FOLDER

_STOP: Json = {"kind": "restart", "how": "stop"}
FRONT, TASK, QUESTION, OUTPUT = 800, 120, 40, 200
REPLY, SHORT, CALL = 48, 16, 192


def header(about: str, *, appends: bool = False) -> Json:
    return {"kind": "trace", "about": about, "appends": appends}


def turn(id_: str, session: str | None, bound: str, **fields: Any) -> Json:
    return {"kind": "turn", "id": id_, "session": session, "max_tokens": REPLY} | {
        **fields,
        "bound": bound,
    }


def system(words: int = FRONT, like: str = "front") -> Json:
    return {"role": "system", "words": words, "like": like}


def user(words: int = QUESTION) -> Json:
    return {"role": "user", "words": words}


def output(words: int = OUTPUT) -> Json:
    return {"role": "output", "words": words}


def growth() -> Iterator[Json]:
    yield header("One talk that only grows; stopped, and killed in a pause.", appends=True)
    yield turn("ask 1", "talk", "whole", say=[system(), user(TASK)])
    for number in range(2, 11):
        if number == 5:
            yield _STOP
        if number == 8:
            yield {"kind": "pause", "seconds": 4}
            yield {"kind": "restart", "how": "kill"}
        yield turn(f"ask {number}", "talk", "new", after=f"ask {number - 1}", say=[user()])


def tools() -> Iterator[Json]:
    yield header("An agent works with tools and never sends reasoning back.", appends=True)
    more: Json = {"tools": 4}
    before = ""
    for task in range(1, 4):
        name = f"task {task}"
        begins = [system(), user(TASK)] if task == 1 else [user()]
        after = {"after": before} if before else {}
        bound = "new" if before else "whole"
        yield turn(name, "work", bound, **after, say=begins, calls=True, **more | _CALLS)
        before = name
        for step in range(1, 4):
            name = f"task {task}, output {step}"
            calls = _CALLS | {"calls": True} if step < 3 else {}
            if (task, step) in ((1, 2), (3, 1)):
                yield _STOP
            yield turn(name, "work", "new", after=before, say=[output()], **more | calls)
            before = name
        if task == 2:
            yield _STOP


_CALLS: Json = {"max_tokens": CALL}


def regenerate() -> Iterator[Json]:
    yield header("The last reply is asked for again, before and after a restart.")
    yield turn("ask 1", "talk", "whole", say=[system(), user(TASK)])
    yield turn("ask 2", "talk", "new", after="ask 1", say=[user()])
    yield turn("ask 3", "talk", "new", after="ask 2", say=[user()])
    yield turn("again 3", "talk", "new", after="ask 3", back=1)
    yield turn("ask 4", "talk", "new", after="again 3", say=[user()])
    yield turn("again 4", "talk", "new", after="ask 4", back=1)
    yield _STOP
    yield turn("again 4, later", "talk", "new", after="again 4", back=1)
    yield turn("ask 5", "talk", "new", after="again 4, later", say=[user()])


def edit() -> Iterator[Json]:
    yield header("The last message is said in other words, before and after a restart.")
    yield turn("ask 1", "talk", "whole", say=[system(), user(TASK)])
    yield turn("ask 2", "talk", "new", after="ask 1", say=[user()])
    yield turn("ask 3", "talk", "new", after="ask 2", say=[user()])
    yield turn("other 3", "talk", "new", after="ask 3", back=2, say=[user()])
    yield turn("ask 4", "talk", "new", after="other 3", say=[user()])
    yield _STOP
    yield turn("other 4", "talk", "new", after="ask 4", back=2, say=[user()])
    yield turn("ask 5", "talk", "new", after="other 4", say=[user()])


def edit_back() -> Iterator[Json]:
    yield header("A message further back is said anew: what follows is given up, or kept.")
    yield turn("ask 1", "talk", "whole", say=[system(), user(TASK)])
    for number in range(2, 7):
        yield turn(f"ask {number}", "talk", "new", after=f"ask {number - 1}", say=[user()])
    yield turn("from 4 on", "talk", "new", after="ask 6", back=6, say=[user()])
    yield turn("ask 7", "talk", "new", after="from 4 on", say=[user()])
    yield _STOP
    yield turn("from 3 on", "talk", "front", after="ask 6", back=8, say=[user()])
    rewritten: Json = {"edit": {"message": -4, "words": QUESTION}}
    yield turn("in place", "talk", "user", after="ask 7", **rewritten, say=[user()])
    yield turn("ask 8", "talk", "new", after="in place", say=[user()])


def subagents() -> Iterator[Json]:
    yield header("Three sub-agents with the front of the one that sends them, at the same time.")
    front = {"tools": 4}
    yield turn("plan", "chief", "whole", say=[system(), user(TASK)], **front)
    for round_ in (1, 2):
        for number in (1, 2, 3):
            beside = {"beside": True} if number > 1 else {}
            begins: Json = {"say": [system(), user(TASK)]}
            if round_ == 2:
                begins = {"after": f"helper {number}, 1", "say": [user()]}
            name = f"helper {number}, {round_}"
            yield turn(name, f"helper {number}", "new", **begins, **front, **beside)
        results = [{"role": "user", "reply_of": f"helper {n}, {round_}"} for n in (1, 2, 3)]
        after = "plan" if round_ == 1 else "results 1"
        yield turn(f"results {round_}", "chief", "new", after=after, say=results, **front)
        if round_ == 1:
            yield _STOP


def titles() -> Iterator[Json]:
    yield header("A title is asked for beside the talk, under its name, with another front.")
    said: Json = {"role": "user", "words": TASK, "like": "ask"}
    yield turn("ask 1", "talk", "whole", say=[system(), said])
    title: Json = {"say": [system(60, "title"), said], "max_tokens": SHORT}
    yield turn("title 1", "talk", "whole", **title, beside=True)
    for number in range(2, 6):
        yield turn(f"ask {number}", "talk", "new", after=f"ask {number - 1}", say=[user()])
        if number == 3:
            yield _STOP
        if number in (3, 5):
            more: Json = {"say": [system(60, "title"), user(TASK)], "max_tokens": SHORT}
            yield turn(f"title {number}", "talk", "front", **more)


def compaction() -> Iterator[Json]:
    yield header("A summary is made beside the talk, which goes on from it with its front.")
    yield turn("ask 1", "talk", "whole", say=[system(), user(TASK)])
    for number in range(2, 7):
        yield turn(
            f"ask {number}", "talk", "new", after=f"ask {number - 1}", say=[user(3 * QUESTION)]
        )
    yield turn("summary", "talk", "new", after="ask 6", say=[user()], max_tokens=2 * REPLY)
    compact: Json = {"compact": {"summary": "summary", "keep": 2}}
    yield turn("compacted", "talk", "front", after="ask 6", **compact, say=[user()])
    yield turn("ask 7", "talk", "new", after="compacted", say=[user()])
    yield _STOP
    yield turn("ask 8", "talk", "new", after="ask 7", say=[user()])


def pruning() -> Iterator[Json]:
    yield header("Old outputs of tools are replaced by a placeholder, a few at a time.")
    more: Json = {"tools": 4}
    yield turn("task", "work", "whole", say=[system(), user(TASK)], calls=True, **more | _CALLS)
    before = "task"
    for step in range(1, 9):
        name = f"output {step}"
        # A question between two outputs: where a message of the user begins, one can go back to.
        said = [output()] if step % 2 else [output(), user()]
        prunes: Json = {"prune": {"keep": 2}} if step in (4, 7) else {}
        bound = "front" if prunes else "new"
        if step == 6:
            yield _STOP
        calls = {"calls": True}
        fields: Json = {"after": before, "say": said} | prunes | calls
        yield turn(name, "work", bound, **fields, **more | _CALLS)
        before = name


def taking_turns() -> Iterator[Json]:
    yield header("Four agents of one kind, each with its own talk, take turns.", appends=True)
    agents = ("north", "east", "south", "west")
    for round_ in range(1, 5):
        if round_ in (2, 4):
            yield _STOP
        for agent in agents:
            name, said = f"{agent} {round_}", [user()]
            if round_ == 1:
                bound = "new" if agent != agents[0] else "whole"
                yield turn(name, agent, bound, say=[system(), user(TASK)])
            else:
                yield turn(name, agent, "new", after=f"{agent} {round_ - 1}", say=said)


TRACES = {
    "growth": growth,
    "tools": tools,
    "taking-turns": taking_turns,
    "regenerate": regenerate,
    "edit": edit,
    "edit-back": edit_back,
    "subagents": subagents,
    "titles": titles,
    "compaction": compaction,
    "pruning": pruning,
}


def text_of(name: str) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in TRACES[name]())


def main(
    folder: Annotated[Path, typer.Option(help="Where they are written.")] = FOLDER,
) -> None:
    """Write all traces anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TRACES:
        (folder / f"{name}.jsonl").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
