"""sessiond keeps the llama.cpp context of every agent session warm, across turns and restarts."""

__version__ = "0.1.0"
