"""Jinja whose templates cannot run or grow without end: nobody has reviewed them.

Loops, calls and operators of a template are counted against a budget of processor time and size.
Filters are bounded by what their arguments may be.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, cast

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

CPU_S = 2.0
"""Processor time of one rendering."""
LONGEST = 64 << 20
"""Characters or items of what a template makes in one go."""
WIDEST = 1000
"""Columns that a filter or a format pads to."""

_until: ContextVar[float] = ContextVar("until")
_EXPONENT = 64
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")
_WIDE_FIELD = re.compile(r":[^}]*(\d{4}|\{)")
_PADDING = ("center", "indent", "wordwrap", "batch", "slice")
_PADDERS = ("center", "ljust", "rjust", "zfill", "expandtabs")


@contextmanager
def metered() -> Iterator[None]:
    """A rendering in this thread: the budget begins anew."""
    token = _until.set(time.thread_time() + CPU_S)
    try:
        yield
    finally:
        _until.reset(token)


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Constants are not folded: that would be done before anything is counted.
        super().__init__(*args, **kwargs, optimized=False)
        for name in _PADDING:
            self.filters[name] = _bounded(self.filters[name])
        del self.globals["lipsum"]

    # What templates call takes arguments of any name, these parameters' too.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        if isinstance(getattr(__obj, "__self__", None), str) and __obj.__name__ in _PADDERS:
            _check_widths((*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FIELD.search(value.__self__):
            raise SecurityError(f"it pads to more than {WIDEST}")
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_time()
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def steps(self, items: Iterable[Any]) -> Iterable[Any]:
        """What a loop goes over."""
        _check_time()
        return items if isinstance(items, Sized) else _timed(items)

    def joined(self, *parts: Any) -> str:
        """What `~` makes."""
        _check_time()
        texts = [str(part) for part in parts]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        _Metered(self).visit(source)
        return super()._generate(source, name, filename, defer_init)


class _Metered(NodeTransformer):
    """Puts the environment's methods in place of loops over anything and of `~`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = self._call("steps", [cast(nodes.Expr, node.iter)], node.lineno)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self.generic_visit(self._call("joined", node.nodes, node.lineno))

    def _call(self, method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
        made = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
        made.set_environment(self._environment)
        made.set_lineno(line)
        return made


def _timed(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check_time()
        yield item


def _check_time() -> None:
    until = _until.get(None)
    if until is not None and time.thread_time() > until:
        raise SecurityError(f"it takes more than {CPU_S:g} s of processor time")


def _check_size(size: int) -> None:
    if size > LONGEST:
        raise SecurityError(f"it makes more than {LONGEST >> 20} MiB of text")


def _check_widths(arguments: Iterable[Any]) -> None:
    if any(isinstance(one, int) and one > WIDEST for one in arguments):
        raise SecurityError(f"it pads or counts to more than {WIDEST}")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    sizes = [len(one) if isinstance(one, Sized) else 0 for one in (left, right)]
    if operator == "+":
        _check_size(sum(sizes))
    elif operator == "*" and any(sizes):
        times = [one for one in (left, right) if isinstance(one, int)]
        _check_size(max(sizes) * max(times, default=0))
    elif operator in ("*", "**") and any(_is_huge(one) for one in (left, right)):
        raise SecurityError("it computes with numbers of more than 64 bits")
    elif operator == "**" and isinstance(right, int) and right > _EXPONENT:
        raise SecurityError(f"it raises to a power of more than {_EXPONENT}")
    elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
        raise SecurityError(f"it pads to more than {WIDEST}")


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 1 << 64


def _bounded(filter_: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_time()
        _check_widths((*args[1:], *kwargs.values()))
        return filter_(*args, **kwargs)

    return bounded
