"""What the daemon tells of an agent's session: for each request, which tokens were new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from scripts.agents.agent import AgentFailed
from scripts.daemon import Daemon, Json

LAST_TOKEN = 1
"""A reply that was cut ends with a token that has been drawn and not yet evaluated."""


@dataclass(frozen=True, slots=True)
class Request:
    """One of the main line, in tokens. `question` counts from 1.

    `new` is what the prompt has beyond the prompt and the reply before it. `brought` are the roles
    of the new messages.
    """

    agent: str
    version: str
    question: int
    brought: str
    prompt: int
    new: int
    evaluated: int
    source: str
    miss: str | None

    @property
    def is_new_only(self) -> bool:
        return self.evaluated <= self.new + LAST_TOKEN


@dataclass(frozen=True, slots=True)
class Aside:
    """Requests beside the main line: titles, memories. `evaluated` in tokens."""

    agent: str
    requests: int
    evaluated: int


@dataclass(frozen=True, slots=True)
class Finding:
    """`lost` are the questions that the main line does not have: it began anew after them."""

    session: str
    requests: tuple[Request, ...]
    aside: Aside
    lost: tuple[int, ...]

    @property
    def holds(self) -> bool:
        later = [request for request in self.requests if request.question > 1]
        return bool(later) and not self.lost and all(request.is_new_only for request in later)


def find(daemon: Daemon, agent: str, version: str, questions: Sequence[str]) -> Finding:
    """The session that has the talk, and what each of its requests took. Raises AgentFailed."""
    sessions = _get(daemon, "/v1/sessions")["sessions"]
    turns = {one["name"]: _of(daemon, one["name"], "turns")["turns"] for one in sessions}
    if not turns:
        raise AgentFailed(f"{agent} has sent nothing.")
    name = max(turns, key=lambda one: len(list(_main(turns[one]))))
    asked = _asked(_of(daemon, name, "transcript")["messages"], questions)
    line = tuple(_requests(agent, version, list(_main(turns[name])), asked))
    total = sum(len(own) for own in turns.values())
    evaluated = sum(turn["prefilled_tokens"] for own in turns.values() for turn in own)
    aside = Aside(agent, total - len(line), evaluated - sum(one.evaluated for one in line))
    found = {request.question for request in line}
    lost = tuple(number for number in range(1, len(questions) + 1) if number not in found)
    return Finding(name, line, aside, lost)


def explained(daemon: Daemon, finding: Finding) -> Json:
    """What the daemon can say of the last rewrites and misses of the session."""
    return _of(daemon, finding.session, "explain")


def _main(turns: Sequence[Json]) -> Iterator[Json]:
    return (turn for turn in turns if turn["line"] == "main")


def _asked(messages: Sequence[Json], questions: Sequence[str]) -> Mapping[int, int]:
    """The number of the question that a turn brings, of those turns that bring one."""
    return {
        message["turn"]: number
        for number, question in enumerate(questions, 1)
        for message in messages
        if message["role"] == "user" and question in message["content"]
    }


def _requests(
    agent: str, version: str, line: Sequence[Json], asked: Mapping[int, int]
) -> Iterator[Request]:
    question, before = 0, 0
    for turn in line:
        question = asked.get(turn["turn"], question)
        yield Request(
            agent=agent,
            version=version,
            question=question,
            brought=", ".join(turn["role_of_new"]),
            prompt=turn["prompt_tokens"],
            new=turn["prompt_tokens"] - before,
            evaluated=turn["prefilled_tokens"],
            source=turn["source"],
            miss=turn["miss"]["message"] if turn["miss"] else None,
        )
        before = turn["prompt_tokens"] + turn["completion_tokens"]


def _of(daemon: Daemon, name: str, what: str) -> Json:
    return _get(daemon, f"/v1/sessions/{quote(name, safe='')}/{what}")


def _get(daemon: Daemon, path: str) -> Json:
    answer: Json = daemon.http.get(path).raise_for_status().json()
    return answer
