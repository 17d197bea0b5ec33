"""Where messages begin in a turn's prompt: the tree knows for old turns, the renderer for new ones.

A turn that goes on from its parent's last token begins where the parent's reply ends. That is the
last token boundary before its first message, whatever a template would make of the history now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sessiond.engine.memory import Tokens
from sessiond.sessions.composition import Composition
from sessiond.sessions.difference import spared
from sessiond.sessions.prompt import LAST_USERS, Boundaries, PromptRenderer
from sessiond.sessions.transcript import Chat, Content
from sessiond.sessions.tree import SessionTree, Turn

_NONE = Boundaries()


def boundaries_of(
    content: Content,
    composed: Composition,
    tree: SessionTree,
    renderer: PromptRenderer,
    now: datetime,
    landing: int = 0,
    marked: Sequence[int] = (),
) -> Boundaries:
    """Of the prompt that `content`, the whole request, was composed to.

    Those at or before `landing` may be left out: they are not captured again. A raw prompt has
    none. `marked` are numbers of messages in the request. Takes as long as rendering the request
    once or twice, and longer for a long prompt that lands near its beginning. Any thread may call
    this while the tree stands still.
    """
    if not isinstance(content, Chat) or not isinstance(composed.content, Chat):
        return _NONE
    if composed.kept != tree.length(composed.parent):
        return renderer.boundaries(content, composed.prompt, 0, now, marked)
    matched = len(content.messages) - len(composed.content.messages)
    new = renderer.boundaries(content, composed.prompt, matched, now, marked)
    if composed.parent is None:
        return new
    return _joined(line_boundaries(composed.parent, tree, renderer, now, landing), new)


def next_rewrite(content: Content, leaf: int, tree: SessionTree) -> tuple[int, ...]:
    """The message at which the next rewrite begins that is like the one of the line up to `leaf`,
    if that can be told.
    """
    known = tree.conversation(leaf)
    if not isinstance(content, Chat) or not isinstance(known, Chat):
        return ()
    found = spared(known.messages, content.messages)
    return () if found is None else (found,)


def line_boundaries(
    turn: int, tree: SessionTree, renderer: PromptRenderer, now: datetime, landing: int = 0
) -> Boundaries:
    """Of the path tokens up to `turn`, as `boundaries_of`."""
    starts: list[int] = []
    for step in reversed(tree.path(turn)):
        if step.kept + len(step.prompt_tokens) <= landing:
            break
        if step.parent is None or step.kept != tree.length(step.parent):
            rendered = _rendered_whole(step, tree, renderer, now)
            return _joined(rendered, Boundaries(None, tuple(starts[::-1])))
        if "user" in step.roles:
            starts.append(step.kept)
    return Boundaries(None, tuple(starts[:LAST_USERS][::-1]))


def _rendered_whole(
    turn: Turn, tree: SessionTree, renderer: PromptRenderer, now: datetime
) -> Boundaries:
    """Of a turn whose prompt does not go on from its parent's tokens."""
    conversation = tree.conversation(turn.number)
    if not isinstance(conversation, Chat):
        return _NONE
    asked = replace(conversation, messages=conversation.messages[:-1])
    return renderer.boundaries(asked, _asked_tokens(turn, tree), 0, now)


def _asked_tokens(turn: Turn, tree: SessionTree) -> Tokens:
    path = tree.path_tokens(turn.number)
    return path[: len(path) - len(turn.reply_tokens)]


def _joined(old: Boundaries, new: Boundaries) -> Boundaries:
    front = old.front if new.front is None else new.front
    return Boundaries(front, (*old.users, *new.users)[-LAST_USERS:], new.marked)
