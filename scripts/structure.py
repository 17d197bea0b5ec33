"""The rules of the tree that a reader cannot see in one file: import direction, sizes, names."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "sessiond"
LAYERS = ("cli", "client", "api", "chat", "sessions", "store", "engine", "floor")
FLOOR = frozenset(
    {"config", "directories", "elapsed", "errors", "logs", "metrics", "notify", "units"}
)
COMPOSITION_ROOT = "daemon"
LONGEST_MODULE = 500
MEDIAN_MODULE = 130
LONGEST_FUNCTION = 100
P90_FUNCTION = 45
EMPTY_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """`name` is dotted and starts with the package; a package has its own name."""

    name: str
    text: str
    tree: ast.Module
    is_package: bool = False

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def layer(self) -> str:
        return layer_of(self.name)


def module(name: str, text: str, *, is_package: bool = False) -> Module:
    return Module(name, text, ast.parse(text), is_package)


def read_package(root: Path) -> list[Module]:
    """All modules below the package folder `root`."""
    return [_read(root, path) for path in sorted(root.rglob("*.py"))]


def _read(root: Path, path: Path) -> Module:
    parts = path.relative_to(root.parent).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return module(name, path.read_text(encoding="utf-8"), is_package=is_package)


def layer_of(name: str) -> str:
    """The layer of a dotted name, `daemon` for the composition root, "" for the package itself."""
    first = [*name.split("."), ""][1]
    if first == "__main__":
        return "cli"
    return "floor" if first in FLOOR else first


def imported(source: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, at any depth of nesting.

    `from a import b` gives `a.b`: b may be a module, and if it is not, the layer is the same.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source, node)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute(source: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = source.name.split(".")
    above = node.level - source.is_package
    kept = parents[: len(parents) - above]
    return ".".join([*kept, node.module] if node.module else kept)


def is_public_name_of_the_package(name: str) -> bool:
    """`from sessiond import __version__`: the package's own file, which imports nothing."""
    return name.startswith(f"{PACKAGE}.__") and not name.startswith(f"{PACKAGE}.__main__")


def upward_imports(modules: Iterable[Module]) -> Iterator[str]:
    for source in modules:
        for line, name in imported(source):
            if not name.startswith(f"{PACKAGE}.") or is_public_name_of_the_package(name):
                continue
            if not may_import(source.layer, layer_of(name)):
                yield f"{source.name}:{line} imports {name}, which is above it or in no layer"


def may_import(source: str, target: str) -> bool:
    if target == COMPOSITION_ROOT:
        return source in {"cli", COMPOSITION_ROOT}
    if target not in LAYERS:
        return False
    if source == COMPOSITION_ROOT:
        return True
    return source in LAYERS and LAYERS.index(source) <= LAYERS.index(target)


def unplaced_modules(modules: Iterable[Module]) -> Iterator[str]:
    places = {*LAYERS, COMPOSITION_ROOT, ""}
    for source in modules:
        if source.layer not in places:
            yield f"{source.name} is in no layer: {', '.join(LAYERS)}"


def llama_outside_engine(modules: Iterable[Module]) -> Iterator[str]:
    for source in modules:
        for line, name in imported(source):
            if name.split(".")[0] == "llama_cpp" and source.layer != "engine":
                yield f"{source.name}:{line} imports llama_cpp; only engine/ may"


def long_modules(modules: Iterable[Module]) -> Iterator[str]:
    lengths = {source.name: source.lines for source in modules if source.lines}
    for name, lines in lengths.items():
        if lines > LONGEST_MODULE:
            yield f"{name} has {lines} lines, more than {LONGEST_MODULE}"
    median = statistics.median(lengths.values()) if lengths else 0
    if median > MEDIAN_MODULE:
        yield f"the median module has {median:.0f} lines, more than {MEDIAN_MODULE}"


def functions(modules: Iterable[Module]) -> Iterator[tuple[str, Function]]:
    for source in modules:
        for node in ast.walk(source.tree):
            if isinstance(node, Function):
                yield f"{source.name}.{node.name}", node


def long_functions(modules: Iterable[Module]) -> Iterator[str]:
    lengths = [(name, length(node)) for name, node in functions(modules)]
    for name, lines in lengths:
        if lines > LONGEST_FUNCTION:
            yield f"{name} has {lines} lines, more than {LONGEST_FUNCTION}"
    ninetieth = percentile_90([lines for _, lines in lengths])
    if ninetieth > P90_FUNCTION:
        yield f"the 90th percentile function has {ninetieth} lines, more than {P90_FUNCTION}"


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def percentile_90(lengths: list[int]) -> int:
    return sorted(lengths)[len(lengths) * 9 // 10] if lengths else 0


def empty_names(modules: Iterable[Module]) -> Iterator[str]:
    for source in modules:
        words = {word for part in source.name.split(".") for word in part.split("_")}
        if found := words & EMPTY_NAMES:
            yield f"{source.name} is named {', '.join(found)}: name the concept"


def swallowed_errors(modules: Iterable[Module]) -> Iterator[str]:
    for source in modules:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ExceptHandler) and (fault := _swallows(node)):
                yield f"{source.name}:{node.lineno} {fault}"
            if isinstance(node, ast.Call) and _suppresses_all(node):
                yield f"{source.name}:{node.lineno} suppresses every exception"


def _swallows(handler: ast.ExceptHandler) -> str:
    if handler.type is None:
        return "has a bare except"
    if _catches_all(handler.type) and all(_does_nothing(step) for step in handler.body):
        return "catches every exception and does nothing"
    return ""


def _catches_all(caught: ast.expr) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(n, ast.Name) and n.id in {"Exception", "BaseException"} for n in names)


def _does_nothing(step: ast.stmt) -> bool:
    if isinstance(step, ast.Expr):
        return isinstance(step.value, ast.Constant)
    return isinstance(step, ast.Pass | ast.Continue)


def _suppresses_all(call: ast.Call) -> bool:
    return ast.unparse(call.func).endswith("suppress") and any(map(_catches_all, call.args))


def prints(modules: Iterable[Module]) -> Iterator[str]:
    for source in modules:
        for node in ast.walk(source.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id == "print" and source.layer != "cli":
                yield f"{source.name}:{node.lineno} prints; only cli/ may"


Check = Callable[[Iterable[Module]], Iterator[str]]

CHECKS: tuple[Check, ...] = (
    upward_imports,
    unplaced_modules,
    llama_outside_engine,
    long_modules,
    long_functions,
    empty_names,
    swallowed_errors,
    prints,
)


def main() -> int:
    """Print every finding; exit status 1 if there is one."""
    modules = read_package(Path(__file__).resolve().parent.parent / PACKAGE)
    findings = [finding for check in CHECKS for finding in check(modules)]
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
