"""Which command is where. A command's module is imported when it is run, so that all start fast."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
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
    "park": "sessions:park",
    "rm": "sessions:rm",
    "explain": "explain:explain",
    "why": "explain:explain",
    "env": "env:env",
    "verify": "verify:verify",
    "top": "top:top",
    "version": "version:version",
}
HIDDEN = frozenset({"ls", "why"})


class Commands(UserDict[str, Any]):
    """Command name to command, in the order of help, each made when it is looked up."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(PLACES))

    def __getitem__(self, name: str) -> TyperCommand:
        module, _, function = PLACES[name].partition(":")
        callback = getattr(import_module(f"sessiond.cli.{module}"), function)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, hidden=name in HIDDEN)(callback)
        command = get_command(alone)
        if not isinstance(command, TyperCommand):
            raise TypeError(f"{name} is no command")
        return command
