"""The tree keeps its rules, and every rule is shown to catch what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiond
from scripts import structure
from scripts.structure import Check, Module, module

PACKAGE = Path(sessiond.__file__).parent


@pytest.fixture(scope="module")
def tree() -> list[Module]:
    return structure.read_package(PACKAGE)


@pytest.mark.parametrize("check", structure.CHECKS, ids=lambda check: check.__name__)
def test_the_tree_keeps_the_rule(check: Check, tree: list[Module]) -> None:
    assert list(check(tree)) == []


def test_the_whole_package_is_read(tree: list[Module]) -> None:
    names = {source.name for source in tree}
    assert {"sessiond", "sessiond.errors", "sessiond.engine", "sessiond.engine.memory"} <= names
    assert {source.layer for source in tree} >= {"engine", "store", "sessions", "api", "cli"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sessiond.engine.core", "import sessiond.store.block"),
        ("sessiond.store.block", "from sessiond.sessions import ledger"),
        ("sessiond.sessions.plan", "from sessiond import chat"),
        ("sessiond.api.app", "from ..client import Client"),
        ("sessiond.engine", "from ..api import app"),
        ("sessiond.errors", "def late():\n    from sessiond.engine.core import Engine"),
        ("sessiond.errors", "if TYPE_CHECKING:\n    from .engine import core"),
        ("sessiond.client", "from sessiond.__main__ import main"),
        ("sessiond.api.app", "from sessiond.daemon import build"),
        ("sessiond.client", "from sessiond import daemon"),
        ("sessiond.engine.core", "from sessiond.mystery import x"),
    ],
)
def test_an_import_upward_is_found(name: str, text: str) -> None:
    is_package = name.count(".") == 1 and name.endswith("engine")
    assert len(list(structure.upward_imports([module(name, text, is_package=is_package)]))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sessiond.cli.serve", "from sessiond.daemon import run"),
        ("sessiond.__main__", "from sessiond.cli.main import app"),
        ("sessiond.daemon", "from sessiond.api.app import app\nimport sessiond.engine.core"),
        ("sessiond.api.app", "from sessiond import __version__\nfrom sessiond.chat import x"),
        (
            "sessiond.engine.core",
            "from . import codec\nfrom ..errors import EngineError\nimport os",
        ),
        ("sessiond.config", "from sessiond.errors import ConfigError"),
    ],
)
def test_an_import_downward_is_fine(name: str, text: str) -> None:
    assert list(structure.upward_imports([module(name, text)])) == []


def test_a_module_outside_the_layers_is_found() -> None:
    tree = [module("sessiond.mystery", ""), module("sessiond.engine.core", "")]
    assert len(list(structure.unplaced_modules(tree))) == 1


@pytest.mark.parametrize(
    "text", ["import llama_cpp", "from llama_cpp import Llama", "import llama_cpp._ctypes as c"]
)
def test_llama_cpp_outside_the_engine_is_found(text: str) -> None:
    assert len(list(structure.llama_outside_engine([module("sessiond.store.block", text)]))) == 1
    assert not list(structure.llama_outside_engine([module("sessiond.engine.core", text)]))


def test_a_long_module_is_found() -> None:
    short = [module(f"sessiond.{name}", "x = 1\n" * 100) for name in "abc"]
    long = module("sessiond.long", "x = 1\n" * 501)
    (finding,) = structure.long_modules([*short, long])
    assert finding == "sessiond.long has 501 lines, more than 500"


def test_a_high_median_is_found_and_empty_files_do_not_lower_it() -> None:
    tree = [module("sessiond.a", "x = 1\n" * 131)] + [
        module(f"sessiond.{name}", "") for name in "bcdef"
    ]
    (finding,) = structure.long_modules(tree)
    assert "median" in finding


def function(name: str, lines: int) -> str:
    return f"def {name}():\n" + "    x = 1\n" * (lines - 1)


def test_a_long_function_is_found_also_in_a_class() -> None:
    inside = "class A:\n" + "".join(f" {line}\n" for line in function("b", 101).splitlines())
    few = "".join(function(f"f{index}", 3) for index in range(20))
    findings = list(structure.long_functions([module("sessiond.a", few + inside)]))
    assert findings == ["sessiond.a.b has 101 lines, more than 100"]


def test_many_middling_functions_are_found() -> None:
    text = "".join(function(f"f{index}", 46) for index in range(10))
    (finding,) = structure.long_functions([module("sessiond.a", text)])
    assert "90th percentile" in finding


@pytest.mark.parametrize(
    "name", ["sessiond.utils", "sessiond.api.http_helpers", "sessiond.common.x"]
)
def test_an_empty_name_is_found(name: str) -> None:
    assert len(list(structure.empty_names([module(name, "")]))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    x()\nexcept:\n    raise",
        "try:\n    x()\nexcept Exception:\n    pass",
        "try:\n    x()\nexcept (ValueError, BaseException) as e:\n    ...",
        "for _ in y:\n    try:\n        x()\n    except Exception:\n        continue",
        "with contextlib.suppress(Exception):\n    x()",
    ],
)
def test_a_swallowed_error_is_found(text: str) -> None:
    assert len(list(structure.swallowed_errors([module("sessiond.a", text)]))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    x()\nexcept KeyError:\n    pass",
        "try:\n    x()\nexcept Exception as e:\n    log(e)",
        "with suppress(KeyError):\n    x()",
    ],
)
def test_a_handled_error_is_fine(text: str) -> None:
    assert list(structure.swallowed_errors([module("sessiond.a", text)])) == []


def test_a_print_outside_the_cli_is_found() -> None:
    assert len(list(structure.prints([module("sessiond.engine.core", "print('x')")]))) == 1
    assert not list(structure.prints([module("sessiond.cli.main", "print('x')")]))
