"""`sessiond serve`: every setting is an option, made from the settings themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, get_origin

import typer
from pydantic import BeforeValidator, PlainValidator
from pydantic.fields import FieldInfo

from sessiond.config.settings import Config
from sessiond.config.sources import load_config, scalar

SHORT = {
    "model.path": "--model",
    "server.host": "--host",
    "server.port": "--port",
    "server.uds": "--uds",
    "server.state_dir": "--state-dir",
    "model.n_ctx": "--n-ctx",
    "sessions.max_active": "--max-active",
}
TABLES = {"model.extra": "KEY=VALUE", "presets": "NAME.KEY=VALUE"}
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings file (TOML)."),
]


def serve(**values: Any) -> None:
    """Run the daemon.

    Every option is also a key of the settings file (--server-port is `port` under `[server]`) and a
    variable (SESSIOND_SERVER__PORT). Options win over variables, variables over the file. Sizes are
    written as 8GiB, shares as 20%, durations as 30s, 10m or 1h30m.
    """

    def read() -> Config:
        config = load_config(flags(values), file=values["config"])
        config.model.required_path()
        return config

    config = read()
    from sessiond.daemon import serve as run

    raise typer.Exit(run(config, read))


def settings() -> Iterator[tuple[str, FieldInfo, object]]:
    """Key, field and default as a person writes it, of every setting."""
    defaults = Config().model_dump(mode="json")
    for section, field in Config.model_fields.items():
        inner: dict[str, FieldInfo] | None = getattr(field.annotation, "model_fields", None)
        if inner is None:
            yield section, field, ""
            continue
        for name, setting in inner.items():
            yield f"{section}.{name}", setting, defaults[section][name]


def flags(values: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as `{section: {key: value}}`."""
    given: dict[str, Any] = {}
    for key, _, _ in settings():
        value = values.get(_parameter(key))
        if value is None:
            continue
        if key in TABLES:
            value = _table(key, value)
        section, _, name = key.partition(".")
        if name:
            given.setdefault(section, {})[name] = value
        else:
            given[section] = value
    return given


def _table(key: str, assignments: Iterable[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        *parents, last = path.split(".")
        if not equals or not all((*parents, last)) or len(parents) != TABLES[key].count("."):
            raise typer.BadParameter(
                f'write {TABLES[key]}, not "{assignment}"', param_hint=_flag(key)
            )
        inner = table.setdefault(parents[0], {}) if parents else table
        inner[last] = scalar(value)
    return table


def _option(key: str, field: FieldInfo, default: object) -> inspect.Parameter:
    kind = _kind(field)
    names = [*filter(None, [SHORT.get(key)]), _flag(key)]
    if kind is bool:
        names = [f"{_flag(key)}/--no-{_flag(key).removeprefix('--')}"]
    option = typer.Option(
        *names,
        metavar=_metavar(key, kind),
        help=f"{field.description} {_default(default)}".strip(),
        show_default=False,
    )
    return inspect.Parameter(
        _parameter(key),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _kind(field: FieldInfo) -> Any:
    """What typer checks by itself: numbers, switches and choices. The rest the settings check."""
    origin = get_origin(field.annotation)
    if origin in (dict, tuple):
        return list[str]
    if any(isinstance(each, BeforeValidator | PlainValidator) for each in field.metadata):
        return str
    return field.annotation


def _metavar(key: str, kind: Any) -> str | None:
    if key in TABLES:
        return TABLES[key]
    plain = kind is bool or get_origin(kind) is Literal
    return None if plain else key.rpartition(".")[2].upper()


def _default(default: object) -> str:
    if default in ("", [], {}):
        return ""
    return f"Default: {str(default).lower() if isinstance(default, bool) else default}."


def _flag(key: str) -> str:
    return f"--{key.replace('.', '-').replace('_', '-')}"


def _parameter(key: str) -> str:
    return key.replace(".", "__")


def _signature() -> inspect.Signature:
    config = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile
    )
    options = [_option(*setting) for setting in settings()]
    common = [option for option in options if _short(option.name)]
    others = [option for option in options if not _short(option.name)]
    return inspect.Signature([config, *common, *others])


def _short(parameter: str) -> bool:
    return parameter.replace("__", ".") in SHORT


vars(serve)["__signature__"] = _signature()
