"""What a session is called in a list: its agent's own title for it, else its first words. Pure."""

from __future__ import annotations

import json
import re

from sessiond.sessions.echo import visible
from sessiond.sessions.transcript import Chat, Content, Text

LONGEST = 60
_ASKS = re.compile(r"\btitles?\b", re.IGNORECASE)
_HEAD = 2_000
"""Characters of a message in which the task is said."""
_TASK = "### Task"
_AROUND = " \t\"'`*#“”«»"
_ANNOUNCED = re.compile(r"(?:thread |chat |session )?title\s*:\s*", re.IGNORECASE)
_TAGGED = re.compile(r"\s*<([a-zA-Z][\w-]{0,63})>.*?</\1>", re.DOTALL)
"""What agents put before what a person said: the date, a folder, reminders."""


def asks_for_title(content: Content) -> bool:
    """A side request that agents make beside a conversation, under the same session."""
    if not isinstance(content, Chat) or content.tools:
        return False
    told = [m.content[:_HEAD] for m in content.messages if m.role == "system"]
    asked = [m.content[:_HEAD] for m in content.messages if m.content.startswith(_TASK)]
    return any(_ASKS.search(text) for text in (*told, *asked))


def title_in(reply: str) -> str:
    """The title in a reply to such a request; "" where there is none: it is no short line."""
    text = visible(reply).text.strip().removeprefix("```json").strip("` \n")
    lines = [_bare(_of_json(text) or line) for line in text.splitlines()[:1]]
    return "".join(line for line in lines if len(line) <= 2 * LONGEST)[:LONGEST]


def first_words(content: Content) -> str:
    """Of the first user message that says anything, or of the prompt: one line."""
    words = " ".join(_words(content).split())
    words = "".join(c for c in words if c.isprintable())
    if len(words) <= LONGEST:
        return words
    cut = words[: LONGEST - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"


def _words(content: Content) -> str:
    if isinstance(content, Text):
        return content.prompt
    said = [m.content for m in content.messages if m.role == "user"]
    return next((own for text in said if (own := _own(text))), said[0] if said else "")


def _own(text: str) -> str:
    """Without what stands before it in tags."""
    end = 0
    while found := _TAGGED.match(text, end):
        end = found.end()
    return text[end:].strip()


def _of_json(text: str) -> str | None:
    """Some clients ask for an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    title = value.get("title") if isinstance(value, dict) else None
    return title if isinstance(title, str) else None


def _bare(line: str) -> str:
    line = _ANNOUNCED.sub("", line.strip(_AROUND), count=1).strip(_AROUND)
    return "".join(c for c in " ".join(line.split()) if c.isprintable())
