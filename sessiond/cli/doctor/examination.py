"""All topics in their order: what is seen first, then what it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.cli.doctor import (
    agents,
    clock,
    codec,
    config,
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
from sessiond.cli.doctor.finding import Finding
from sessiond.cli.machine import memory
from sessiond.directories import StateDirs


@dataclass(frozen=True, slots=True)
class Facts:
    """Of every topic. `template` None: there is no model to have one."""

    config: config.Facts
    running: running.Facts
    model: model.Facts
    agents: agents.Facts
    template: template.Facts | None
    codec: codec.Facts
    staging: staging.Facts
    gpu: gpu.Facts
    disk: disk.Facts
    network: network.Facts
    permissions: tuple[permissions.Entry, ...]
    clock: clock.Facts
    service: service.Facts


def observe(file: str | None, url: str | None, *, deep: bool) -> Facts:
    """Loads no model unless `deep`, and then only where no daemon runs."""
    settings = config.observe(file)
    unit, told = service.observe(), settings.config
    dirs = StateDirs.of_service() if unit.is_the_machines else told.directories()
    daemon = running.observe(told, dirs.state, url)
    health = daemon.health
    name = (health.model if health else None) or ""
    served = model.observe(told, memory(), loaded=daemon.is_running, served=name)
    saved = codec.observe(told, dirs.state, health, deep=deep and not daemon.is_running)
    snapshot = saved.snapshot_bytes or (served.model.line_bytes() if served.model else 0)
    return Facts(
        config=settings,
        running=daemon,
        model=served,
        agents=_room(served, daemon),
        template=_template(told.model.chat_template_file, served),
        codec=saved,
        staging=staging.observe(
            health.staging if health else "",
            health.staging_detail if health else "",
            snapshot,
            daemon.pid,
        ),
        gpu=gpu.observe(told.model.n_gpu_layers, flash=told.model.flash_attn_is_optional),
        disk=disk.observe(
            told,
            dirs.cache,
            used=health.disk_bytes if health else 0,
            busy=bool(health and (health.running or health.queued)),
        ),
        network=network.observe(told, running=daemon.is_running and daemon.configured),
        permissions=tuple(
            permissions.observe(settings.file, told.auth.keys_path(), dirs.state, dirs.cache)
        ),
        clock=clock.observe(),
        service=unit,
    )


def judge(facts: Facts) -> Iterator[Finding]:
    yield from config.judge(facts.config)
    yield from running.judge(facts.running)
    yield from model.judge(facts.model)
    yield from agents.judge(facts.agents)
    if facts.template is not None:
        yield from template.judge(facts.template)
    yield from codec.judge(facts.codec)
    yield from staging.judge(facts.staging)
    yield from gpu.judge(facts.gpu)
    yield from disk.judge(facts.disk)
    yield from network.judge(facts.network)
    yield from permissions.judge(facts.permissions)
    yield from clock.judge(facts.clock)
    yield from service.judge(facts.service)


def _room(served: model.Facts, daemon: running.Facts) -> agents.Facts:
    health = daemon.health
    if health is not None and health.n_ctx and health.n_ctx_train:
        limit = min(health.n_ctx, health.n_ctx_train)
        return agents.Facts(limit, health.n_ctx_train, measured=True)
    return agents.Facts(served.context, served.model.n_ctx_train if served.model else 0)


def _template(file: str, served: model.Facts) -> template.Facts | None:
    if file:
        try:
            return template.observe(Path(file).expanduser().read_text(), given=True)
        except (OSError, ValueError) as error:
            return template.Facts(present=True, error=f"{file} cannot be read: {error}", given=True)
    return template.observe(served.model.template) if served.model else None
