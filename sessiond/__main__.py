"""`python -m sessiond`."""

from __future__ import annotations

import sys

from sessiond.cli.main import app

if __name__ == "__main__":
    sys.exit(app())
