from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sessiond.cli.main import app
from tests.cli.fake_daemon import Daemon, serving
from tests.cli.terminal import Terminal, terminal

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "sessiond")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Cli:
    """The program as a process of its own, with an environment that holds nothing of ours."""

    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        ran = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=ROOT,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def quick(self, *arguments: str) -> Ran:
        """In this process: for what does not depend on being a program."""
        out, err, nothing = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(3))
        streams = mock.patch.multiple(sys, stdout=out, stderr=err, stdin=nothing)
        with mock.patch.dict(os.environ, self.env, clear=True), streams:
            code = app(arguments)
        return Ran(code, *(_text(stream) for stream in (out, err)))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=ROOT,
            env=self.env,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def terminal(self, *arguments: str, **env: str) -> AbstractContextManager[Terminal]:
        return terminal([*PROGRAM, *arguments], {**self.env, "TERM": "xterm-256color", **env})


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli({"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)})


@pytest.fixture
def daemon(cli: Cli) -> Iterator[Daemon]:
    with serving() as running:
        cli.env["SESSIOND_URL"] = running.url
        yield running
