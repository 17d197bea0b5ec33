"""Presets: what holds for requests that choose one as their model and do not say it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from sessiond.api.template_options import template_options
from sessiond.config.presets import Preset
from sessiond.errors import ConfigError, InvalidRequest

Presets = Mapping[str, Preset]
R = TypeVar("R", bound=BaseModel)
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""What the APIs call the limit of a reply; a request has one or more of them."""


def read_presets(configured: Presets) -> Presets:
    """Those of the configuration. Raises ConfigError for options that no template takes."""
    for name, preset in configured.items():
        try:
            template_options(template_fields(preset))
        except InvalidRequest as error:
            param = f"presets.{name}.{error.param}"
            raise ConfigError(f"{param}: {error.message}", hint=error.hint, param=param) from error
    return configured


def with_preset(request: R, preset: Preset | None) -> R:
    """The request with the preset's values for the fields it has and leaves out, or gives as null.

    Any limit of the reply's length that the request gives stands for all of them.
    """
    if preset is None:
        return request
    given = request.model_dump(include={*_LIMITS}, exclude_none=True)
    left = {
        name: value
        for name, value in _values(preset, limited=bool(given), fields=type(request)).items()
        if getattr(request, name) is None
    }
    return request.model_copy(update=left) if left else request


def with_chosen(request: R, raw: Mapping[str, Any], presets: Presets) -> tuple[R, dict[str, Any]]:
    """The request with the preset that its model names, and the template's options of both.

    `raw` is the body as it came. Raises InvalidRequest as `template_options` does.
    """
    preset = presets.get(getattr(request, "model", None) or "")
    return with_preset(request, preset), template_options(raw, template_fields(preset))


def template_fields(preset: Preset | None) -> dict[str, Any]:
    """What `template_options` takes of it, beside the request."""
    names = {"enable_thinking", "reasoning_effort", "chat_template_kwargs"}
    return {} if preset is None else preset.model_dump(include=names, exclude_none=True)


def _values(preset: Preset, *, limited: bool, fields: type[BaseModel]) -> dict[str, Any]:
    values = preset.model_dump(exclude_none=True, exclude={*template_fields(preset)})
    limit = values.pop("max_tokens", None)
    if limit is not None and not limited:
        values |= dict.fromkeys(_LIMITS, limit)
    return {name: value for name, value in values.items() if name in fields.model_fields}
