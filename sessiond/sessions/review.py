"""Looks at a composed request for a rewrite of history, before anything is evaluated or changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from time import time

from sessiond.engine.memory import common_prefix
from sessiond.errors import TemplateError
from sessiond.sessions.composition import Composition
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.policy import Extent, judge
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.rates import Rates
from sessiond.sessions.rewrite import Rewrite, find_rewrite
from sessiond.sessions.transcript import Chat, Content, as_seen
from sessiond.sessions.tree import SessionTree
from sessiond.sessions.wording import explain


@dataclass(frozen=True, slots=True)
class Reviewer:
    """`policy` holds for this request; `declared`: it may compact. `max_rewind` in tokens."""

    session: str
    policy: str
    declared: bool
    max_rewind: int
    renderer: PromptRenderer
    tokenizer: str
    rates: Rates
    now: datetime

    def review(
        self, content: Content, composed: Composition, tree: SessionTree
    ) -> Explanation | None:
        """None where nothing is rewritten; of a refusal the outcome is "refused"."""
        rewrite = find_rewrite(content, composed.match, tree)
        if rewrite is None:
            return None
        extent = self._extent(content, composed, tree, rewrite)
        outcome = judge(
            rewrite, extent, self.policy, declared=self.declared, max_rewind=self.max_rewind
        )
        again = len(composed.prompt) - extent.reusable
        return explain(
            self.session,
            rewrite,
            extent,
            outcome,
            prefill_ms=self.rates.prefill.ms(again),
            created=time(),
        )

    def _extent(
        self, content: Content, composed: Composition, tree: SessionTree, rewrite: Rewrite
    ) -> Extent:
        line, prompt = tree.path_tokens(rewrite.leaf), composed.prompt
        same = tree[rewrite.leaf].tokenizer == self.tokenizer
        extent = Extent(
            session=len(line),
            prompt=len(prompt),
            reusable=common_prefix(line, prompt) if same else 0,
            front=self._front(content, rewrite),
            told=len(line),
        )
        # Rendering the whole line takes a while, and only a compaction is as short as this.
        return replace(extent, told=self._told(tree, rewrite.leaf)) if extent.halved else extent

    def _front(self, content: Content, rewrite: Rewrite) -> int:
        if rewrite.in_front or not isinstance(content, Chat):
            return 0
        return self.renderer.front(content, self.now)

    def _told(self, tree: SessionTree, leaf: int) -> int:
        line, known = len(tree.path_tokens(leaf)), tree.conversation(leaf)
        if not isinstance(known, Chat):
            return line
        seen = replace(known, messages=tuple(as_seen(message) for message in known.messages))
        try:
            return min(line, len(self.renderer.full(seen, self.now)))
        except TemplateError:
            return line
