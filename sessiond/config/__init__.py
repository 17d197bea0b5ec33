"""The daemon's settings: what there is (`settings`) and where it comes from (`sources`)."""

from sessiond.config.presets import Preset
from sessiond.config.settings import (
    Auth,
    Checkpoints,
    Config,
    Log,
    Model,
    Server,
    Sessions,
    Store,
)
from sessiond.config.sources import load_config

__all__ = [
    "Auth",
    "Checkpoints",
    "Config",
    "Log",
    "Model",
    "Preset",
    "Server",
    "Sessions",
    "Store",
    "load_config",
]
