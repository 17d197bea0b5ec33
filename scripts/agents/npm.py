"""Puts an agent into .venv/agents, in the version that package.json names."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock

from scripts.agents.agent import Agent, AgentFailed
from scripts.fetch_models import ROOT

PINS = Path(__file__).with_name("package.json")
INSTALLED = ROOT / ".venv" / "agents"
OLDEST_NODE = 20
INSTALL_TIMEOUT_S = 600
_SAID = 2_000


def version(agent: Agent) -> str:
    """The pinned one."""
    pinned: dict[str, str] = json.loads(PINS.read_text())["dependencies"]
    return pinned[agent.package]


def install(agent: Agent) -> Path:
    """The folder of its program, whole. Raises AgentFailed, also where there is no node."""
    check_node()
    home = INSTALLED / f"{agent.name}-{version(agent)}"
    home.mkdir(parents=True, exist_ok=True)
    programs = home / "node_modules" / ".bin"
    with FileLock(home.with_name(f".{home.name}.lock")):
        stamp = home / ".whole"
        if not stamp.exists():
            _npm(home, f"{agent.package}@{version(agent)}")
            stamp.touch()
    if not (programs / agent.program).exists():
        raise AgentFailed(f"{agent.package} brought no program {agent.program}.")
    return programs


def check_node() -> None:
    """Raises AgentFailed where node or npm is missing or too old."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise AgentFailed("Agents need node and npm. Do: apt install nodejs npm")
    told = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    if int(told.lstrip("v").split(".")[0] or 0) < OLDEST_NODE:
        raise AgentFailed(f"node is {told}; agents need {OLDEST_NODE} or newer.")


def _npm(home: Path, package: str) -> None:
    options = ("--no-package-lock", "--no-save", "--no-audit", "--no-fund", "--loglevel=error")
    command = ["npm", "install", *options, "--prefix", str(home), package]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
    )
    if done.returncode:
        raise AgentFailed(f"npm could not install {package}:\n{done.stderr[-_SAID:]}")
