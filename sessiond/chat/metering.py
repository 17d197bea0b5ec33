"""Jinja whose templates cannot run or grow without end: nobody has reviewed them.

Loops, calls, operators and filters of a template are counted against a budget of processor time and
size, before they make anything that may be long: C code cannot be interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import wraps
from typing import Any, cast

from jinja2 import Environment, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from sessiond.chat.weighing import ITEM, check_time, timed, work

WIDEST = 1000
"""Columns that a filter or a format pads to."""
DEAREST, DEAREST_ITEMS = 1 << 20, 1 << 17
"""Characters and entries that filters take which need long for each."""

_EXPONENT = 64
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")
_WIDE_FIELD = re.compile(r":[^}]*(\d{4}|\{)")
_PADDING = ("center", "indent", "wordwrap", "batch", "slice")
_DEAR = frozenset(
    "title wordcount wordwrap urlize striptags xmlattr pprint truncate urlencode sort unique "
    "dictsort groupby min max sum".split()
)
_PADDERS = ("center", "ljust", "rjust", "zfill", "expandtabs")


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Constants are not folded: that would be done before anything is counted.
        super().__init__(*args, **kwargs, optimized=False, finalize=_counted)
        for name, filter_ in self.filters.items():
            self.filters[name] = bounded(name, filter_)
        del self.globals["lipsum"]

    # What templates call takes arguments of any name, these parameters' too.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_time()
        owner = None if type(__obj) is Macro else getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _check_method(owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, list) and __obj.__name__ == "append" and args:
            work().append(owner, args[0])
        elif _nests(__obj):
            work().weigh_all((*args, *kwargs.values()))
        return _made(super().call(__context, __obj, *args, **kwargs))

    def concat(self, parts: Iterable[str]) -> str:
        """What a rendering, a macro or a block has written."""
        written, size = list[str](), 0
        for part in parts:
            written.append(part)
            size += len(part)
            work().check(size)
        work().use(size)
        return "".join(written)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FIELD.search(value.__self__):
            raise SecurityError(f"it pads to more than {WIDEST}")
        return wrapped and _sized_format(value.__self__, wrapped)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is int and type(right) is int:
            return left + right
        check_time()
        weight = _check_operands(operator, left, right)
        made = super().call_binop(context, operator, left, right)
        if weight is not None:
            work().learn(made, weight)
        return made

    def built(self, value: Any) -> Any:
        """A list, tuple or dict that the template spells out."""
        work().weigh(value)
        return value

    def held(self, value: Any) -> Any:
        """What a namespace is given."""
        if isinstance(value, Namespace):
            raise SecurityError("it puts a namespace into something else")
        return value

    def steps(self, items: Iterable[Any]) -> Iterable[Any]:
        """What a loop goes over."""
        check_time()
        return items if hasattr(items, "__len__") else timed(items)

    def joined(self, *parts: Any) -> str:
        """What `~` makes."""
        check_time()
        texts = [str(part) for part in parts]
        work().make(sum(map(len, texts)))
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
    """Puts the environment's methods around what a loop goes over and what is nested, and in place
    of `~`.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = self._call("steps", [cast(nodes.Expr, node.iter)], node.lineno)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self.generic_visit(self._call("joined", node.nodes, node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._built(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._built(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._built(node, [part for pair in node.items for part in (pair.key, pair.value)])

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        """Of a namespace: it holds what it is given, and changes without being weighed."""
        self.generic_visit(node)
        if isinstance(node.target, nodes.NSRef):
            node.node = self._call("held", [cast(nodes.Expr, node.node)], node.lineno)
        return node

    def _built(self, node: nodes.Expr, inside: Iterable[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(one, nodes.Const) for one in inside)
        self.generic_visit(node)
        return node if constant else self._call("built", [node], node.lineno)

    def _call(self, method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
        made = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
        made.set_environment(self._environment)
        made.set_lineno(line)
        return made


def _check_widths(arguments: Iterable[Any]) -> None:
    if any(isinstance(one, int) and one > WIDEST for one in arguments):
        raise SecurityError(f"it pads or counts to more than {WIDEST}")


def _nests(called: Any) -> bool:
    """Whether it puts its arguments into something."""
    if isinstance(called, Macro):
        return called.catch_varargs or called.catch_kwargs
    return called is dict or called is Namespace


def _check_operands(operator: str, left: Any, right: Any) -> tuple[int, int] | None:
    """The weight of what will be made, of a list or tuple."""
    sized = [hasattr(one, "__len__") for one in (left, right)]
    if operator == "+" and all(sized):
        return _check_sum(left, right)
    if operator == "*" and any(sized):
        return _check_repeated(*((left, right) if sized[0] else (right, left)))
    if operator in ("*", "**") and any(_is_huge(one) for one in (left, right)):
        raise SecurityError("it computes with numbers of more than 64 bits")
    if operator == "**" and isinstance(right, int) and right > _EXPONENT:
        raise SecurityError(f"it raises to a power of more than {_EXPONENT}")
    if operator == "%" and isinstance(left, str):
        if _WIDE.search(left):
            raise SecurityError(f"it pads to more than {WIDEST}")
        work().make(len(left) + left.count("%") * work().weigh_all((right,)))
    return None


def _check_sum(left: Sized, right: Sized) -> tuple[int, int] | None:
    nested = isinstance(left, (list, tuple)) and isinstance(right, (list, tuple))
    work().make((len(left) + len(right)) * (ITEM if nested else 1))
    return work().add(left, right) if nested else None


def _check_repeated(one: Sized, times: Any) -> tuple[int, int] | None:
    if not isinstance(times, int):
        return None
    nested = isinstance(one, (list, tuple))
    work().make(len(one) * max(times, 0) * (ITEM if nested else 1))
    return work().repeat(one, times) if nested else None


def _check_method(
    owner: str, name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """Of a text. Its arguments, where one of them could be gone over only once as a list."""
    if name in _PADDERS:
        _check_widths((*args, *named.values()))
    if name == "expandtabs":
        work().make(len(owner) + owner.count("\t") * WIDEST)
    elif name == "replace" and len(args) > 1:
        _check_replaced(owner, *args[:2])
    elif name == "join" and len(args) == 1:
        items = list(timed(args[0]))
        work().make(work().weigh_all(items) + len(owner) * len(items))
        return (items,)
    elif name == "translate" and args:
        longest = max((work().weigh_all((one,)) for one in _values(args[0])), default=1)
        work().make(len(owner) * longest)
    return args


def _sized_format(text: str, format_: Callable[..., str]) -> Callable[..., str]:
    def sized(*args: Any, **kwargs: Any) -> str:
        weight = work().weigh_all((*args, *kwargs.values()))
        work().make(len(text) + text.count("{") * weight)
        return format_(*args, **kwargs)

    return sized


def _values(table: Any) -> Iterable[Any]:
    return table.values() if isinstance(table, dict) else table if isinstance(table, str) else ()


def _check_replaced(text: Any, old: Any, new: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    work().make(len(text) + text.count(old) * len(new))


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 1 << 64


@pass_context
def _counted(_: Context, value: Any) -> Any:
    """What `{{ }}` writes. Asks for a context so that nothing is written when it is compiled."""
    if isinstance(value, str):
        work().make(len(value))
    return value


def _made(value: Any) -> Any:
    """What a filter or a call has made, if it can be told now."""
    if isinstance(value, str):
        work().make(len(value))
    return value


def bounded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose input, widths and results are looked at."""
    at = 1 if hasattr(filter_, "jinja_pass_arg") else 0

    @wraps(filter_)
    def metered(*args: Any, **kwargs: Any) -> Any:
        check_time()
        before, (value, *others) = args[:at], args[at:]
        if name in _PADDING:
            _check_widths((*others, *kwargs.values()))
        value = _taken(name, value, others, kwargs)
        result = filter_(*before, value, *others, **kwargs)
        if isinstance(result, Iterator):
            return timed(result)
        if isinstance(result, (list, tuple, dict)):
            work().weigh(result)
        return _made(result)

    return metered


def _taken(name: str, value: Any, others: list[Any], named: dict[str, Any]) -> Any:
    """What a filter is given, with its length known where that matters."""
    if isinstance(value, Iterator):
        value = timed(value)
        if name in (*_DEAR, "join"):
            value = list(value)
    size = len(value) if isinstance(value, Sized) else 0
    if name in _DEAR and size > (DEAREST if isinstance(value, str) else DEAREST_ITEMS):
        raise SecurityError(f"it gives {name} more than that may take")
    if name == "join":
        between = str(others[0] if others else named.get("d", ""))
        work().make(work().weigh_all(value) + size * len(between))
    elif name == "replace":
        given = [*others, *(named[key] for key in ("old", "new") if key in named)]
        if len(given) > 1:
            _check_replaced(value, *given[:2])
    elif name == "format":
        weight, text = work().weigh_all((*others, *named.values())), str(value)
        work().make(len(text) + text.count("%") * weight)
    elif name == "sum" and {list, tuple} & set(map(type, (*others, *named.values()))):
        # Every step copies what there is by then.
        work().use(size * work().weigh_all(value))
    return value
