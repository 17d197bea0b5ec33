"""What a results file says of its own run."""

from __future__ import annotations

import sys

import pytest

from scripts import results


def test_a_command_is_told_without_the_key_of_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for said in (["--key", "sk-1 2"], ["--key=sk-1 2"]):
        monkeypatch.setattr(sys, "argv", ["/x/bench_day.py", *said, "--model", "a b.gguf"])
        told = results.command()
        assert "sk-1" not in told
        assert told.startswith("python -m scripts.bench_day --key")
        assert told.endswith("KEY --model 'a b.gguf'")
