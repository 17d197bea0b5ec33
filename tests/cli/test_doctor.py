"""`sessiond doctor`: each check by what it says of fabricated facts, then what is really seen."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sessiond.cli.doctor import (
    agents,
    clock,
    codec,
    disk,
    gpu,
    model,
    network,
    permissions,
    running,
    service,
    staging,
    template,
)
from sessiond.cli.doctor import config as settings
from sessiond.cli.doctor.finding import Finding, Status, note, ok, problem, warning, worst
from sessiond.cli.machine import Memory
from sessiond.config import Config, Model, Server, Store
from sessiond.engine.gguf import read_header
from sessiond.engine.gguf_model import GgufModel, model_of
from sessiond.sessions.turn import Health
from sessiond.units import Share
from tests.cli.conftest import Cli
from tests.cli.fake_daemon import Daemon, free_url, health
from tests.gguf_files import write

MIB, GIB = 1 << 20, 1 << 30


def one(findings: Any) -> Finding:
    (finding,) = findings
    assert isinstance(finding, Finding)
    return finding


def sick(finding: Finding, status: str, found: str = "", mend: str = "") -> None:
    """Not well, and then it says what follows and what to do."""
    assert finding.status == status, finding
    assert found in finding.found, finding
    assert finding.meaning, finding
    assert mend in finding.mend, finding
    assert finding.mend, finding


def test_the_worst_of_all_is_the_result() -> None:
    every = [ok("a", ""), note("b", ""), warning("c", "", "m"), problem("d", "", "m")]
    assert [worst(every[:n]) for n in range(5)] == ["ok", "ok", "note", "warning", "problem"]


def test_settings() -> None:
    assert one(settings.judge(settings.Facts(None, Config()))).status is Status.OK
    bad = settings.Facts(None, Config(), "server.prot is not a setting.", "Did you mean port?")
    sick(one(settings.judge(bad)), "problem", "server.prot", "Did you mean port?")


def test_settings_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[server]\nprot = 1\n")
    facts = settings.observe(str(file))
    assert facts.file == file
    assert facts.error.startswith("server.prot is not a setting")
    assert "server.port" in facts.hint
    assert settings.observe(str(tmp_path / "none")).error


def healthy(**changes: Any) -> Health:
    return Health(**(health() | changes))


def test_daemon() -> None:
    def status(**changes: Any) -> list[Finding]:
        return list(running.judge(running.Facts("http://x", **changes)))

    assert one(status()).status is Status.NOTE
    assert one(status(health=healthy())).status is Status.OK
    assert one(status(health=healthy(status="loading"))).status is Status.NOTE
    sick(one(status(health=healthy(status="failed", detail="no"))), "problem", "no")
    sick(one(status(error="answered 404")), "problem", "404")
    sick(one(status(pid=7)), "warning", "process 7", "--url")
    _, unsaved = status(health=healthy(unsaved_turns=2, detail="disk full"))
    sick(unsaved, "problem", "2 turns only in memory: disk full")
    _, told = status(health=healthy(detail="State is not saved: disk full."))
    assert (told.status, told.found) == ("warning", "State is not saved: disk full.")


def test_a_daemon_is_found_where_the_settings_have_it(daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers["GET /health"] = health()
    port = int(daemon.url.rpartition(":")[2])
    found = running.observe(Config(server=Server(host="0.0.0.0", port=port)), tmp_path, None)
    assert found.health == healthy()
    assert found.configured
    assert not running.observe(Config(), tmp_path, daemon.url).configured
    (tmp_path / "daemon.pid").write_text(f"{os.getpid()}\n")
    silent = running.observe(Config(), tmp_path, free_url())
    assert (silent.pid, silent.health, silent.is_running) == (os.getpid(), None, True)
    for nobody in ("99999999999999999999", "4194305", "x"):
        (tmp_path / "daemon.pid").write_text(nobody)
        assert not running.observe(Config(), tmp_path, free_url()).is_running


@pytest.fixture
def tiny(tmp_path: Path) -> GgufModel:
    return model_of([read_header(write(tmp_path / "m.gguf"))])


def test_model(tiny: GgufModel) -> None:
    large = replace(tiny, size=4 * GIB)
    facts = model.Facts("/m.gguf", Memory(16 * GIB, 8 * GIB), large)
    assert [each.status for each in model.judge(facts)] == ["ok", "ok"]
    assert "attention memory" in next(model.judge(facts)).found
    _, memory = model.judge(replace(facts, memory=Memory(16 * GIB, 3 * GIB)))
    sick(memory, "warning", "needs about 4.0 GiB", "q8_0")
    _, memory = model.judge(replace(facts, memory=Memory(16 * GIB, 3 * GIB), loaded=True))
    assert memory.status is Status.OK
    _, memory = model.judge(replace(facts, memory=Memory(16 * GIB, 3 * GIB, gpu=8 * GIB)))
    assert memory.status is Status.OK
    missing = model.Facts(
        "/none.gguf", Memory(1, 1), error="model.path: /none.gguf does not exist."
    )
    sick(one(model.judge(missing)), "problem", "does not exist", "sessiond models")
    by_flag = one(model.judge(replace(missing, served="smol")))
    assert (by_flag.status, "the daemon serves smol" in by_flag.found) == ("note", True)


def test_a_context_is_what_fits_the_model_and_the_settings(tiny: GgufModel) -> None:
    facts = model.Facts("", Memory(GIB, GIB), tiny)
    assert facts.context == tiny.n_ctx_train == 4096
    assert replace(facts, tokens=1000).context == 1000
    assert replace(facts, tokens=9999).context == 4096
    assert replace(facts, memory=Memory(0, tiny.size + 6000 * 256)).context == 3000
    assert replace(facts, model=None).context == 0


def test_the_model_is_read_from_its_file(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf")
    told = Config(model={"path": str(file), "n_ctx": 7})  # type: ignore[arg-type]
    facts = model.observe(told, Memory(1, 1), loaded=True)
    assert facts.model is not None
    assert (facts.model.architecture, facts.tokens, facts.loaded) == ("llama", 7, True)
    file.write_bytes(b"<html>")
    assert "does not begin" in model.observe(told, Memory(1, 1), loaded=False).error
    assert "not set" in model.observe(Config(), Memory(1, 1), loaded=False).error


def test_context_against_agents() -> None:
    def said(tokens: int, trained: int = 10**6) -> Finding:
        return one(agents.judge(agents.Facts(tokens, trained)))

    assert said(200_000).status is Status.OK
    tight = said(30_000)
    sick(tight, "note", "Claude Code 17,900", "model.n_ctx")
    assert tight.meaning == "Claude Code must compact very soon."
    small = said(8192, 8192)
    sick(small, "warning", "about 8,192 tokens", "a model trained for more than 8,192")
    assert "Claude Code, Qwen Code and Codex cannot begin" in small.meaning
    assert list(agents.judge(agents.Facts(0))) == []
    assert "about" not in one(agents.judge(agents.Facts(8192, measured=True))).found.split(";")[0]


CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function | tojson }}</tool_call>\
{% endif %}<|im_end|>
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<|im_start|>assistant
"""
APPENDING = CHATML.replace("{% if tools %}{{ tools | tojson }}{% endif %}", "").replace(
    "{% for", "{% if tools %}{{ tools | tojson }}{% endif %}{% for", 1
)
REPEATING = (
    "{% for m in messages %}{% if loop.last %}{{ messages[0].content }}{% endif %}"
    "[{{ m.content }}]{% endfor %}"
)


