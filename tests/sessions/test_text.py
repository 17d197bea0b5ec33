"""What the loaded model is asked beside replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.engine.fake import CHATML
from sessiond.errors import TemplateError
from sessiond.sessions.transcript import read_chat
from tests.sessions.kinds import chat, prompt_of, rig_of


async def test_the_lifecycle_lends_the_vocabulary_of_its_model(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.limit = 5000
    async with rig.daemon() as daemon:
        known = await daemon.lifecycle.vocabulary()
        assert (known.served.model, known.served.n_ctx, known.served.lines) == ("fake", 5000, 4)
        messages = chat("Hello?")
        prompt = await known.prompt(read_chat(messages))
        tokens = await known.tokens(prompt, add_special=False, parse_special=True)
        assert tokens == prompt_of(messages).tolist()
        assert await known.text(tokens) == prompt
        assert daemon.evaluated == 0


async def test_without_a_template_there_is_no_prompt(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir, chat_template=None)
    async with rig.daemon() as daemon:
        known = await daemon.lifecycle.vocabulary()
        with pytest.raises(TemplateError):
            await known.prompt(read_chat(chat("Hello?")))
    rig.template = CHATML
    async with rig.daemon() as daemon:
        known = await daemon.lifecycle.vocabulary()
        assert "Hello?" in await known.prompt(read_chat(chat("Hello?")))
