"""`sessiond version`."""

from __future__ import annotations

import platform
from importlib import metadata

from sessiond import __version__
from sessiond.cli.options import AsJson
from sessiond.cli.output import print_json


def version(as_json: AsJson = False) -> None:
    """Show the versions of sessiond and of what it runs on."""
    versions = {
        "sessiond": __version__,
        "llama-cpp-python": _installed("llama-cpp-python"),
        "python": platform.python_version(),
    }
    if as_json:
        print_json(versions)
    else:
        print(", ".join(f"{name} {number or 'not installed'}" for name, number in versions.items()))


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
