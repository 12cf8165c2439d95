"""Detailed logs of decisions and moves, switched on by environment variables.

`SD_LORA_DEBUG` logs each activation: how each layer is computed, and why a key is unused. `SD_MOVE_DEBUG` logs each
move of a layer's adapters: file, layer, from, to, bytes, why. Any value but 0 switches a log on. Both log warnings, as
every host shows these. Otherwise a move costs the look-up of one attribute.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..report import NetworkReport

if TYPE_CHECKING:
    import torch

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
        logger.warning("%s: %s", DECISIONS, report.summary())
        for one in report.unused:
            detail = f" ({one.detail})" if one.detail else ""
            logger.warning("%s: %s: unused %s: %s%s", DECISIONS, report.name, one.key, one.reason, detail)


def executor(layer: str, adapters: Iterable[str], chosen: str, why: str | None) -> None:
    """Log how a layer is computed.

    Args:
        layer: component and path.
        adapters: file and kind of each.
        chosen: the name of its executor.
        why: why its weight is not merged, where that was requested.
    """
    reason = f"; live: {why}" if why else ""
    logger.warning("%s: %s: %s: %s%s", DECISIONS, layer, chosen, ", ".join(adapters), reason)


def activation(kept: bool, parked: bool = False) -> None:
    """Log whether an activation chose executors, or only wrote strengths.

    Args:
        kept: whether the plan in force was used again.
        parked: whether an earlier plan was used again.
    """
    what = "the same files and layers: strengths written" if kept else "executors chosen again"
    logger.warning("%s: %s", DECISIONS, "a plan that was kept is used again" if parked else what)


def move(
    path: str, files: Iterable[str], before: torch.device | str, after: torch.device | str, nbytes: int, why: str
) -> None:
    """Log a move of a layer's adapters.

    Args:
        path: of the layer.
        files: names of the adapters' files.
        before: device, or another source.
        after: likewise.
        nbytes: of the adapters.
        why: in a few words.
    """
    names = "+".join(dict.fromkeys(files))
    logger.warning("%s: %s %s: %s -> %s, %d bytes: %s", MOVES, names, path, before, after, nbytes, why)


ask(os.environ)
