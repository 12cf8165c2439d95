"""Detailed logs of decisions and moves, switched on by environment variables.

`SD_LORA_DEBUG` logs each activation: how each layer is computed, and why a key is unused. `SD_MOVE_DEBUG` logs each
move of a layer's adapters: component, layer, files, from, to, bytes, why. Any value but 0 switches a log on. Its lines
have the level INFO, and the logger shows them whatever level its parents have. While a log is off, a move costs the
look-up of one attribute.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from ..report import NetworkReport

DECISIONS, MOVES = "SD_LORA_DEBUG", "SD_MOVE_DEBUG"

logger = logging.getLogger(__name__)
_alone = logging.StreamHandler()
"""Shows the lines in programs that set up no logging: Python itself shows only warnings there."""
_alone.addFilter(lambda record: not (logger.parent and logger.parent.hasHandlers()))

decisions = False
"""Whether decisions are logged."""
moves = False
"""Whether moves are logged."""


def ask(environment: Mapping[str, str]) -> None:
    """Switch both logs on or off."""
    global decisions, moves
    decisions, moves = (environment.get(name, "").strip() not in ("", "0") for name in (DECISIONS, MOVES))
    logger.setLevel(logging.INFO if decisions or moves else logging.NOTSET)
    if decisions or moves:
        logger.addHandler(_alone)
    else:
        logger.removeHandler(_alone)


def files(reports: Iterable[NetworkReport]) -> None:
    """Log the reports of a stack's files, key by key."""
    for report in reports:
        decision("%s", report.summary())
        for one in report.unused:
            decision("%s: unused %s: %s%s", report.name, one.key, one.reason, f" ({one.detail})" if one.detail else "")


def decision(text: str, *values: object) -> None:
    """Log a decision, as `logging` formats it."""
    logger.info(f"{DECISIONS}: {text}", *values)


def move(text: str, *values: object) -> None:
    """Log a move, as `logging` formats it."""
    logger.info(f"{MOVES}: {text}", *values)


ask(os.environ)
