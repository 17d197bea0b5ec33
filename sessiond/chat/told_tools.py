"""Tools for models whose template says nothing of them: the system prompt tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sessiond.sessions.transcript import Message

HEADING = """\
You can call these tools. To call one, write its name and its arguments like this, and nothing else:
<tool_call>
{"name": "the name", "arguments": {"the parameter": "its value"}}
</tool_call>
"""


def tells_of_tools(template: str) -> bool:
    return "tools" in template


def with_tools(messages: tuple[Message, ...], tools: Sequence[str]) -> tuple[Message, ...]:
    """`tools` are JSON definitions; they stand at the end of the first system message."""
    told = HEADING + "\n".join(tools)
    if messages and messages[0].role == "system":
        first, *others = messages
        content = f"{first.content}\n\n{told}" if first.content else told
        return (replace(first, content=content), *others)
    return (Message("system", told), *messages)