def test_template() -> None:
    def said(source: str, **changes: Any) -> dict[str, Finding]:
        return {each.check: each for each in template.judge(template.observe(source, **changes))}

    good = said(APPENDING)
    assert {each.status for each in good.values()} == {"ok"}
    assert "only what is new" in good["template"].found
    assert "reasoning" in said(APPENDING + "{# <think> #}")["tools"].found
    assert "chat_template_file" in said(APPENDING, given=True)["template"].found
    plain = said("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}")
    assert plain["tools"].status is Status.NOTE
    sick(said(REPEATING)["template"], "warning", "repeats the front")
    sick(said("{% for")["template"], "problem", "cannot be compiled")
    sick(said("{{ raise_exception('never') }}")["template"], "problem", "never")
    sick(said("")["template"], "problem", "none")
    sick(said("{{ messages.__class__ }}")["template"], "problem", "not allowed")


def test_codec(tmp_path: Path) -> None:
    assert one(codec.judge(codec.Facts("blocks", "", "daemon"))).status is Status.OK
    whole = codec.Facts("whole", "logits are 40% off", "self-test")
    sick(one(codec.judge(whole)), "warning", "logits are 40% off")
    unknown = one(codec.judge(codec.observe(Config(), tmp_path, None, deep=False)))
    assert (unknown.status, "--deep" in unknown.mend) == ("note", True)
    verdict = {"codec": "blocks", "detail": "", "token_bytes": 1, "snapshot_bytes": 9}
    (tmp_path / "codec.json").write_text(json.dumps({"key": verdict | {"window_token_bytes": 0}}))
    assert codec.observe(Config(), tmp_path, None, deep=False) == codec.Facts(
        "blocks", "", "last start", 9
    )
    told = codec.observe(Config(), tmp_path, healthy(codec="whole", codec_detail="no"), deep=True)
    assert told == codec.Facts("whole", "no", "daemon", 9)
    for damage in ("", "[]", "{}", '{"a": 1}', '{"a": {"codec": 1}}'):
        (tmp_path / "codec.json").write_text(damage)
        assert codec.observe(Config(), tmp_path, None, deep=False) == codec.Facts()


