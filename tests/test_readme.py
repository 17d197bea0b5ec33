"""The README's commands are run as they stand there, against a daemon on another port."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.daemon import Daemon

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8484"


def blocks(language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(README) if name == language]


def commands() -> list[str]:
    joined = "".join(blocks("sh")).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def daemon(smol_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(smol_path, tmp_path_factory.mktemp("readme") / "state") as daemon:
        yield daemon


def run(command: str, daemon: Daemon) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SESSIOND_URL": daemon.url, "SESSIOND_PORT": str(daemon.port)}
    return subprocess.run(  # noqa: S602
        command.replace(ADDRESS, daemon.url),
        shell=True,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_commands_of_every_kind() -> None:
    first_words = {command.split()[0] for command in commands()}
    assert first_words == {"make", "curl", ".venv/bin/sessiond"}


def test_make_targets_exist() -> None:
    for command in commands():
        if command.startswith("make "):
            words = [
                word.replace("/path/to/model.gguf", os.devnull) for word in shlex.split(command)
            ]
            dry = subprocess.run(
                [*words, "-n"], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert dry.returncode == 0, (command, dry.stderr)


def test_commands_in_order(daemon: Daemon) -> None:
    """Every curl and sessiond line, top to bottom, as a reader would paste them."""
    ran = [command for command in commands() if not command.startswith("make ")]
    assert len(ran) > 6
    for command in ran:
        done = run(command, daemon)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), command
        assert '"error"' not in done.stdout, (command, done.stdout)


def test_the_python_example(daemon: Daemon) -> None:
    (example,) = blocks("python")
    done = subprocess.run(
        [ROOT / ".venv/bin/python", "-c", example.replace(ADDRESS, daemon.url)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+$", done.stdout.strip())
