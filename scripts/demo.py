"""`make demo`: an agent talks, the daemon is killed, and the talk goes on where it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts.bench import AsJson, run, workplace
from scripts.daemon import Answer, Daemon, DaemonFailed, Json, state_files
from scripts.fetch_models import SMOLLM2, fetch
from sessiond.cli.output import Cell, Column, print_json, print_table
from sessiond.cli.words import counted, duration

SESSION = "harbour"
SYSTEM_PROMPT = Path(__file__).with_name("agent_prompt.md")
BEFORE = (
    ("cold prefill", "The photo library has become slow. What would you look at first?"),
    ("warm turn", 'RESULT [{"mount": "/photos", "total": 4000, "used": 3910, "percent": 98}]'),
    ("warm turn", 'RESULT [{"path": "/photos/.thumbnails", "size": 612, "changed": "yesterday"}]'),
)
AFTER = ("after kill -9", "Can the thumbnails be made again if we delete them?")
WIDTH = 78
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One turn, in tokens and ms. `source` says where the state of the rest was."""

    kind: str
    prompt_tokens: int
    evaluated: int
    first_token_ms: float
    source: str


class Wrapped:
    """Writes a reply as it comes, in lines of `WIDTH` characters."""

    def __init__(self, say: Say, mark: str) -> None:
        self._say = say
        self._column = 0
        self._word = ""
        self._put(mark)

    def hear(self, text: str) -> None:
        for character in text:
            if character.isspace():
                self._end_word()
            else:
                self._word += character

    def close(self) -> None:
        self._end_word()
        self._say("\n")

    def _end_word(self) -> None:
        if self._column + 1 + len(self._word) > WIDTH:
            self._say("\n")
            self._column = 0
            self._put("    ")
        if self._word:
            self._put(f" {self._word}")
        self._word = ""

    def _put(self, text: str) -> None:
        self._say(text)
        self._column += len(text)


class Agent:
    """A scripted agent: it sends its whole conversation every turn, as agents do."""

    def __init__(self, daemon: Daemon, say: Say, max_tokens: int) -> None:
        self._daemon = daemon
        self._say = say
        self._body: dict[str, Any] = {"temperature": 0.4, "seed": 7}
        self._body["max_tokens"] = max_tokens
        prompt = SYSTEM_PROMPT.read_text(encoding="utf-8")
        self._messages: list[Json] = [{"role": "system", "content": prompt}]

    def turn(self, kind: str, text: str) -> Row:
        self._messages.append({"role": "user", "content": text})
        asked = Wrapped(self._say, "  >")
        asked.hear(text)
        asked.close()
        answer = self._listen()
        self._messages.append({"role": "assistant", "content": answer.text})
        return Row(
            kind, answer.prompt_tokens, answer.evaluated, answer.ttft_ms, answer.report["source"]
        )

    def _listen(self) -> Answer:
        reply = Wrapped(self._say, "  <")
        answer = self._daemon.chat(SESSION, self._messages, reply.hear, **self._body)
        reply.close()
        self._say("\n")
        return answer


def play(daemon: Daemon, max_tokens: int, say: Say) -> list[Row]:
    """The whole play. Raises DaemonFailed."""
    with daemon:
        say(f"sessiond serves {daemon.model.stem} on {daemon.url}, process {daemon.pid}.\n\n")
        agent = Agent(daemon, say, max_tokens)
        rows = [agent.turn(kind, text) for kind, text in BEFORE]
        say("Nothing to do: the daemon now saves the state (it waits a second, and promises 30).\n")
        daemon.wait_until_saved()
        files = state_files(daemon.state)
        megabytes = sum(path.stat().st_size for path in files) / 1e6
        say(f"On disk: {megabytes:.0f} MB in {counted(len(files), 'file')}.\n")
        say(f"kill -9 {daemon.pid}. All that was in its memory is gone.\n")
        daemon.kill()
        seconds = daemon.start()
        say(f"Started again, ready after {seconds:.1f} s. The agent has noticed nothing:\n\n")
        rows.append(agent.turn(*AFTER))
    return rows


def show(rows: Sequence[Row]) -> None:
    columns = (
        Column("TURN"),
        *(Column(title, right=True) for title in ("PROMPT", "EVALUATED", "FIRST TOKEN")),
        Column("STATE FROM"),
    )
    words = {"new": "nowhere, all is new", "resident": "memory", "disk": "disk"}
    cells = [
        (
            row.kind,
            counted(row.prompt_tokens, "token"),
            f"{row.evaluated:,}",
            duration(row.first_token_ms),
            words.get(row.source, row.source),
        )
        for row in rows
    ]
    print_table(columns, [[Cell(text) for text in row] for row in cells])


def verdict(rows: Sequence[Row]) -> str:
    """Raises DaemonFailed where the state did not come back from disk."""
    cold, after = rows[0], rows[-1]
    if after.source != "disk":
        raise DaemonFailed(f"After the restart the state came from: {after.source}.")
    times = cold.first_token_ms / after.first_token_ms
    return f"The turn after the kill answered {times:.0f} times sooner than the cold one."


def main(
    model: Annotated[
        Path | None, typer.Option(help="A GGUF. Not said: the embedded one.", exists=True)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each reply.", min=1)] = 40,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    as_json: AsJson = False,
) -> None:
    """An agent talks to a daemon, the daemon is killed with kill -9, and the talk goes on."""
    stream = sys.stderr if as_json else sys.stdout

    def say(text: str) -> None:
        stream.write(text)
        stream.flush()

    with workplace() as folder:
        options = ("--model-threads", str(threads))
        rows = play(Daemon(model or fetch(SMOLLM2), folder / "state", options), max_tokens, say)
    said = verdict(rows)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    show(rows)
    print(f"\n{said}")


if __name__ == "__main__":
    run(main)
