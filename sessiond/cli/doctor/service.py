"""The systemd unit, where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sessiond.cli.doctor.finding import Finding, note, ok, problem, warning

UNIT = "sessiond.service"
_ASKED = ("LoadState", "ActiveState", "SubState", "UnitFileState", "NRestarts", "LimitMEMLOCK")
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Facts:
    """systemd's properties of the unit by name, empty without systemd or a unit. `user`: it is one
    of the user's own.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    user: bool = False

    @property
    def is_the_machines(self) -> bool:
        """The machine's own service runs: what it keeps is where its unit says."""
        return not self.user and self.properties.get("ActiveState") == "active"

    @property
    def systemctl(self) -> str:
        return "systemctl --user" if self.user else "systemctl"


def observe() -> Facts:
    """The system's unit, else the user's own."""
    system = Facts(_show([]))
    if system.properties or os.geteuid() == 0:
        return system
    return Facts(_show(["--user"]), user=True)


def judge(facts: Facts) -> Iterator[Finding]:
    told = facts.properties
    if not told:
        return
    state = f"{told.get('ActiveState', '?')} ({told.get('SubState', '?')})"
    journal = f"journalctl {'--user ' if facts.user else ''}-u {UNIT} -e"
    if told.get("ActiveState") == "failed":
        yield problem("service", state, "systemd has given up on it.", journal)
    elif told.get("ActiveState") != "active":
        yield note("service", state, "", f"{facts.systemctl} start {UNIT}")
    else:
        yield ok("service", state)
    if told.get("NRestarts", "0") not in ("", "0"):
        yield warning(
            "service",
            f"restarted {told['NRestarts']} times by systemd",
            "It has crashed or was not healthy; conversations are complete.",
            journal,
        )
    if told.get("UnitFileState") == "disabled":
        yield note("service", "not started on boot", "", f"{facts.systemctl} enable {UNIT}")
    if told.get("LimitMEMLOCK", "infinity") != "infinity":
        yield note("service", f"LimitMEMLOCK={told['LimitMEMLOCK']}", "", "LimitMEMLOCK=infinity")


def _show(how: list[str]) -> dict[str, str]:
    program = shutil.which("systemctl")
    if program is None:
        return {}
    command = [program, *how, "show", UNIT, f"--property={','.join(_ASKED)}"]
    try:
        told = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition("=") for line in told.stdout.splitlines())
    found = {name: value for name, separator, value in pairs if separator}
    return found if found.get("LoadState") == "loaded" else {}