def test_deep_runs_the_self_test(models: Any, tmp_path: Path) -> None:
    told = Config(model={"path": str(models("recurrent"))})  # type: ignore[arg-type]
    facts = codec.observe(told, tmp_path, None, deep=True)
    assert (facts.codec, facts.source) == ("blocks", "self-test")
    assert facts.snapshot_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert "not set" in codec.observe(Config(), tmp_path, None, deep=True).detail


def test_staging() -> None:
    def said(kind: str, limit: int, needed: int = 40 * MIB, **changes: Any) -> list[Finding]:
        return list(staging.judge(staging.Facts(kind, "mlock: no", limit, needed, **changes)))

    pageable, memlock = said("pageable", 8 * MIB), said("", 8 * MIB)
    sick(pageable[0], "warning", "mlock: no", "ulimit -l unlimited")
    assert len(pageable) == 1
    sick(one(memlock), "warning", "8.0 MiB may be locked, 40.0 MiB needed", "LimitMEMLOCK")
    assert one(said("", 40 * MIB)).status is Status.OK
    assert one(said("", staging.UNLIMITED)).status is Status.OK
    assert one(said("", 0, privileged=True)).status is Status.OK
    assert one(said("device", 0)).check == "staging"
    assert one(said("none", 0)).status is Status.OK
    assert [each.check for each in said("locked", 80 * MIB)] == ["staging", "memlock"]


def test_the_limit_of_locked_memory_is_that_of_the_daemon() -> None:
    mine, parents = (staging.observe("", "", 5, pid) for pid in (None, os.getpid()))
    assert mine == parents
    assert mine.needed == 10
    assert staging.observe("", "", 5, 4194305).limit == mine.limit


def test_disk() -> None:
    def said(**changes: Any) -> Finding:
        fields = {"free": 100, "used": 0, "quota": 40, "keep_free": 10} | changes
        scaled = {key: value * GIB for key, value in fields.items()}
        return next(disk.judge(disk.Facts(Path("/c"), **scaled)))

    assert said().status is Status.OK
    assert said(quota=90).status is Status.OK
    sick(said(quota=91), "note", "100.0 GiB free", 'store.quota = "90GiB"')
    assert said(quota=95, used=5).status is Status.OK
    sick(said(free=10), "problem", "10.0 GiB free", "store.keep_free")


