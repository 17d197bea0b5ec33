"""Wrong keys are answered later and later, so that guessing takes long."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

LONGEST_S = 1.0
_FIRST_S = 0.05
_FORGOTTEN_S = 300.0
ADDRESSES = 1024
"""Kept at most; the one that failed longest ago goes."""
_SITE = 64
"""Bits of an IPv6 address that one site has been given."""


class Patience:
    """Event loop only. Nothing of a key is kept here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: str) -> float:
        """Seconds after which the wrong key from this address is answered: twice as long each
        time, up to LONGEST_S; the first one at once.
        """
        now, site = self._clock(), _site(address)
        count, last = self._failures.pop(site, (0, now))
        if now - last > _FORGOTTEN_S:
            count = 0
        self._failures[site] = count + 1, now
        if len(self._failures) > ADDRESSES:
            self._failures.popitem(last=False)
        return min(LONGEST_S, _FIRST_S * 2.0 ** min(count - 1, 32)) if count else 0.0


def _site(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, _SITE), strict=False))
