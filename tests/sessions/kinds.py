"""Every memory kind on a fake engine, and what a model of that kind must answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import CHATML, FakeContext, FakeModel
from sessiond.engine.memory import Memory, MemoryKind, Tokens
from sessiond.sessions.transcript import read_chat
from tests.rig import Rig
from tests.rig.rig import fake

MEMORIES = {
    "attention": Memory(MemoryKind.ATTENTION),
    "swa": Memory(MemoryKind.SWA, 40),
    "recurrent": Memory(MemoryKind.RECURRENT),
    "hybrid": Memory(MemoryKind.HYBRID),
    "hybrid+swa": Memory(MemoryKind.HYBRID, 40),
}
KINDS = list(MEMORIES)
CONTRASTS = ["attention", "hybrid+swa"]
"""The kind with the simplest state and the one with all of it."""
RENDERER = TemplateRenderer(FakeModel(), ChatTemplate(CHATML))
Messages = list[dict[str, Any]]
FRONT = "You are terse. " * 20
"""300 tokens: more than a block, and more than the fake's window cache of 2 * 40 + 64."""


def rig_of(kind: str, directory: Path, **options: Any) -> Rig:
    return Rig(directory, fake(MEMORIES[kind], **options))


def chat(*said: str, front: str = FRONT) -> Messages:
    """A system prompt, then user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return [{"role": "system", "content": front}, *messages] if front else messages


def prompt_of(messages: Messages | str) -> Tokens:
    """The tokens of a request whose whole text is rendered anew."""
    if isinstance(messages, str):
        return RENDERER.text(messages, True)
    return RENDERER.full(read_chat(messages), datetime.now(UTC))


def control(
    kind: str, messages: Messages | str, max_tokens: int = 12, *, ignore_eos: bool = False
) -> str:
    """The reply of a context that evaluates everything, from the first token on."""
    model = FakeModel(MEMORIES[kind])
    context = FakeContext(model, n_seq_max=1)
    tokens = [int(token) for token in prompt_of(messages)]
    reply: list[int] = []
    _evaluate(context, tokens, 0)
    while len(reply) < max_tokens:
        token = int(context.logits(-1).argmax())
        if model.ends_generation(token) and not ignore_eos:
            break
        reply.append(token)
        _evaluate(context, [token], len(tokens) + len(reply) - 1)
    return b"".join(model.piece(token) for token in reply).decode()


def _evaluate(context: FakeContext, tokens: Sequence[int], start: int) -> None:
    for at in range(0, len(tokens), context.n_batch):
        chunk = np.asarray(tokens[at : at + context.n_batch], np.int32)
        context.decode(chunk, start + at, 0, logits=True)