def test_the_speed_of_the_disk_is_told_and_not_judged() -> None:
    def said(**changes: Any) -> Finding:
        *_, last = disk.judge(disk.Facts(Path("/c"), GIB, 0, 0, 0, **changes))
        return last

    slow = said(speed=disk.Speed(1.0, 2.0, True))
    assert (slow.status, slow.found) == ("ok", "1 Byte/s written, 2 Bytes/s read")
    sick(said(speed=disk.Speed(GIB, GIB, False)), "problem", "not what was written", "smartctl")
    assert said(why="the daemon is answering").status is Status.NOTE


def test_measuring_leaves_nothing_and_is_bounded(tmp_path: Path) -> None:
    told = Config(store=Store(quota="20%", keep_free=1))  # type: ignore[arg-type]
    facts = disk.observe(told, tmp_path, used=0, busy=False)
    assert facts.speed is not None
    assert facts.speed.sound
    assert min(facts.speed.write, facts.speed.read) > 0
    assert list(tmp_path.iterdir()) == []
    assert facts.quota == Share(20).of(facts.free)
    full = Config(store=Store(keep_free=facts.free + GIB))
    assert disk.observe(full, tmp_path, used=0, busy=False).why == "there is no room"
    assert disk.observe(told, tmp_path, used=0, busy=True).why == "the daemon is answering"
    fresh = disk.observe(told, tmp_path / "a/b", used=0, busy=False)
    assert (fresh.speed, fresh.free > 0) == (None, True)
    assert "first start" in fresh.why
    assert not (tmp_path / "a").exists()


def test_at_most_64_mib_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(disk, "measure", lambda directory, size: sizes.append(size))
    disk.observe(Config(store=Store(keep_free=0)), tmp_path, used=0, busy=False)
    assert sizes == [64 * MIB]


def test_gpu() -> None:
    def said(**changes: Any) -> list[Finding]:
        fields = {"present": "", "offloads": False, "layers": -1, "version": "0.3.36"} | changes
        return list(gpu.judge(gpu.Facts(**fields)))  # type: ignore[arg-type]

    assert [each.status for each in said()] == ["ok", "ok"]
    sick(said(present="cuda")[1], "warning", "built without cuda", "make run GPU=cuda")
    assert said(present="cuda", offloads=True)[1].status is Status.OK
    assert said(present="cuda", offloads=True, layers=0)[1].status is Status.NOTE
    sick(one(said(version="", error="no libllama.so")), "problem", "no libllama.so", "make run")
    assert gpu.observe(3, flash=True).version.startswith("0.")


@pytest.mark.parametrize(
    ("present", "offloads", "layers", "flash", "told"),
    [
        ("", False, -1, True, True),
        ("", False, -1, False, False),
        ("cuda", False, -1, True, True),
        ("cuda", True, 0, True, True),
        ("cuda", True, -1, True, False),
    ],
)
def test_flash_attention_is_noted_where_the_cpu_computes(
    present: str, offloads: bool, layers: int, flash: bool, told: bool
) -> None:
    facts = gpu.Facts(present, offloads, layers, "0.3.36", flash=flash)
    found = [each for each in gpu.judge(facts) if each.check == "attention"]
    assert [(each.status, each.mend) for each in found] == (
        [(Status.NOTE, "model.flash_attn = false")] if told else []
    )


def test_flash_attention_that_a_quantised_cache_needs_is_not_noted() -> None:
    assert Model(path="m.gguf").flash_attn_is_optional
    assert not Model(path="m.gguf", type_v="q8_0").flash_attn_is_optional
    assert not Model(path="m.gguf", flash_attn=False).flash_attn_is_optional


def test_port_and_socket(tmp_path: Path) -> None:
    def said(**changes: Any) -> list[Finding]:
        fields = {"host": "127.0.0.1", "port": 8484, "ours": False} | changes
        return list(network.judge(network.Facts(**fields)))  # type: ignore[arg-type]

    assert [each.status for each in said()] == ["ok", "ok"]
    sick(said(refusal="Address already in use")[0], "problem", "in use", "ss -ltnp")
    assert said(exposed=True)[0].status is Status.NOTE
    there = {"socket": tmp_path / "s", "ours": True}
    assert said(socket_mode=0o660, **there)[1].status is Status.OK
    sick(said(socket_mode=0o666, **there)[1], "problem", "0666", "chmod 660")
    left = said(socket=tmp_path / "s", socket_mode=0o660)[1]
    assert (left.status, "left by" in left.found) == ("note", True)


