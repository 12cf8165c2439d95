"""Slows programs that guess passwords."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections import OrderedDict

logger = logging.getLogger(__name__)

ALLOWED = 10
"""Wrong passwords from one address, in `SECONDS`."""
SECONDS = 60.0
_MOST_ADDRESSES = 10_000
_SITE = 64  # bits of an IPv6 address that one site has


class Brake:
    """Counts wrong passwords by the address they come from; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def seconds_left(self, address: str) -> float:
        """Return how long no password from an address is looked at; 0 if it is looked at now."""
        with self._lock:
            times = self._recent(_site_of(address))
            return times[0] + SECONDS - time.monotonic() if len(times) >= ALLOWED else 0.0

    def add(self, address: str) -> None:
        """Count and log a wrong password from an address."""
        site = _site_of(address)
        with self._lock:
            times = [*self._recent(site), time.monotonic()]
            self._wrong[site] = times
            self._wrong.move_to_end(site)
            if len(self._wrong) > _MOST_ADDRESSES:
                self._wrong.popitem(last=False)
        logger.warning("remora: a wrong user or password from %s", address)
        if len(times) == ALLOWED:
            logger.warning("remora: %d within a minute; passwords from %s are refused for a minute", ALLOWED, address)

    def _recent(self, site: str) -> list[float]:
        since = time.monotonic() - SECONDS
        return [at for at in self._wrong.get(site, ()) if at > since]


def _site_of(address: str) -> str:
    """Return what one user has: an address of IPv4, or a network of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, _SITE), strict=False))
    return str(found)
