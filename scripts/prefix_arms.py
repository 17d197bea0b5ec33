"""Two daemons for prompts with a common front: one forgets each prompt, one still has the front.

Both have the same model and the same settings, and are asked the very same prompts. After each
answer its session is deleted, from memory and from the disk. `Without` deletes all of them: every
prompt is evaluated from its first token, in a context that is empty. `With` keeps one session,
which began with the same front and stays in the context.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench import words
from scripts.daemon import Daemon, DaemonFailed, Json, state_files

FIRST = "first"
SHORTEST, LONGEST = 20, 50
"""Tokens of what each prompt says for itself."""
LIKELIEST = 20
"""Tokens whose scores are compared: what the API tells at most."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system prompt that others have too, and a user message that no other has."""

    front: str
    said: str

    @property
    def messages(self) -> list[Json]:
        return [
            {"role": "system", "content": self.front},
            {"role": "user", "content": self.said},
        ]


@dataclass(frozen=True, slots=True)
class Shot:
    """One prompt and its reply. Tokens, and milliseconds as the client saw them.

    `token_ms` is the time of one token of the reply, after the first.
    """

    prompt: int
    evaluated: int
    ttft_ms: float
    token_ms: float
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of a reply, with the log probability of each of the likeliest in its place."""

    token: bytes
    likeliest: dict[bytes, float]


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of state on disk, which is the state as it is in memory and a few hundred bytes a file."""

    blocks: int
    snapshots: int

    @property
    def all(self) -> int:
        return self.blocks + self.snapshots

    def __sub__(self, other: Bytes) -> Bytes:
        return Bytes(self.blocks - other.blocks, self.snapshots - other.snapshots)


def prompts(words_of_front: int, count: int, seed: str = "") -> list[Prompt]:
    """`count` prompts with the same front; their own words are of all lengths allowed."""
    front = words(words_of_front, f"front {words_of_front}{seed}").strip()
    draw = random.Random(f"{words_of_front} {seed}")
    sizes = [draw.randint(SHORTEST, LONGEST) for _ in range(count)]
    own = (words(size, f"own {words_of_front} {n}{seed}") for n, size in enumerate(sizes))
    return [Prompt(front, text.strip()) for text in own]


class Arm:
    """A daemon that is asked one prompt after the other, each in a session of its own."""

    def __init__(self, daemon: Daemon, reply: int) -> None:
        self._daemon = daemon
        self._body: dict[str, Any] = {"temperature": 0, "max_tokens": reply, "ignore_eos": True}
        self._asked = 0

    def shot(self, prompt: Prompt) -> Shot:
        name = self._new_name()
        shot = self._shot(name, prompt)
        self._forget(name)
        self._check(shot.prompt, shot.evaluated)
        return shot

    def scores(self, prompt: Prompt) -> list[Scored]:
        """The reply once more, token by token, with what the model thought of others."""
        name = self._new_name()
        body = {**self._body, "messages": prompt.messages}
        body |= {"logprobs": True, "top_logprobs": LIKELIEST}
        answer = self._daemon.http.post(f"/s/{name}/v1/chat/completions", json=body)
        if answer.is_error:
            raise DaemonFailed(f"{name}: {answer.status_code} {answer.text}")
        self._forget(name)
        found = answer.json()
        self._check(found["usage"]["prompt_tokens"], found["sessiond"]["prefilled_tokens"])
        return [_scored(one) for one in found["choices"][0]["logprobs"]["content"]]

    def tokens(self, prompt: Prompt) -> list[int]:
        """Of the whole prompt, as the template makes it."""
        http = self._daemon.http
        made = http.post("/apply-template", json={"messages": prompt.messages}).raise_for_status()
        body = {"content": made.json()["prompt"], "add_special": True}
        answer = http.post("/tokenize", json=body).raise_for_status()
        found: list[int] = answer.json()["tokens"]
        return found

    def _check(self, prompt: int, evaluated: int) -> None:
        """Raises DaemonFailed where that is not what this arm is for."""

    def _new_name(self) -> str:
        self._asked += 1
        return f"prompt-{self._asked}"

    def _shot(self, name: str, prompt: Prompt) -> Shot:
        answer = self._daemon.chat(name, prompt.messages, **self._body)
        later = max(int(answer.usage["completion_tokens"]) - 1, 1)
        return Shot(
            prompt=answer.prompt_tokens,
            evaluated=answer.evaluated,
            ttft_ms=answer.ttft_ms,
            token_ms=(answer.total_ms - answer.ttft_ms) / later,
            source=answer.report["source"],
            text=answer.text,
        )

    def _forget(self, name: str) -> None:
        """As soon as its turn has ended: nothing of it is left to be reused, or to be saved."""
        path = f"/v1/sessions/{name}"
        while (answer := self._daemon.http.delete(path)).status_code == 409:
            time.sleep(_POLL_S)
        if answer.status_code not in (204, 404):
            raise DaemonFailed(f"{name} could not be deleted: {answer.text}")


