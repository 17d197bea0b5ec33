"""SIGHUP: the settings are read again, and what can change while the daemon runs does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sessiond.config.settings import Config
from sessiond.config.sources import all_keys
from sessiond.errors import SessiondError

logger = logging.getLogger("sessiond")
LIVE = frozenset(
    {
        "server.allowed_hosts",
        "server.max_body",
        "server.queue",
        "server.load_wait",
        "server.drain",
        "auth.keys_file",
        "model.strict_name",
        "model.unload_after",
        "sessions.policy",
        "sessions.auto_policy",
        "sessions.max_rewind_tokens",
        "sessions.reasoning",
        "sessions.park",
        "sessions.pinned_front",
        "sessions.warm",
        "sessions.keep",
        "presets",
        "store.quota",
        "store.keep_free",
        "log.level",
        "log.format",
    }
)
"""Keys that hold from a reload on; all others need a restart."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Keys that have changed, and the settings in which only the live ones have."""

    config: Config
    live: tuple[str, ...]
    restart: tuple[str, ...]


def difference(running: Config, read: Config) -> Difference:
    """Pure."""
    changed = [key for key in all_keys() if _value(running, key) != _value(read, key)]
    live = tuple(key for key in changed if key in LIVE)
    restart = tuple(key for key in changed if key not in LIVE)
    return Difference(_with(running, read, live), live, restart)


class Reloading:
    """Event loop only."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        apply: Callable[[Difference], Iterable[str]],
    ) -> None:
        """`read` gives the settings as a start would find them. `apply` either applies all of a
        difference or raises; it names what has changed beside it, in files.
        """
        self._running = config
        self._read = read
        self._apply = apply
        self._lock = asyncio.Lock()

    async def reload(self) -> None:
        """What cannot be read or applied changes nothing, and is logged."""
        async with self._lock:
            try:
                found = difference(self._running, await asyncio.to_thread(self._read))
                applied = dict.fromkeys([*found.live, *self._apply(found)])
            except SessiondError as error:
                logger.error("Not reloaded, the old settings stay: %s", error)
                return
            except Exception:
                logger.exception("Not reloaded.")
                return
            self._running = found.config
            logger.info("Reloaded: %s.", ", ".join(applied) or "nothing has changed")
            if found.restart:
                logger.warning("Changed, but only a restart applies: %s.", ", ".join(found.restart))


def _value(config: Config, key: str) -> object:
    section, _, name = key.partition(".")
    value: object = getattr(config, section)
    return getattr(value, name) if name else value


def _with(running: Config, read: Config, keys: Iterable[str]) -> Config:
    """`running`, with what `read` has under `keys`."""
    for key in keys:
        section, _, name = key.partition(".")
        value = _value(read, key)
        if name:
            value = getattr(running, section).model_copy(update={name: value})
        running = running.model_copy(update={section: value})
    return running
