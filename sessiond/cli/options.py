"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SESSIOND_URL",
        show_envvar=True,
        metavar="URL",
        help="Where the daemon is: http://HOST:PORT or unix:///PATH. "
        "Without it: the unix socket, then http://127.0.0.1:8484.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The session's name.")]
