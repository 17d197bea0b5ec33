"""A whole daemon in this process, without HTTP: real ledger, real store, any engine."""

from tests.rig.rig import Daemon, Reply, Rig

__all__ = ["Daemon", "Reply", "Rig"]