def test_a_port_in_use_is_seen_and_ours_is_left_alone(tmp_path: Path, free_port: int) -> None:
    told = Config(server=Server(port=free_port, uds=str(tmp_path / "s")))
    assert network.observe(told, running=False).refusal == ""
    with socket.socket() as other, socket.socket(socket.AF_UNIX) as unix:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        unix.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0o606)
        facts = network.observe(told, running=False)
        assert str(free_port) in facts.refusal
        assert facts.socket_mode == 0o606
        assert network.observe(told, running=True).refusal == ""


def test_permissions(tmp_path: Path) -> None:
    state, cache, keys = tmp_path / "state", tmp_path / "cache", tmp_path / "keys"
    for directory in (state, cache):
        directory.mkdir(mode=0o700)
    for file in (keys, state / "ledger.sqlite"):
        file.touch(mode=0o600)
    (state / "link").symlink_to("/etc/passwd")

    def said() -> list[Finding]:
        return list(permissions.judge(permissions.observe(None, keys, state, cache)))

    assert one(said()).status is Status.OK
    (state / "ledger.sqlite").chmod(0o640)
    sick(one(said()), "problem", "ledger.sqlite has mode 0640", f"chmod go-rwx {state}/ledger")
    state.chmod(0o755)
    sick(one(said()), "problem", "0755 and 1 more", f"chmod go-rwx -R {state}")
    keys.chmod(0o604)
    assert "keys" in said()[0].meaning
    assert one(permissions.judge(permissions.observe(None, None, tmp_path / "x", tmp_path / "y")))
    config = permissions.Entry("config", Path("/c"), 0o644, False)
    assert one(permissions.judge([config])).status is Status.OK
    config = permissions.Entry("config", Path("/c"), 0o664, False)
    sick(one(permissions.judge([config])), "problem", "/c has mode 0664", "chmod go-w /c")


def test_keys_that_a_start_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one two three\n")
    monkeypatch.setenv("SESSIOND_AUTH__KEYS_FILE", str(keys))
    sick(one(settings.judge(settings.observe(None))), "problem", "line 1, has more than two")


def test_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(year: int, synchronised: bool | None) -> Finding:
        return one(clock.judge(clock.Facts(datetime(year, 1, 1, tzinfo=UTC), synchronised)))

    assert said(2026, True).status is Status.OK
    assert said(2026, None).status is Status.NOTE
    sick(said(2026, False), "warning", "not synchronised", "timedatectl")
    sick(said(1970, True), "problem", "1970", "timedatectl")
    program = tmp_path / "timedatectl"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clock.synchronised() is None
    for answer, told in {"yes": True, "no": False, "": None}.items():
        program.write_text(f"#!/bin/sh\necho {answer}\n")
        program.chmod(0o755)
        assert clock.synchronised() is told


def test_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(**changes: str) -> list[Finding]:
        running = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
        return list(service.judge(service.Facts(running | changes)))

    assert list(service.judge(service.Facts())) == []
    assert one(said()).status is Status.OK
    sick(one(said(ActiveState="failed")), "problem", "failed", "journalctl -u sessiond")
    assert one(said(ActiveState="inactive")).mend == "systemctl start sessiond.service"
    sick(said(NRestarts="3")[1], "warning", "restarted 3 times")
    assert "enable" in said(UnitFileState="disabled")[1].mend
    assert said(LimitMEMLOCK="8388608")[1].status is Status.NOTE
    monkeypatch.setenv("PATH", str(tmp_path))
    assert service.observe() == service.Facts(user=os.geteuid() != 0)
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\necho LoadState=loaded\necho ActiveState=active\n")
    program.chmod(0o755)
    assert service.observe().properties["ActiveState"] == "active"
    program.write_text("#!/bin/sh\necho LoadState=not-found\n")
    assert service.observe().properties == {}


