"""A real model that is asked for a constrained reply, without sessions around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sessiond.engine.constraint import Constraint
from sessiond.engine.core import SPARES, EngineCore
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.settings import ContextSettings
from tests.engine.cores import LIMIT, ended

HOT = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
END_OF_TURN = 2
"""SmolLM2's <|im_end|>."""
SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0, repeat_penalty=1.3, logit_bias=((END_OF_TURN, 100.0),)),
    *(Sampling(seed=seed, **HOT) for seed in range(2)),
    Sampling(temperature=1.5, top_k=1, seed=1),
)


@contextmanager
def real_core(path: Path) -> Iterator[EngineCore]:
    from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend

    start_backend()
    settings = ContextSettings(model=path, n_ctx=1024, n_seq_max=2 + SPARES, threads=1)
    model = LlamaModel(settings)
    context = LlamaContext(model, settings)
    yield EngineCore(model, context)
    context.close()
    model.close()


def ask(core: EngineCore, question: str, constraint: Constraint, sampling: Sampling) -> str:
    """The whole reply, which ended by itself; ChatML."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    tokens = core.model.tokenize(text, add_special=False, parse_special=True)
    events: list[Any] = []
    core.drop(0)
    ending = Ending(max_tokens=200)
    core.start(Run(0, tokens, 0, LIMIT, sampling, ending, constraint=constraint), events.append)
    while core.busy:
        core.step()
    end = ended(events)
    assert end.reason == "stop"
    return end.text
