"""`sessiond init`: a file of settings, commented, with what fits this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sessiond.cli.choosing import Chosen, Machine, choose
from sessiond.cli.options import AsJson
from sessiond.cli.output import Cell, Column, note, print_json, print_table
from sessiond.errors import ConfigError

SYSTEM = Path("/etc/sessiond/config.toml")
"""Whom the service runs as, where it is installed."""
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Where to write. Without it: /etc/sessiond/config.toml as root, else "
        "~/.config/sessiond/config.toml.",
    ),
]
ModelFile = Annotated[
    Path | None,
    typer.Option("--model", metavar="GGUF", help="The model to serve, instead of one found."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]


def init(
    file: File = None, model: ModelFile = None, force: Force = False, as_json: AsJson = False
) -> None:
    """Write a file of settings with what this machine has.

    Every setting stands in it with its meaning, the defaults commented out. Set are: a model that
    fits (see `sessiond models`), threads, GPU layers, the format of the KV cache, the disk quota,
    and that only this machine may connect.
    """
    from sessiond.config.written import written

    path = (file or default_path()).expanduser().absolute()
    _refuse_existing(path, force)
    chosen = choose(Machine.observe(), model)
    text = written(chosen.config, chosen.reasons)
    write_private(path, text, force=force)
    if as_json:
        print_json({"file": str(path), "chosen": _document(chosen)})
    else:
        _print(path, chosen)


def default_path() -> Path:
    import platformdirs

    if os.geteuid() == 0:
        return SYSTEM
    return platformdirs.user_config_path("sessiond") / "config.toml"


def write_private(path: Path, text: str, *, force: bool) -> None:
    """For this user only, the machine's own for all to read; whole or not at all. Never follows a
    link at `path`
    and replaces nothing unless `force`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o755 if path == SYSTEM else 0o700, parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                os.fchmod(descriptor, 0o644 if path == SYSTEM else 0o600)
                opened.write(text)
                os.fsync(opened.fileno())
            if force:
                partial.replace(path)
            else:
                os.link(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.",
            hint="Give a place this user may write to, with --file.",
            param="--file",
        ) from error


def _refuse_existing(path: Path, force: bool) -> None:
    if not force and (path.exists() or path.is_symlink()):
        raise _exists(path)


def _exists(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is there already, and was not touched.",
        hint="Replace it with --force, or write elsewhere with --file.",
        param="--file",
    )


def _document(chosen: Chosen) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": chosen.value(key), "reason": reason}
        for key, reason in chosen.reasons.items()
    ]


def _print(path: Path, chosen: Chosen) -> None:
    from sessiond.config.written import toml

    print(f"Wrote {path}")
    rows = [
        [Cell(key, "bold"), Cell(toml(chosen.value(key))), Cell(reason)]
        for key, reason in chosen.reasons.items()
    ]
    print_table(
        (Column(""), Column("", shrink="wrap", least=16), Column("", shrink="wrap", least=24)), rows
    )
    for remark in chosen.remarks:
        note(remark)
    place = "" if _is_found(path) else f" --config {path}"
    if chosen.config.model.path:
        print(f"\nNext:\n  sessiond doctor{place}\n  sessiond serve{place}")
    else:
        print(
            "\nNo model was found. Next:\n"
            f'  put its path into {path}, under [model], as path = "/path/to/model.gguf"\n'
            f"  sessiond serve{place}"
        )


def _is_found(path: Path) -> bool:
    from sessiond.config.sources import find_file

    try:
        return find_file() == path
    except ConfigError:
        return False
