"""Who applies the tags of a web UI's prompts."""

from __future__ import annotations

from typing import Any


def applied_by(host: Any) -> str:
    """Return "Remora"; or "handed back" where the built-in applies them, "not connected" where it does so by itself."""
    networks = host._networks
    if networks is None or not networks.in_force:
        return "not connected"
    return "Remora" if host.remora.enabled else "handed back"
