"""The settings as a file for people: every key with its meaning, defaults commented out."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from sessiond.config.presets import Preset
from sessiond.config.settings import Config

WIDTH = 90
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEAD = """\
# Settings of sessiond. Lines that begin with "# " and a name show the defaults. Options of
# `sessiond serve` and variables (SESSIOND_SECTION__KEY) win over this file. Sizes are written as
# "8GiB", shares as "20%", durations as "30s", "10m" or "1h30m". Unknown keys refuse to start.
"""
_TABLES = {
    "extra": "main_gpu = 0\ntensor_split = [0.5, 0.5]\nuse_mlock = true",
    "presets": "enable_thinking = false\ntemperature = 0.7",
}
"""Examples of tables whose keys are free."""


def written(config: Config, reasons: Mapping[str, str] | None = None) -> str:
    """TOML that `load_config` reads as the same settings.

    `reasons`: why `section.key` has its value; such a key stands there even with its default.
    """
    told, default = _plain(config), _plain(Config())
    reasons = reasons or {}
    parts = [_HEAD]
    for section, field in Config.model_fields.items():
        inner: dict[str, FieldInfo] | None = getattr(field.annotation, "model_fields", None)
        if inner is None:
            parts.append("\n".join(_named_tables(section, field, told[section])))
            continue
        keys = {
            key: (f"{section}.{key}", setting)
            for key, setting in inner.items()
            if not isinstance(default[section][key], dict)
        }
        lines = [f"[{section}]"]
        for key, (full, setting) in keys.items():
            value = told[section][key]
            is_set = full in reasons or value != default[section][key]
            lines += _entry(key, setting, value, reasons.get(full, ""), is_set)
        for key in inner.keys() - keys.keys():
            lines += ["", *_free_table(f"{section}.{key}", key, inner[key], told[section][key])]
        parts.append("\n".join(lines))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _plain(config: Config) -> dict[str, Any]:
    plain: dict[str, Any] = config.model_dump(mode="json")
    return plain


def _entry(key: str, setting: FieldInfo, value: object, reason: str, is_set: bool) -> Iterator[str]:
    yield from _comment(f"{setting.description}{_choices(setting)}")
    if reason:
        yield from _comment(f"Here: {reason}")
    yield f"{'' if is_set else '# '}{key} = {toml(value)}"


def _comment(text: str) -> Iterator[str]:
    """With a mark that tells it from a key that is commented out."""
    yield from (f"## {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False))


def _choices(setting: FieldInfo) -> str:
    if get_origin(setting.annotation) is not Literal:
        return ""
    return f" One of: {', '.join(map(str, get_args(setting.annotation)))}."


def _free_table(name: str, key: str, setting: FieldInfo, values: dict[str, Any]) -> Iterator[str]:
    yield from _comment(str(setting.description))
    if not values:
        yield from (f"# {line}" for line in (f"[{name}]", *_TABLES[key].splitlines()))
        return
    yield f"[{name}]"
    yield from (f"{_key(each)} = {toml(value)}" for each, value in values.items())


def _named_tables(
    section: str, setting: FieldInfo, tables: dict[str, dict[str, Any]]
) -> Iterator[str]:
    yield from _comment(str(setting.description))
    yield from _comment(f"Keys: {', '.join(Preset.model_fields)}.")
    if not tables:
        yield from (f"# {line}" for line in (f"[{section}.fast]", *_TABLES[section].splitlines()))
    for name, values in tables.items():
        yield f"[{section}.{_key(name)}]"
        yield from (f"{_key(each)} = {toml(value)}" for each, value in values.items())


def toml(value: object) -> str:
    """A value on one line. Raises TypeError for what TOML does not have."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{value:+}"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {toml(each)}' for key, each in value.items())}}}"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml(name)
