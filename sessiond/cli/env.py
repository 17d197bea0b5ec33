"""`sessiond env`: what to paste so that an agent works with the daemon."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from sessiond.api.identity import session_name
from sessiond.cli.agents import AGENTS, Target
from sessiond.cli.agents.settings import KEY_VARIABLE
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import note, print_json
from sessiond.client import Client, Unreachable
from sessiond.client.calls import segment
from sessiond.client.endpoint import DEFAULT_URL, Endpoint
from sessiond.errors import InvalidRequest

ANY_MODEL = "sessiond"
"""Served by whatever model is loaded."""

AgentName = Literal[
    "opencode",
    "claude",
    "codex",
    "qwen",
    "pi",
    "homeassistant",
    "openwebui",
    "aider",
    "openai",
]
For = Annotated[AgentName, typer.Argument(metavar="AGENT", help="The agent to set up.")]
Session = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="NAME",
        help="Let everything the agent says belong to this session. Without it: the session that "
        "the agent names by itself.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Model:
    """`context` is the most tokens of one conversation, None where it is not known."""

    name: str = ANY_MODEL
    context: int | None = None


def env(agent: For, session: Session = None, as_json: AsJson = False, url: Url = None) -> None:
    """Print what to paste so that an agent uses this daemon: variables for a shell, or settings.

    eval "$(sessiond env claude)"
    """
    path = "" if session is None else f"/s/{_named(session)}"
    with Client(url) as client:
        base = _address(client.endpoint)
        model = _model(client, base)
    target = Target(base + path, model.name, model.context, bool(os.environ.get(KEY_VARIABLE)))
    made = AGENTS[agent](target)
    if as_json:
        print_json({"agent": agent, "session": session, **_facts(target), **asdict(made)})
        return
    for remark in () if made.has_comments else made.told:
        note(f"# {remark}")
    print(made.pasted, end="")


def _named(session: str) -> str:
    try:
        return segment(session_name(session, param="--session"))
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint="--session") from error


def _address(endpoint: Endpoint) -> str:
    """Where an agent reaches the daemon, which a unix socket does not tell."""
    if endpoint.socket is None:
        return endpoint.url
    note(f"# Agents need TCP; taken to be {DEFAULT_URL}. If not: --url http://HOST:PORT")
    return DEFAULT_URL


def _model(client: Client, base: str) -> _Model:
    try:
        health = client.health()
    except Unreachable:
        note(f"# No daemon answers, so its address is taken to be {base}, and the size of the")
        note("# context is left out. With it running, ask again: sessiond env")
        return _Model()
    if health.model is None or health.n_ctx is None:
        note("# The model is still loading; ask again later for its name and context size.")
        return _Model()
    return _Model(health.model, min(health.n_ctx, health.n_ctx_train or health.n_ctx))


def _facts(target: Target) -> dict[str, object]:
    return {"url": target.base, "model": target.model, "context": target.context}
