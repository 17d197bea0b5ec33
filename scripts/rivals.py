"""The other servers that a benchmark is told of on its command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from scripts.daemon import Json
from scripts.day.llama_server import LlamaServer, options_of
from scripts.day.servers import Place
from scripts.load_loops import KEY

Url = Annotated[str, typer.Option(help="Another server, which runs already.")]
Key = Annotated[str, typer.Option(help="The key for it.", envvar=KEY)]
Launch = Annotated[
    tuple[str, Path] | None,
    typer.Option(help="Start another server: llama-server and the path of its binary."),
]
LaunchOptions = Annotated[str, typer.Option(help="More options for it, as one text.")]


@dataclass(frozen=True, slots=True)
class Rivals:
    """A binary of llama-server with `options`, and a `url` where a server runs."""

    binary: Path | None = None
    options: tuple[str, ...] = ()
    url: str = ""
    key: str = ""

    def settings(self, place: Place) -> Json:
        """What the document says of them: the model by its name alone, and no key."""
        named = replace(place, model=Path(place.model.name))
        told = [*options_of(named, Path("slots")), *self.options] if self.binary else ""
        return {"llama_server": told, "url": self.url}


def rivals_of(launch: tuple[str, Path] | None, options: str, url: str, key: str) -> Rivals:
    """Raises typer.BadParameter."""
    if launch and launch[0] != LlamaServer.name:
        told = f"{launch[0]!r} is not {LlamaServer.name}"
        raise typer.BadParameter(told, param_hint="--launch")
    if launch and not launch[1].is_file():
        raise typer.BadParameter(f"{launch[1]}: there is no such file", param_hint="--launch")
    if url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url!r} is no http address", param_hint="--url")
    return Rivals(launch[1].resolve() if launch else None, tuple(shlex.split(options)), url, key)
