"""What each agent has to be told so that it works with the daemon. A file for each.

A new agent is a module with `settings(target)` and a line in `AGENTS`.
"""

from sessiond.cli.agents.settings import Agent, Settings, Target
from sessiond.cli.agents.table import AGENTS

__all__ = ["AGENTS", "Agent", "Settings", "Target"]
