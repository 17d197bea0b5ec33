"""A failure with the field at fault under the name that the Responses API has for it."""

from __future__ import annotations

import re
from dataclasses import replace

from sessiond.api.failure import Failure

_PATHS = re.compile(r"(/s/[^/]*)?/v1/responses(/.*)?")


def is_responses(path: str) -> bool:
    """Whether `path` belongs to the Responses API."""
    return _PATHS.fullmatch(path) is not None


def named(failure: Failure) -> Failure:
    if failure.param is None:
        return failure
    param = failure.param.replace("response_format.json_schema.", "text.format.")
    return replace(failure, param=param.replace(".function.", "."))
