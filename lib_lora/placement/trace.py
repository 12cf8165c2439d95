"""Detailed logs of decisions and moves, switched on by environment variables.

`SD_LORA_DEBUG` logs each activation: how each layer is computed, and why a key is unused. `SD_MOVE_DEBUG` logs each
move of a layer's adapters: file, layer, from, to, bytes, why. Any value but 0 switches a log on. Both log warnings, as
every host shows these. Otherwise a move costs the look-up of one attribute.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from ..report import NetworkReport

DECISIONS, MOVES = "SD_LORA_DEBUG", "SD_MOVE_DEBUG"

logger = logging.getLogger(__name__)

decisions = False
"""Whether decisions are logged."""
moves = False
"""Whether moves are logged."""


def ask(environment: Mapping[str, str]) -> None:
    """Switch both logs on or off."""
    global decisions, moves
    decisions, moves = (environment.get(name, "").strip() not in ("", "0") for name in (DECISIONS, MOVES))


def files(reports: Iterable[NetworkReport]) -> None:
    """Log the reports of a stack's files, key by key."""
    for report in reports:
        decision("%s", report.summary())
        for one in report.unused:
            decision("%s: unused %s: %s%s", report.name, one.key, one.reason, f" ({one.detail})" if one.detail else "")


def decision(text: str, *values: object) -> None:
    """Log a decision, as `logging` formats it."""
    logger.warning(f"{DECISIONS}: {text}", *values)


def move(text: str, *values: object) -> None:
    """Log a move, as `logging` formats it."""
    logger.warning(f"{MOVES}: {text}", *values)


ask(os.environ)
