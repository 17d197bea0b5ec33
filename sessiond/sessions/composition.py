"""From a request to the tokens of its prompt: the ledger's for what is known, else new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from sessiond.engine.memory import Tokens, as_tokens, common_prefix
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.transcript import Content, Message, Text
from sessiond.sessions.tree import SessionTree, Turn

_NOTHING = as_tokens([])


@dataclass(frozen=True, slots=True)
class Composition:
    """`prompt` is the parent's path up to `kept` and then the turn's own tokens.

    `content` is what is new. `known` are the tokens that were evaluated before for the same words,
    for saying what was lost; `known_turn` brought them. There are none of another vocabulary.
    `goes_back`: the line was gone on with before.
    """

    parent: int | None
    kept: int
    prompt: Tokens
    content: Content
    known: Tokens
    known_turn: Turn | None
    goes_back: bool = False

    @property
    def own_tokens(self) -> Tokens:
        return self.prompt[self.kept :]


def compose(
    content: Content, tree: SessionTree, renderer: PromptRenderer, tokenizer: str, now: datetime
) -> Composition:
    """Raises TemplateError."""
    match = tree.match(content)
    new = match.rest(content)
    twin = tree.twin(match, content)
    again = _path_tokens(tree, twin.number, tokenizer) if twin is not None else None
    if twin is not None and again is not None:
        prompt = again[: len(again) - len(twin.reply_tokens)]
        return Composition(match.turn, twin.kept, prompt, new, again, twin, goes_back=True)
    known_turn = tree[match.turn] if match.turn is not None else None
    base = _path_tokens(tree, match.turn, tokenizer)
    prompt = _extended(content, match.matched_messages, new, base, renderer, now)
    kept = common_prefix(prompt, base) if base is not None else 0
    known = _NOTHING if base is None else base
    goes_back = match.turn is not None and match.turn not in tree.leaves()
    return Composition(match.turn, kept, prompt, new, known, known_turn, goes_back)


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


def _extended(
    content: Content,
    matched: int,
    new: Content,
    base: Tokens | None,
    renderer: PromptRenderer,
    now: datetime,
) -> Tokens:
    continues = base is not None and len(base) > 0
    if isinstance(content, Text):
        if not continues or base is None or not isinstance(new, Text):
            return renderer.text(content.prompt, True)
        return np.concatenate((base, renderer.text(new.prompt, False)))
    if continues and base is not None:
        suffix = renderer.suffix(content, matched, now)
        if suffix is not None:
            return np.concatenate((base, suffix))
    return renderer.full(content, now)


def resumed(
    tree: SessionTree, leaf: int, renderer: PromptRenderer, tokenizer: str, now: datetime
) -> Composition:
    """The line that ends with `leaf`, to be made resident. Rendered anew where another vocabulary
    made it. Raises TemplateError.
    """
    turn, known = tree[leaf], _path_tokens(tree, leaf, tokenizer)
    if known is not None:
        return Composition(leaf, 0, known, turn.content, known, turn)
    prompt = _anew(tree.conversation(leaf), renderer, now)
    return Composition(leaf, 0, prompt, turn.content, _NOTHING, turn)


def _anew(content: Content, renderer: PromptRenderer, now: datetime) -> Tokens:
    """What a next turn will begin with, whatever it says."""
    if isinstance(content, Text):
        return renderer.text(content.prompt, True)
    asked = replace(content, messages=(*content.messages, Message("user", "?")))
    whole, further = renderer.full(content, now), renderer.full(asked, now)
    return whole[: common_prefix(whole, further)]
