"""A model's chat template: Jinja from a file nobody has reviewed, so it runs in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from sessiond.chat.metering import MeteredEnvironment, bounded
from sessiond.chat.weighing import check_time, metered, work
from sessiond.errors import TemplateError

OTHER_TEMPLATE = "Another template can be given with --model-chat-template-file FILE."

WIDEST_INDENT = 16
"""Characters before each level of JSON, and between its parts."""
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """Compiled once; rendering changes nothing and any thread may do it."""

    def __init__(self, source: str) -> None:
        """Raises TemplateError where `source` is not a template."""
        self.source = source
        try:
            self._template = _environment().from_string(source)
        except _TEMPLATE_FAULTS as cause:
            raise TemplateError(
                f"The chat template cannot be compiled: {cause}.", hint=OTHER_TEMPLATE
            ) from cause

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None,
        bos: str,
        eos: str,
        now: datetime,
        options: Mapping[str, object],
    ) -> str:
        """The text up to and including the generation prompt. Raises TemplateError."""
        given = {
            **options,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": True,
            "bos_token": bos,
            "eos_token": eos,
            "strftime_now": now.strftime,
        }
        try:
            with metered((messages, tools, options)):
                return self._template.render(given)
        except _TEMPLATE_FAULTS as cause:
            raise TemplateError(
                f"The chat template failed on these messages: {cause}.", hint=OTHER_TEMPLATE
            ) from cause


class _Environment(MeteredEnvironment):
    """Templates build lists of their own; `append` is the one change they may make."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr == "append":
            return True
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = bounded("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    width = len(indent) if isinstance(indent, str) else indent or 0
    if width > WIDEST_INDENT or any(len(one) > WIDEST_INDENT for one in separators or ()):
        raise SecurityError(f"it indents by more than {WIDEST_INDENT}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return encoder.encode(value) if indent is None else _written(encoder.iterencode(value))


def _written(parts: Iterable[str]) -> str:
    """Python writes what is indented, and long objects for long."""
    written, size = list[str](), 0
    for part in parts:
        check_time()
        size += len(part)
        work().check(size)
        written.append(part)
    return "".join(written)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message), hint="The model's chat template says so.")
