"""`sessiond env`: what is printed is pasted as it is, so it must be what the agent can read."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from sessiond.cli.agents import AGENTS, Target
from sessiond.cli.env import ANY_MODEL, AgentName
from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, free_url, health, serving

NASTY = 'it\'s "q" $(touch x) `id` \\ ü\n# end'
SHELL = ("claude", "openwebui", "aider", "openai")
KNOWN = Target("http://h:1/s/a", "smol", 4096, has_key=False)
each_agent = pytest.mark.parametrize("agent", AGENTS)


@pytest.fixture
def daemon(daemon: Daemon) -> Daemon:
    daemon.answers["GET /health"] = health(model="smol", n_ctx=8192, n_ctx_train=4096)
    return daemon


def variables(text: str, key: str = "") -> dict[str, str]:
    """What a shell has after reading the text."""
    ran = subprocess.run(
        ["sh", "-c", f"{text}\nenv -0"],
        env={"PATH": "/usr/bin:/bin", "SESSIOND_API_KEY": key},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)


def parsed(form: str, text: str) -> Any:
    if form == "json":
        return json.loads(text)
    if form == "toml":
        return tomllib.loads(text)
    return variables(text) if form == "shell" else dict(_fields(text))


def _fields(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [line.split(": ", 1) for line in lines]


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [str(value)]


def test_every_agent_of_the_table_can_be_named() -> None:
    assert get_args(AgentName) == tuple(AGENTS)


@each_agent
@pytest.mark.parametrize("context", [None, 262_144])
@pytest.mark.parametrize("name", ["smol", "org/model:q4", NASTY])
@pytest.mark.parametrize("has_key", [True, False])
def test_what_is_pasted_can_be_read_whatever_the_model_is_called(
    agent: str, context: int | None, name: str, has_key: bool
) -> None:
    if agent == "homeassistant":  # a person types it
        name = "smol"
    made = AGENTS[agent](Target("http://h:1/s/a%20b", name, context, has_key))
    found = strings(parsed(made.form, made.pasted))
    assert any(text.startswith("http://h:1/s/a%20b") for text in found)
    if agent != "openai":
        assert any(name in text for text in found)
    told = agent in ("opencode", "claude", "codex", "qwen", "pi")
    if told and context is not None:
        assert str(context) in found


@each_agent
def test_the_daemon_tells_address_model_and_context(agent: str, cli: Cli, daemon: Daemon) -> None:
    ran = cli.quick("env", agent)
    assert ran.code == 0
    assert daemon.url in ran.out
    assert "smol" in ran.out
    assert "No daemon" not in ran.err
    if agent not in ("homeassistant", "openwebui"):
        assert "4096" in ran.out, "the most one conversation can have"
    facts = cli.quick("env", agent, "--json").json
    made = AGENTS[agent](Target(daemon.url, "smol", 4096))
    assert facts == {
        "agent": agent,
        "session": None,
        "url": daemon.url,
        "model": "smol",
        "context": 4096,
        "form": made.form,
        "content": made.content,
        "file": made.file,
        "notes": list(made.notes),
    }


@each_agent
def test_without_a_daemon_the_address_is_the_usual_one_and_that_is_said(
    agent: str, cli: Cli
) -> None:
    ran = cli.quick("env", agent, "--url", free_url())
    assert ran.code == 0
    assert "No daemon answers" in ran.err
    assert ANY_MODEL in ran.out
    assert "None" not in ran.out
    assert "null" not in ran.out


def test_the_default_address_where_nothing_else_is_known(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond.client.endpoint.DEFAULT_URL", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9/v1" in cli.quick("env", "openai").out


def test_over_the_unix_socket_the_address_is_a_guess(cli: Cli, tmp_path: Path) -> None:
    with serving(tmp_path / "s.sock") as running:
        running.answers["GET /health"] = health(model="smol", n_ctx=8192, n_ctx_train=4096)
        ran = cli.quick("env", "openai", "--url", running.url)
    assert "http://127.0.0.1:8484/v1" in ran.out
    assert "smol" in ran.out
    assert "--url http://HOST:PORT" in ran.err


def test_a_model_that_still_loads_is_said(cli: Cli, daemon: Daemon) -> None:
    daemon.answers["GET /health"] = (503, health("loading", model=None, n_ctx=None))
    ran = cli.quick("env", "codex")
    assert ran.code == 0
    assert "still loading" in ran.err
    assert "model_context_window" not in ran.out


def test_a_session_is_part_of_the_address(cli: Cli, daemon: Daemon) -> None:
    ran = cli.quick("env", "claude", "--session", "my work/?")
    assert (ran.code, ran.out) == (2, "")
    assert "--session" in ran.err
    out = cli.quick("env", "claude", "--session", "my work?").out
    assert variables(out)["ANTHROPIC_BASE_URL"] == f"{daemon.url}/s/my%20work%3F"
    out = cli.quick("env", "openai", "--session", "..").out
    assert variables(out)["OPENAI_BASE_URL"] == f"{daemon.url}/s/%2E%2E/v1"


def test_an_unknown_agent_is_a_usage_error_that_names_them(cli: Cli, daemon: Daemon) -> None:
    ran = cli.quick("env", "emacs")
    assert ran.code == 2
    assert all(f"'{agent}'" in ran.err for agent in AGENTS)
    assert ran.err.count("\n") == 1


def test_the_names_are_completed(cli: Cli) -> None:
    cli.env |= {
        "_SESSIOND_COMPLETE": "complete_bash",
        "COMP_WORDS": "sessiond env open",
        "COMP_CWORD": "2",
    }
    assert cli().out.split() == ["opencode", "openwebui", "openai"]


def test_claude_code_is_kept_from_guessing_and_from_giving_up() -> None:
    told = variables(AGENTS["claude"](KNOWN).pasted)
    assert told["ANTHROPIC_BASE_URL"] == "http://h:1/s/a", "it adds /v1 itself"
    assert told["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "4096"
    assert told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "1024"
    assert int(told["API_TIMEOUT_MS"]) > 600_000
    assert told["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"


@pytest.mark.parametrize("agent", SHELL)
def test_a_shell_reads_the_key_from_where_it_is(agent: str) -> None:
    out = AGENTS[agent](KNOWN).pasted
    assert "secret-key" in variables(out, key="secret-key").values()
    assert "none" in variables(out).values()


@each_agent
def test_no_key_is_printed(agent: str, cli: Cli, daemon: Daemon) -> None:
    cli.env["SESSIOND_API_KEY"] = "secret-key"
    ran = cli.quick("env", agent)
    assert "secret-key" not in ran.out + ran.err
    assert "SESSIOND_API_KEY" in ran.out


def test_codex_names_the_keys_variable_only_where_it_is_set() -> None:
    def provider(*, has_key: bool) -> dict[str, Any]:
        target = Target("http://h:1", "m", 8000, has_key)
        settings = tomllib.loads(AGENTS["codex"](target).pasted)
        assert settings["model_auto_compact_token_limit"] < settings["model_context_window"]
        found: dict[str, Any] = settings["model_providers"]["sessiond"]
        return found

    assert "env_key" not in provider(has_key=False)
    assert provider(has_key=True)["env_key"] == "SESSIOND_API_KEY"
    assert provider(has_key=True)["wire_api"] == "responses"


def test_where_a_file_has_no_comments_the_notes_are_beside_it(cli: Cli, daemon: Daemon) -> None:
    ran = cli("env", "pi")
    assert json.loads(ran.out)["providers"]["sessiond"]["models"][0]["contextWindow"] == 4096
    assert "# Goes into ~/.pi/agent/models.json" in ran.err
