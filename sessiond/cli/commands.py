"""Which command is where. A command's module is imported when it is run, so that all start fast."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

PLACES = {
    "serve": "serve:serve",
    "list": "listing:list_sessions",
    "ls": "listing:list_sessions",
    "show": "show:show",
    "resume": "resume:resume",
    "new": "sessions:new",
    "set": "rules:set_rules",
    "fork": "fork:fork",
    "rename": "rename:rename",
    "pin": "pin:pin",
    "unpin": "pin:unpin",
    "park": "sessions:park",
    "rm": "sessions:rm",
    "export": "export:export",
    "import": "import_:import_session",
    "explain": "explain:explain",
    "why": "explain:explain",
    "env": "env:env",
    "verify": "verify:verify",
    "key": "key:app",
    "doctor": "doctor.command:doctor",
    "init": "init:init",
    "models": "models:models",
    "top": "top:top",
    "version": "version:version",
}
HIDDEN = frozenset({"ls", "why"})


class Commands(UserDict[str, Any]):
    """Command name to command, in the order of help, each made when it is looked up."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(PLACES))

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        module, _, function = PLACES[name].partition(":")
        callback = getattr(import_module(f"sessiond.cli.{module}"), function)
        if isinstance(callback, typer.Typer):
            return _group(callback, name)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, hidden=name in HIDDEN)(callback)
        command = get_command(alone)
        if not isinstance(command, TyperCommand):
            raise TypeError(f"{name} is no command")
        return command


def _group(commands: typer.Typer, name: str) -> TyperGroup:
    """A command that has commands of its own."""
    group = get_command(commands)
    if not isinstance(group, TyperGroup):
        raise TypeError(f"{name} has no commands")
    group.name = name
    return group
