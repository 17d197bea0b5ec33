"""`sessiond models`: which GGUFs are on this machine, and which of them fit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.found_models import FoundModel, PassedOver, find_models
from sessiond.cli.machine import Memory, fit, memory
from sessiond.cli.model_places import Place, given, places
from sessiond.cli.options import AsJson
from sessiond.cli.output import Cell, Column, note, print_json, table_lines
from sessiond.errors import ConfigError

TOKENS = 32_768
"""What an agent fills in an afternoon."""
COLUMNS = (
    Column("NAME", shrink="crop", least=12),
    Column("MEMORY"),
    Column("PARAMS", right=True),
    Column("QUANT"),
    Column("SIZE", right=True),
    Column("TRAINED", right=True),
    Column("NEEDS", right=True),
    Column("FITS"),
)
Directories = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DIR]...", help="Look here. Without any: where models usually are.", exists=True
    ),
]
Tokens = Annotated[
    int, typer.Option("--n-ctx", metavar="TOKENS", min=1, help="The context that must fit.")
]


def models(
    directories: Directories = None, n_ctx: Tokens = TOKENS, as_json: AsJson = False
) -> None:
    """List the models (GGUF files) on this machine, and whether they fit in its memory.

    Looks into models/, the folder of the configured model, and the folders of LM Studio, llama.cpp,
    Hugging Face, Ollama, GPT4All and Jan. NEEDS is the model with one conversation of --n-ctx
    tokens (or as many as it was trained for), an estimate. Weights are not read.
    """
    searched = given(directories) if directories else places(_configured())
    found = list(find_models(searched))
    ram = memory()
    listed = [each for each in found if isinstance(each, FoundModel)]
    passed = [each for each in found if isinstance(each, PassedOver)]
    if as_json:
        print_json(_document(listed, passed, searched, n_ctx, ram))
        return
    _print(listed, n_ctx, ram)
    for each in passed:
        note(f"Passed over: {words.clean(str(each.path))}: {words.clean(each.why)}.")
    if not listed:
        looked = ", ".join(words.clean(str(place.directory)) for place in searched) or "no folder"
        note(f"No models. Looked in: {looked}. Give another folder: sessiond models DIR")


def _configured() -> str:
    from sessiond.config.sources import load_config

    try:
        return load_config().model.path
    except ConfigError:
        return ""


def _print(listed: Sequence[FoundModel], n_ctx: int, ram: Memory) -> None:
    if not listed:
        return
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    heading, *rows = table_lines(COLUMNS, [_row(each, n_ctx, ram) for each in listed], room)
    print(heading)
    for each, row in zip(listed, rows, strict=True):
        of = ", ".join(filter(None, [each.model.architecture, each.place]))
        print(f"{row}\n  {words.clean(str(each.path))}  ({words.clean(of)})")
    gpu = f", the GPU {words.size(ram.gpu)}" if ram.gpu else ""
    note(f"Memory: {words.size(ram.available)} available of {words.size(ram.total)}{gpu}.")


def _row(each: FoundModel, n_ctx: int, ram: Memory) -> list[Cell]:
    model, judged = each.model, fit(each.model, n_ctx, _room(ram))
    return [
        Cell(each.name, "bold"),
        Cell(str(model.kind)),
        Cell(_millions(model.parameters)),
        Cell(model.quant),
        Cell(words.size(model.size)),
        Cell(f"{model.n_ctx_train:,}"),
        Cell(words.size(judged.needed)),
        Cell("yes" if judged.fits else "no", "green" if judged.fits else "red"),
    ]


def _room(ram: Memory) -> int:
    """Layers that a GPU has no room for stay in RAM, so that the two add up."""
    return ram.available + ram.gpu


def _millions(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 999_500_000 else f"{count / 1e6:.0f}M"


def _document(
    listed: Sequence[FoundModel],
    passed: Sequence[PassedOver],
    searched: Sequence[Place],
    n_ctx: int,
    ram: Memory,
) -> dict[str, object]:
    return {
        "models": [_entry(each, n_ctx, ram) for each in listed],
        "passed_over": [{"path": str(each.path), "why": each.why} for each in passed],
        "searched": [{"place": p.label, "path": str(p.directory)} for p in searched],
        "memory": {"total": ram.total, "available": ram.available, "gpu": ram.gpu},
    }


def _entry(each: FoundModel, n_ctx: int, ram: Memory) -> dict[str, object]:
    model, judged = each.model, fit(each.model, n_ctx, _room(ram))
    return {
        "name": each.name,
        "path": str(each.path),
        "place": each.place,
        "title": model.title,
        "architecture": model.architecture,
        "memory_kind": str(model.kind),
        "parameters": model.parameters,
        "quant": model.quant,
        "bytes": model.size,
        "n_ctx_train": model.n_ctx_train,
        "window": model.window,
        "token_bytes": model.token_bytes(),
        "line_bytes": model.line_bytes(),
        "chat_template": bool(model.template),
        "n_ctx": judged.tokens,
        "needed_bytes": judged.needed,
        "fits": judged.fits,
    }