def checks(cli: Cli, *arguments: str) -> dict[str, Finding]:
    told = cli.quick("doctor", *arguments, "--json").json
    found = [Finding(**each) for each in told["findings"]]
    assert told["worst"] == worst([replace(f, status=Status(f.status)) for f in found])
    assert [asdict(each) for each in found] == told["findings"]
    return {each.check: each for each in found}


def test_without_a_daemon(cli: Cli, tmp_path: Path, free_port: int) -> None:
    file, target = write(tmp_path / "m.gguf"), tmp_path / "c.toml"
    target.write_text(
        f'[server]\nport = {free_port}\nuds = "off"\n[model]\npath = "{file}"\n'
        f'[store]\nkeep_free = 0\ndir = "{tmp_path}"\n'
    )
    target.chmod(0o600)
    before = sorted(tmp_path.rglob("*"))
    found = checks(cli, "--config", str(target))
    assert {each.check for each in found.values()} >= {"config", "daemon", "model", "memory"} | {
        *("context", "template", "tools", "codec", "memlock", "llama.cpp", "gpu"),
        *("disk", "disk speed", "port", "socket", "permissions", "clock"),
    }
    assert found["daemon"].status == "note"
    assert found["model"].status == "ok"
    assert found["context"].status == "warning"
    assert found["port"].found == f"127.0.0.1 port {free_port}, free"
    assert found["disk speed"].status == "ok"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_problem_ends_with_1_and_says_what_mends_it(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "c.toml"
    target.write_text("[server]\nprot = 1\n")
    ran = cli.quick("doctor", "--config", str(target), "--url", free_url())
    assert ran.code == 1
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0].startswith("problem")
    assert "server.prot is not a setting" in lines[0]
    assert lines[2].strip() == "Do: Did you mean server.port?"
    assert re.fullmatch(r"\d+ problems, \d+ warnings?, \d+ notes?\.", lines[-1])


def test_a_running_daemon_is_asked_and_not_disturbed(
    cli: Cli, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["GET /health"] = health(
        n_ctx=65536,
        n_ctx_train=131072,
        staging="device",
        codec="whole",
        codec_detail="no",
        running=1,
    )
    monkeypatch.setattr(codec, "probe", lambda settings: pytest.fail("a second model"))
    monkeypatch.setattr(disk, "measure", lambda directory, size: pytest.fail("writes"))
    file, target = write(tmp_path / "m.gguf"), tmp_path / "c.toml"
    port = daemon.url.rpartition(":")[2]
    target.write_text(
        f'[server]\nport = {port}\n[model]\npath = "{file}"\n[store]\ndir = "{tmp_path}"\n'
    )
    found = checks(cli, "--config", str(target), "--deep")
    assert found["daemon"].status == "ok"
    assert found["staging"].found == "pinned by the GPU's driver"
    assert found["codec"].found == "whole (daemon): no"
    assert found["context"].found.startswith("65,536 tokens")
    assert "in use by the daemon" in found["port"].found
    assert found["disk speed"].found == "not measured: the daemon is answering"


def test_no_model_is_loaded_beside_a_daemon_that_does_not_answer(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "probe", lambda settings: pytest.fail("a second model"))
    (tmp_path / "daemon.pid").write_text(f"{os.getpid()}\n")
    file, target = write(tmp_path / "m.gguf"), tmp_path / "c.toml"
    target.write_text(f'[server]\nstate_dir = "{tmp_path}"\n[model]\npath = "{file}"\n')
    found = checks(cli, "--config", str(target), "--url", free_url(), "--deep")
    assert f"process {os.getpid()}" in found["daemon"].found
    assert found["codec"].status == "note"


def test_the_report_fits_a_terminal(cli: Cli, tmp_path: Path) -> None:
    with cli.terminal("doctor", "--url", free_url(), NO_COLOR="1") as shown:
        assert shown.finish() == 1
    assert max(map(len, shown.lines())) <= 80
    assert "Do: sessiond models" in " ".join(" ".join(shown.lines()).split())
