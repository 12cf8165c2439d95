"""Addresses and Host headers, as every part that is served reads them."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d{1,5})?")


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def host_name(host: str) -> str:
    """Return a Host header without its port, in lower case; empty if invalid."""
    match = _HOST.fullmatch(host)
    return "" if match is None else (match[1] or match[2]).lower()