class Without(Arm):
    """Raises DaemonFailed when a prompt was not evaluated from its first token."""

    def _check(self, prompt: int, evaluated: int) -> None:
        if evaluated != prompt:
            raise DaemonFailed(f"Without reuse {evaluated} of {prompt} tokens were evaluated.")


class With(Arm):
    """Knows the front that it was told last. All is saved when nothing was for `quiet` seconds."""

    def __init__(self, daemon: Daemon, reply: int, quiet: float) -> None:
        super().__init__(daemon, reply)
        self._quiet = quiet

    def learn(self, prompt: Prompt) -> Bytes:
        """Forgets the front before; the first session with this one stays. Says what it takes."""
        self._forget(FIRST)
        before = self._stored()
        self._saved(FIRST, prompt)
        return self._stored() - before

    def added(self, prompt: Prompt) -> Bytes:
        """What one more session with the front takes beside the first."""
        before, name = self._stored(), self._new_name()
        self._saved(name, prompt)
        added = self._stored() - before
        self._forget(name)
        return added

    def _saved(self, name: str, prompt: Prompt) -> None:
        before = self._daemon.metric("sessiond_save_bytes_total")
        self._shot(name, prompt)
        self._daemon.wait_until_saved(self._quiet, more_than=before)

    def _stored(self) -> Bytes:
        files = state_files(self._daemon.state)
        sizes = {path: path.stat().st_size for path in files}
        snapshots = {path for path in files if path.parent.parent.name == "snapshots"}
        return Bytes(
            blocks=sum(size for path, size in sizes.items() if path not in snapshots),
            snapshots=sum(size for path, size in sizes.items() if path in snapshots),
        )


@dataclass(frozen=True, slots=True)
class Likeness:
    """`agreed` of `tokens` are the same, drawn greedily, before the first that is not.

    `scores` is the largest difference of the log probabilities of one token in one place, and
    `probability` that of the probabilities themselves.
    """

    tokens: int
    agreed: int
    scores: float
    probability: float


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Items that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def likeness(one: Sequence[Scored], other: Sequence[Scored]) -> Likeness:
    """Of two replies to the same prompt, as far as they agree.

    The place of the first token that differs still counts: what was drawn before it is the same.
    """
    agreed = common([each.token for each in one], [each.token for each in other])
    scores = [
        (a.likeliest[token], b.likeliest[token])
        for a, b in zip(one[: agreed + 1], other[: agreed + 1], strict=True)
        for token in a.likeliest.keys() & b.likeliest.keys()
    ]
    return Likeness(
        tokens=len(one),
        agreed=agreed,
        scores=max((abs(a - b) for a, b in scores), default=0.0),
        probability=max((abs(math.exp(a) - math.exp(b)) for a, b in scores), default=0.0),
    )


def daemon_of(
    model: Path, folder: Path, name: str, options: Sequence[str], template: Path | None
) -> Daemon:
    more = ("--model-chat-template-file", str(template)) if template else ()
    return Daemon(model, folder / name, (*options, *more))


def _scored(told: Json) -> Scored:
    top = told["top_logprobs"]
    return Scored(bytes(told["bytes"]), {bytes(each["bytes"]): each["logprob"] for each in top})
