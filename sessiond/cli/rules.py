"""`sessiond set`: what may be done to a session's history, and what may change in its front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import print_json
from sessiond.cli.words import clean
from sessiond.client import Client
from sessiond.sessions.turn import SessionSummary

DEFAULT = "default"
_POLICY = (
    "When a client rewrites the session's history: refuse and say why (append-only), or go on "
    "beside the old line (fork)."
)

Policy = Annotated[Literal["append-only", "fork"] | None, typer.Option("--policy", help=_POLICY)]
AnyPolicy = Annotated[
    Literal["append-only", "fork", "default"] | None,
    typer.Option("--policy", help=f"{_POLICY} default: what the daemon's settings say."),
]
PinnedFront = Annotated[
    list[str] | None,
    typer.Option(
        "--pinned-front",
        metavar="clock|date|id|PATTERN",
        help="What may change in the system prompt without being a rewrite: the first one stays, "
        "and the model is told of the change with the next message. A PATTERN is a regular "
        "expression. Repeat it for several. default: what the daemon's settings say.",
    ),
]
NoPinnedFront = Annotated[
    bool, typer.Option("--no-pinned-front", help="Nothing in the system prompt may change.")
]


def set_rules(
    name: Name,
    policy: AnyPolicy = None,
    pinned_front: PinnedFront = None,
    no_pinned_front: NoPinnedFront = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Change what a session allows. What is not given stays as it is.

    sessiond set home --pinned-front clock --pinned-front date
    """
    pinned = patterns(pinned_front, no_pinned_front)
    if policy is None and pinned is None:
        raise typer.BadParameter(
            "nothing to set: give --policy, --pinned-front or --no-pinned-front"
        )
    with Client(url) as client:
        session = client.update(name, policy, pinned)
    if as_json:
        print_json(asdict(session))
    else:
        print(f"Set {session.name}: {rules(session)}")


def patterns(given: Sequence[str] | None, none: bool) -> Sequence[str] | None:
    """What is sent of --pinned-front; None where neither option was given."""
    given = list(given or ())
    if none and given:
        raise typer.BadParameter("--no-pinned-front cannot be used with --pinned-front")
    if DEFAULT in given and set(given) != {DEFAULT}:
        raise typer.BadParameter(f"--pinned-front {DEFAULT} stands alone")
    if none:
        return []
    return list(dict.fromkeys(given)) or None


def rules(session: SessionSummary) -> str:
    """`append-only, pinned front: clock, date`."""
    pinned = ", ".join(clean(name) for name in session.pinned_front)
    return f"{session.policy}, pinned front: {pinned}" if pinned else session.policy
