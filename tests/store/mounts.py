"""Small file systems for tests, which are skipped where none can be mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[Path]:
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(at)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def remount(at: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(at)], check=True)


@contextmanager
def filled(directory: Path, leaving: int = 0) -> Iterator[None]:
    """The disk of `directory` has no byte more than about `leaving` free inside."""
    hog = directory / "hog"
    free = os.statvfs(directory)
    with hog.open("wb") as file:
        left = free.f_bavail * free.f_frsize - leaving
        file.write(bytes(max(0, left)))
    try:
        yield
    finally:
        hog.unlink()
