"""How a call is written, so that a grammar can have a model write one."""

from __future__ import annotations

from dataclasses import dataclass

_NAME = "{name}"


@dataclass(frozen=True, slots=True)
class JsonCall:
    """`before`, with the tool's name for {name}, then the arguments as one JSON object, `after`."""

    before: str
    after: str

    def begin(self, name: str) -> str:
        return self.before.replace(_NAME, name)


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """Every parameter is text between tags of its own: a string as it is, other values as JSON.

    A string may hold anything but `parameter_after`. Parameters stand one behind the other.
    """

    before: str
    parameter_before: str
    parameter_after: str
    after: str

    def begin(self, name: str) -> str:
        return self.before.replace(_NAME, name)

    def begin_parameter(self, name: str) -> str:
        return self.parameter_before.replace(_NAME, name)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A reply that is calls: `start`, the calls with `between` between them, `end`.

    `many`: the family writes more than one call into a reply. With parallel calls off, or a family
    that does not, it is one.
    """

    call: JsonCall | TaggedCall
    start: str = ""
    between: str = ""
    end: str = ""
    many: bool = True


HERMES = Spelling(
    JsonCall('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>"), between="\n"
)
