"""What the proof has to know of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class AgentFailed(Exception):
    """An agent could not be installed or did not answer; the message says what it said."""


@dataclass(frozen=True, slots=True)
class Agent:
    """`package` is its name at npm, `program` what it installs.

    `begin` and `go_on` are the arguments of the first and of every further question, which comes
    last. With `spoken` one process is asked all of them, a line of JSON each. `call` are the pieces
    of a call that does no harm, for the model to say. `file` is where its settings lie in its home;
    settings that are variables have none. `quiet` are variables that keep it from the network.
    """

    name: str
    package: str
    program: str
    call: tuple[str, ...]
    begin: tuple[str, ...]
    go_on: tuple[str, ...] = ()
    file: str | None = None
    quiet: Mapping[str, str] = field(default_factory=dict)
    spoken: bool = False

    def arguments(self, number: int, question: str, model: str) -> list[str]:
        """Of question `number`, counted from 0."""
        chosen = self.go_on if number else self.begin
        filled = [argument.replace("{model}", model) for argument in chosen]
        return filled if self.spoken else [*filled, question]


def call(tool: str, arguments: str) -> tuple[str, ...]:
    """A call as Hermes and Qwen write it, in pieces that are all different."""
    return (
        "<tool_call>",
        f'\n{{"name": "{tool}"',
        ', "arguments": ',
        arguments,
        "}\n",
        "</tool_call>",
    )
