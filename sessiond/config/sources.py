"""Flags, variables and the TOML file become one Config; errors say where a key was set."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import InitSettingsSource, TomlConfigSettingsSource

from sessiond.config.presets import Preset
from sessiond.config.settings import Config
from sessiond.errors import ConfigError

PREFIX = "SESSIOND_"
SHORT_VARIABLES = {
    "SESSIOND_MODEL": "model.path",
    "SESSIOND_HOST": "server.host",
    "SESSIOND_PORT": "server.port",
    "SESSIOND_STATE_DIR": "server.state_dir",
}
FREE_FORM = ("model.extra", "presets")
_NOT_SETTINGS = ("SESSIOND_CONFIG", "SESSIOND_URL", "SESSIOND_API_KEY")

Values = dict[str, Any]


def load_config(
    flags: Values | None = None, *, file: str | None = None, check: bool = True
) -> Config:
    """Flag, environment, file, default, in this order. `flags` is `{section: {key: value}}`.

    `file` is `--config`; without it the usual places are searched, and none need exist.
    Raises ConfigError for unknown keys and bad values, and for what `Config.check` refuses unless
    `check` is false.
    """
    found = find_file(file)
    names = _variables()
    sources = (
        InitSettingsSource(Config, flags or {}),
        InitSettingsSource(Config, _nested(names)),
        _file_source(found),
    )
    try:
        config = Config(_build_sources=(sources, {}))
        if check:
            config.check()
    except ValidationError as error:
        refusal = _refusal(error.errors(include_url=False))
    except ConfigError as error:
        refusal = error
    else:
        return config
    raise _with_origin(refusal, flags or {}, names, found, sources[2]()) from None


def find_file(file: str | None = None) -> Path | None:
    """First of `--config`, $SESSIOND_CONFIG, /etc and the user's own; None where there is none."""
    for named, by in ((file, "--config"), (os.environ.get("SESSIOND_CONFIG"), "SESSIOND_CONFIG")):
        if named:
            path = Path(named).expanduser()
            if not path.is_file():
                raise ConfigError(f"{by}: there is no file {path}.", param="config")
            return path
    usual = (Path("/etc/sessiond"), platformdirs.user_config_path("sessiond"))
    return next((path for d in usual if (path := d / "config.toml").is_file()), None)


def scalar(text: str) -> object:
    """A value of a free-form table as TOML reads it (`0.7`, `true`, `[1, 2]`), else text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _file_source(path: Path | None) -> TomlConfigSettingsSource:
    try:
        return TomlConfigSettingsSource(Config, path)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", param="config") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply.", param="config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", param="config") from error


def _variables() -> dict[str, str]:
    """Keys set by variables: dotted key to variable name. The long name wins over the short one."""
    names = {key: short for short, key in SHORT_VARIABLES.items() if short in os.environ}
    for variable in os.environ:
        if not variable.startswith(PREFIX) or variable in (*SHORT_VARIABLES, *_NOT_SETTINGS):
            continue
        section, separator, key = variable.removeprefix(PREFIX).lower().partition("__")
        if not separator:
            raise _unknown_variable(variable)
        names[f"{section}.{key.replace('__', '.')}"] = variable
    return names


def _nested(names: Mapping[str, str]) -> Values:
    tree: Values = {}
    for key, variable in names.items():
        *parents, last = key.split(".")
        table = tree
        for parent in parents:
            table = table.setdefault(parent, {})
        text = os.environ[variable]
        table[last] = scalar(text) if key.startswith(FREE_FORM) else text
    return tree


def _refusal(errors: list[ErrorDetails]) -> ConfigError:
    error = errors[0]
    key = _key(error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(key)
    reason = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if error["type"] in ("dict_type", "model_type"):
        reason = "should be a table of settings"
    elif key.startswith("model.extra") and error["type"] != "value_error":
        reason = "should be a number, text, true or false"
    given = "" if error["type"] == "value_error" else f" = {_shown(error['input'])}"
    return ConfigError(f"{key}{given}: {reason.rstrip('.')}.", param=key)


def _key(location: tuple[int | str, ...]) -> str:
    """A union's error goes on with the member's name: only what a person wrote is kept."""
    parts = [str(part) for part in location if part != "[key]"]
    depth = 3 if parts[0] in ("presets",) or parts[:2] == ["model", "extra"] else 2
    return ".".join(parts[:depth])


def _unknown_key(key: str) -> ConfigError:
    section, name = _section(key)
    siblings = _siblings(section)
    close = _closest(name, [known.removeprefix(f"{section}.") for known in siblings])
    if close:
        hint = f"Did you mean {section}.{close[0]}?"
    elif guess := _elsewhere(section, name):
        hint = f"Did you mean {guess[0]}?"
    else:
        hint = f"There are: {', '.join(siblings or Config.model_fields)}."
    return ConfigError(f"{key} is not a setting.", hint=hint, param=key)


def _section(key: str) -> tuple[str, str]:
    """The table a key stands in, and its name there."""
    if key.startswith("presets."):
        section, _, name = key.rpartition(".")
    else:
        section, _, name = key.partition(".")
    return section, name


def _siblings(section: str) -> list[str]:
    if section.startswith("presets."):
        return [f"{section}.{name}" for name in Preset.model_fields]
    return [known for known in all_keys() if known.startswith(f"{section}.")]


def _elsewhere(section: str, name: str) -> list[str]:
    """The key in its right section, or the section that was meant."""
    same = [known for known in all_keys() if known.endswith(f".{name or section}")]
    sections = list(Config.model_fields)
    return same or ([] if section.partition(".")[0] in sections else _closest(section, sections))


def _closest(word: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(word, known, n=1)


def _unknown_variable(variable: str) -> ConfigError:
    known = [*SHORT_VARIABLES, *_NOT_SETTINGS, *(variable_of(key) for key in all_keys())]
    close = _closest(variable, known)
    hint = f"Did you mean {close[0]}?" if close else "Settings are named SESSIOND_SECTION__KEY."
    return ConfigError(f"The variable {variable} is not a setting.", hint=hint, param=variable)


def all_keys() -> list[str]:
    """Every `section.key`, in the order of the documentation."""
    keys: list[str] = []
    for section, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys += [f"{section}.{key}" for key in inner] if inner else [section]
    return keys


def variable_of(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def _with_origin(
    error: ConfigError, flags: Values, names: Mapping[str, str], file: Path | None, in_file: Values
) -> ConfigError:
    """The same error, saying where its key was set. A key left at its default has no origin."""
    key = error.param or ""
    if _has(flags, key):
        origin = f"flag --{key.replace('.', '-').replace('_', '-')}"
    elif variables := [names[known] for known in names if f"{known}.".startswith(f"{key}.")]:
        origin = f"variable {variables[0]}"
    elif file is not None and _has(in_file, key):
        origin = f"file {file}"
    else:
        return error
    message = f"{error.message.rstrip('.')} (set by {origin})."
    return ConfigError(message, hint=error.hint, param=key)


def _has(tree: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
