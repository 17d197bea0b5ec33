"""The composition root: wires every layer together and serves until told to stop."""

from sessiond.daemon.serving import serve

__all__ = ["serve"]
