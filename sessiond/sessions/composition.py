"""From a request to the tokens of its prompt: the ledger's for what is known, new ones for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from sessiond.engine.memory import Tokens, as_tokens, common_prefix
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.transcript import Content, Text
from sessiond.sessions.tree import SessionTree, Turn

_NOTHING = as_tokens([])


@dataclass(frozen=True, slots=True)
class Composition:
    """`prompt` is the parent's path up to `kept` and then the turn's own tokens.

    `content` is what is new. `known` are the tokens that were evaluated before for the same words, for
    saying what was lost; `known_turn` brought them.
    """

    parent: int | None
    kept: int
    prompt: Tokens
    content: Content
    known: Tokens
    known_turn: Turn | None

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
    base = _path_tokens(tree, match.turn, tokenizer)
    if twin is not None and twin.tokenizer == tokenizer and base is not None:
        prompt = np.concatenate((base[: twin.kept], twin.prompt_tokens))
        return Composition(match.turn, twin.kept, prompt, new, tree.path_tokens(twin.number), twin)
    known_turn = tree[match.turn] if match.turn is not None else None
    prompt = _extended(content, match.matched_messages, new, base, renderer, now)
    kept = common_prefix(prompt, base) if base is not None else 0
    return Composition(
        match.turn, kept, prompt, new, _NOTHING if base is None else base, known_turn
    )


def _path_tokens(tree: SessionTree, turn: int | None, tokenizer: str) -> Tokens | None:
    """None where the path was tokenised by another vocabulary."""
    if turn is None:
        return _NOTHING
    same = all(step.tokenizer == tokenizer for step in tree.path(turn))
    return tree.path_tokens(turn) if same else None


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
    """The line that ends with `leaf`, to be made resident: all but its last token, which a next turn
    evaluates in any case. Rendered anew where another vocabulary made it.
    """
    turn, known = tree[leaf], _path_tokens(tree, leaf, tokenizer)
    if known is not None:
        return Composition(leaf, 0, known[:-1], turn.content, known, turn)
    content = tree.conversation(leaf)
    if isinstance(content, Text):
        prompt = renderer.text(content.prompt, True)
    else:
        prompt = renderer.full(content, now)
    return Composition(leaf, 0, prompt, turn.content, _NOTHING, turn)
