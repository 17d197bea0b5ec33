"""Typed client of the HTTP API, for one thread at a time."""

from sessiond.client.answers import RequestFailed
from sessiond.client.calls import Client, Unreachable
from sessiond.client.endpoint import BadAddress, Endpoint, find_daemon
from sessiond.client.stream import ChatEnd, ChatText

__all__ = [
    "BadAddress",
    "ChatEnd",
    "ChatText",
    "Client",
    "Endpoint",
    "RequestFailed",
    "Unreachable",
    "find_daemon",
]
