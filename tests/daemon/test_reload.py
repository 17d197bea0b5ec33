"""SIGHUP: what can change while the daemon runs does, and a bad file changes nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sessiond.config.settings import Auth, Config, Model, Server, Sessions
from sessiond.config.sources import all_keys
from sessiond.daemon.reload import LIVE, Difference, Reloading, difference
from sessiond.errors import ConfigError
from tests.daemon.fake_daemon import FakeDaemon, Supervisor

FIRST, SECOND = "sk-the-first-key", "sk-the-second-key"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
RESTART = {
    *("server.host", "server.port", "server.uds", "server.state_dir"),
    *("model.path", "model.name", "model.n_ctx", "model.n_batch", "model.n_ubatch"),
    *("model.n_gpu_layers", "model.threads", "model.type_k", "model.type_v", "model.flash_attn"),
    *("model.chat_template_file", "model.tool_format", "model.extra"),
    *("sessions.max_active", "sessions.step_budget", "checkpoints.ram", "store.dir"),
}


class Reloaded:
    """A daemon with a settings file, and a supervisor that hears when it has reloaded."""

    def __init__(self, folder: Path) -> None:
        self.daemon = FakeDaemon(folder / "state", ["--fake-latency", "2"])
        self.keys = folder / "keys"
        self.peer = Supervisor(folder / "notify")
        self.daemon.variables = self.peer.variables

    def reload(self, settings: str) -> str:
        """The log of what came of it."""
        self.write(settings)
        before = len(self.daemon.told)
        self.daemon.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in self.peer.hear("RELOADING=1")
        self.peer.hear("READY=1")
        return self.daemon.told[before:]

    def write(self, settings: str) -> None:
        self.daemon.config.write_text(f'[auth]\nkeys_file = "{self.keys}"\n{settings}')

    def ask(self, key: str = FIRST) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return self.daemon.http.post("/s/a/v1/chat/completions", json=CHAT, headers=headers)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Reloaded]:
    running = Reloaded(tmp_path)
    running.keys.write_text(f"{FIRST}\n")
    running.write("[server]\nqueue = 8\n")
    with running.daemon:
        running.peer.hear("READY=1")
        yield running
    running.peer.close()


def test_every_setting_is_either_live_or_needs_a_restart() -> None:
    assert set(all_keys()) == LIVE | RESTART
    assert not LIVE & RESTART


def test_only_live_settings_change() -> None:
    running = Config(server=Server(queue=8, port=1), sessions=Sessions(policy="fork"))
    read = Config(server=Server(queue=9, port=2), model=Model(n_ctx=4096, strict_name=True))
    found = difference(running, read)
    assert found.live == ("server.queue", "model.strict_name", "sessions.policy")
    assert found.restart == ("server.port", "model.n_ctx")
    assert (found.config.server.queue, found.config.server.port) == (9, 1)
    assert (found.config.model.strict_name, found.config.model.n_ctx) == (True, 0)
    assert difference(found.config, read).live == ()


@pytest.mark.parametrize("error", [ConfigError("No.", param="server.queue"), ZeroDivisionError()])
async def test_what_cannot_be_applied_changes_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [Config(server=Server(queue=9)), Config(server=Server(queue=10))]
    applied: list[int] = []

    def apply(found: Difference) -> list[str]:
        if found.config.server.queue == 9:
            raise error
        applied.append(found.config.server.queue)
        return []

    reloading = Reloading(Config(), lambda: wanted.pop(0), apply)
    await reloading.reload()
    assert "Not reloaded" in caplog.text
    await reloading.reload()
    assert applied == [10]


def test_a_key_that_is_added_works_without_a_restart(running: Reloaded) -> None:
    """
    1. A reply is streamed. 2. A second key is added to the file, SIGHUP, the first is taken out.
    Result: the second is let in, the first no more, the stream goes on to its end.
    """
    assert (running.ask(FIRST).status_code, running.ask(SECOND).status_code) == (200, 401)
    body = {"prompt": "x", "stream": True, "max_tokens": 200, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {FIRST}"}
    http = running.daemon.http
    with http.stream("POST", "/s/long/v1/completions", json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        running.keys.write_text(f"{SECOND}\n")
        assert "Reloaded: auth.keys_file." in running.reload("[server]\nqueue = 8\n")
        assert (running.ask(FIRST).status_code, running.ask(SECOND).status_code) == (401, 200)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_bad_file_changes_nothing(running: Reloaded) -> None:
    running.keys.write_text(f"{SECOND}\n")
    told = running.reload('[server]\nqueue = "many"\n')
    assert "Not reloaded, the old settings stay: server.queue" in told
    assert (running.ask(FIRST).status_code, running.ask(SECOND).status_code) == (200, 401)
    assert "nested too deeply" in running.reload(f"[presets]\na = {'[' * 5000}{']' * 5000}\n")
    running.keys.unlink()
    assert "auth.keys_file" in running.reload("")
    assert running.ask(FIRST).status_code == 200


def test_keys_never_go_away_by_a_reload(running: Reloaded) -> None:
    """1. The keys file is emptied. 2. The settings name none. Result: the known key is needed."""
    running.keys.write_text("# nothing\n")
    assert "has no keys" in running.reload("")
    assert (running.ask().status_code, running.ask("none").status_code) == (200, 401)
    running.keys.write_text(f"{FIRST}\n")
    running.daemon.config.write_text("")
    before = len(running.daemon.told)
    running.daemon.signal(signal.SIGHUP)
    running.peer.hear("RELOADING=1")
    running.peer.hear("READY=1")
    assert "The API keys are gone" in running.daemon.told[before:]
    assert (running.ask().status_code, running.ask("none").status_code) == (200, 401)


def test_settings_change_while_it_runs(running: Reloaded) -> None:
    """Each is seen from outside, then the log names what needs a restart."""
    running.ask()
    told = running.reload(
        "[server]\nqueue = 9\nmax_body = 200\nport = 1\n"
        "[sessions]\npolicy = 'fork'\n[model]\nstrict_name = true\n"
        "[log]\nlevel = 'debug'\n[store]\nquota = '1MiB'\n"
        "[presets.fast]\ntemperature = 0.5\n"
    )
    live = "server.max_body, server.queue, model.strict_name, sessions.policy, presets"
    assert all(key in told for key in live.split(", "))
    headers = {"Authorization": f"Bearer {FIRST}"}
    http = running.daemon.http
    http.headers.update(headers)
    assert http.post("/v1/chat/completions", json={**CHAT, "user": "x" * 200}).status_code == 413
    assert http.post("/v1/chat/completions", json={**CHAT, "model": "m"}).status_code == 404
    assert http.post("/v1/chat/completions", json={**CHAT, "model": "fast"}).status_code == 200
    assert http.get("/v1/sessions/a").json()["policy"] == "fork"
    assert http.get("/health").json()["disk_quota"] == 1 << 20


def test_nothing_opens_by_a_file_that_is_only_half_applied() -> None:
    """Keys go and the host becomes loopback: the host that is listened on stays, so keys must."""
    running = Config(server=Server(host="0.0.0.0"))
    found = difference(running, Config(auth=Auth(keys_file="")))
    assert found.config.server.host == "0.0.0.0"
    with pytest.raises(ConfigError) as refusal:
        found.config.check()
    assert refusal.value.param == "server.host"
