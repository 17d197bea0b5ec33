"""Where an agent lives while it is proved: a home of its own, and no network but this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.agents.agent import Agent, AgentFailed

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there: a proxy for all that is not on this machine."""
LOOPBACK = "127.0.0.1,localhost"
NOTES = "# Notes\n\nThe ferry leaves at noon.\n"


@dataclass(frozen=True, slots=True)
class Place:
    """Folders of one agent, and the variables its processes get."""

    home: Path
    work: Path
    variables: Mapping[str, str]


def settings(agent: Agent, url: str) -> dict[str, Any]:
    """What `sessiond env` says for the agent, with the daemon at `url`. Raises AgentFailed."""
    command = [sys.executable, "-m", "sessiond", "env", agent.name, "--json", "--url", url]
    inherited = {name: value for name, value in os.environ.items() if not _is_ours(name)}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True)
    if done.returncode:
        raise AgentFailed(f"sessiond env {agent.name}: {done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def prepare(agent: Agent, told: Mapping[str, Any], programs: Path, folder: Path) -> Place:
    """Writes the settings into a new home below `folder`. Raises AgentFailed."""
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    (work / "notes.md").write_text(NOTES)
    if agent.file is not None:
        file = home / agent.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(told["content"])
    exported = exports(told["content"]) if told["form"] == "shell" else {}
    own = _own(home, programs)
    return Place(home, work, {**own, **agent.quiet, **exported})


def exports(content: str) -> dict[str, str]:
    """The variables that a shell has after `content` and had not before. Raises AgentFailed."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"{content}\nenv -0"], env={}, capture_output=True, text=True
    )
    if done.returncode:
        raise AgentFailed(f"A shell does not take what `sessiond env` says: {done.stderr}")
    pairs = (line.partition("=") for line in done.stdout.split("\0") if line)
    return {name: value for name, _, value in pairs if name not in ("PWD", "SHLVL", "_", "OLDPWD")}


def _own(home: Path, programs: Path) -> dict[str, str]:
    proxies = {name: NOWHERE for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")}
    return {
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "NO_PROXY": LOOPBACK,
        "no_proxy": LOOPBACK,
        **proxies,
    }


def _is_ours(name: str) -> bool:
    return name.startswith("SESSIOND_")
