"""From a request to the tokens of its prompt: the ledger's for what is known, else new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from sessiond.engine.memory import Tokens, as_tokens, common_prefix
from sessiond.sessions.echo import seen_until, without_reasoning
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.transcript import Chat, Content, Message, Text
from sessiond.sessions.tree import Echo, Match, SessionTree, Turn

_NOTHING = as_tokens([])


@dataclass(frozen=True, slots=True)
class Composition:
    """`prompt` is the parent's path up to `kept` and then the turn's own tokens.

    `content` is what is new. `known` are the tokens that were evaluated before for the same words,
    for saying what was lost; `known_turn` brought them. There are none of another vocabulary.
    `goes_back`: the line was gone on with before. `match` is where the request was found.
    """

    match: Match
    kept: int
    prompt: Tokens
    content: Content
    known: Tokens
    known_turn: Turn | None
    goes_back: bool = False

    @property
    def parent(self) -> int | None:
        return self.match.turn

    @property
    def own_tokens(self) -> Tokens:
        """In memory of their own: a turn stays, and must not keep its whole prompt."""
        return self.prompt[self.kept :].copy()


@dataclass(frozen=True, slots=True)
class Composer:
    """What prompts are made with. `now` is the session's frozen clock.

    `reasoning`: "keep" appends to what is known, "template" lets the template drop the reasoning
    of earlier replies when the user speaks again.
    """

    renderer: PromptRenderer
    tokenizer: str
    now: datetime
    reasoning: str = "keep"

    def compose(self, content: Content, tree: SessionTree) -> Composition:
        """Raises TemplateError."""
        match = tree.match(content)
        new = match.rest(content)
        twin = tree.twin(match, content)
        if twin is not None and _notes(twin.content) != _notes(new):
            twin = None
        again = _path_tokens(tree, twin.number, self.tokenizer) if twin is not None else None
        if twin is not None and again is not None:
            prompt = again[: len(again) - len(twin.reply_tokens)]
            return Composition(match, twin.kept, prompt, new, again, twin, goes_back=True)
        base = _path_tokens(tree, match.turn, self.tokenizer)
        start = self._start(content, match, tree, base)
        prompt = self._extended(content, start)
        kept = common_prefix(prompt, base) if base is not None else 0
        goes_back = match.turn is not None and match.turn not in tree.leaves()
        return Composition(
            match, kept, prompt, new, start.known, start.turn, goes_back or start.cut
        )

    def _start(
        self, content: Content, match: Match, tree: SessionTree, base: Tokens | None
    ) -> _Start:
        """What the prompt is appended to."""
        turn = None if match.turn is None else tree[match.turn]
        known = _NOTHING if base is None else base
        start = _Start(base, match.matched_messages + match.matched_characters, known, turn)
        if isinstance(content, Text) or base is None:
            return start
        if match.echo is not None:
            return self._of_echo(content, match.echo, tree) or start
        if self.reasoning == "template" and match.turn is not None:
            return self._before_reasoning(content, match, tree, start)
        return start

    def _of_echo(self, content: Chat, echo: Echo, tree: SessionTree) -> _Start | None:
        """Up to where the client has seen the reply."""
        turn, known = tree[echo.turn], _path_tokens(tree, echo.turn, self.tokenizer)
        if known is None:
            return None
        end = seen_until(turn.reply, content.messages[echo.message].content) or 0
        kept, rest = self.renderer.cut(turn.reply_tokens, end)
        whole = known[: len(known) - len(turn.reply_tokens) + kept]
        return _Start(whole, echo.message + 1, known, turn, rest, cut=True)

    def _before_reasoning(
        self, content: Chat, match: Match, tree: SessionTree, start: _Start
    ) -> _Start:
        """Before the last user message, where the user speaks again and reasoning came since."""
        if all(m.role != "user" for m in content.messages[match.matched_messages :]):
            return start
        asked, count, reasoned = match.turn, match.matched_messages, False
        while asked is not None:
            turn = tree[asked]
            count -= len(turn.roles) + 1
            reasoned = reasoned or bool(turn.opened)
            reasoned = reasoned or without_reasoning(turn.reply) != turn.reply
            if "user" in turn.roles:
                break
            asked = turn.parent
        if not reasoned or asked is None:
            return start
        before = self._before_turn(content, tree[asked], count, tree)
        return start if before is None else before

    def _before_turn(
        self, content: Chat, turn: Turn, count: int, tree: SessionTree
    ) -> _Start | None:
        """What the new messages of a turn were appended to, the first `count` of the request."""
        path = _path_tokens(tree, turn.number, self.tokenizer)
        if path is None:
            return None
        prompt = path[: len(path) - len(turn.reply_tokens)]
        if turn.parent is None:
            base = _NOTHING
        elif turn.kept == tree.length(turn.parent):
            base = path[: turn.kept]
        else:
            # Reasoning had been dropped for this turn, so that only its prompt has the place.
            asked = replace(content, messages=content.messages[: count + len(turn.roles)])
            suffix = self.renderer.suffix(asked, count, self.now)
            base = _NOTHING if suffix is None else _without_end(prompt, suffix)
        return _Start(base, count, prompt, turn, cut=True)

    def _extended(self, content: Content, start: _Start) -> Tokens:
        base = start.base
        if isinstance(content, Text):
            if base is None or not len(base):
                return self.renderer.text(content.prompt, True)
            return np.concatenate((base, self.renderer.text(content.prompt[start.extent :], False)))
        if base is not None and len(base):
            suffix = self.renderer.suffix(content, start.extent, self.now, start.rest)
            if suffix is not None:
                return np.concatenate((base, suffix))
        return self.renderer.full(content, self.now)


@dataclass(frozen=True, slots=True)
class _Start:
    """`base` has the first `extent` messages of the request, the last of them a reply, or so many
    characters of raw text. `rest` is the end of that reply which is no whole token. `known` was
    evaluated before. `cut`: it went on from there.
    """

    base: Tokens | None
    extent: int
    known: Tokens
    turn: Turn | None
    rest: str = ""
    cut: bool = False


def _notes(content: Content) -> list[str | None]:
    return [message.note for message in content.messages] if isinstance(content, Chat) else []


def _without_end(tokens: Tokens, end: Tokens) -> Tokens:
    """Nothing at all where they do not end so."""
    at = max(0, len(tokens) - len(end))
    return tokens[:at] if np.array_equal(tokens[at:], end) else _NOTHING


def _path_tokens(tree: SessionTree, turn: int | None, tokenizer: str) -> Tokens | None:
    """None where tokens of the path are of another vocabulary."""
    if turn is None:
        return _NOTHING
    for step in reversed(tree.path(turn)):
        if step.tokenizer != tokenizer:
            return None
        if not step.kept:
            break
    return tree.path_tokens(turn)


def resumed(
    tree: SessionTree, leaf: int, renderer: PromptRenderer, tokenizer: str, now: datetime
) -> Composition:
    """The line that ends with `leaf`, to be made resident. Rendered anew where another vocabulary
    made it. Raises TemplateError.
    """
    turn, known = tree[leaf], _path_tokens(tree, leaf, tokenizer)
    if known is not None:
        return Composition(Match(leaf), 0, known, turn.content, known, turn)
    prompt = _anew(tree.conversation(leaf), renderer, now)
    return Composition(Match(leaf), 0, prompt, turn.content, _NOTHING, turn)


def _anew(content: Content, renderer: PromptRenderer, now: datetime) -> Tokens:
    """What a next turn will begin with, whatever it says."""
    if isinstance(content, Text):
        return renderer.text(content.prompt, True)
    asked = replace(content, messages=(*content.messages, Message("user", "?")))
    whole, further = renderer.full(content, now), renderer.full(asked, now)
    return whole[: common_prefix(whole, further)]
