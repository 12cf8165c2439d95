"""What is decided and what moves, told in detail to whoever asks for it in the environment.

`SD_LORA_DEBUG` tells of every activation: each layer with the way it is served, each key without effect and why.
`SD_MOVE_DEBUG` tells of every move of what lies beside a layer: file, layer, from, to, bytes, why. Anything but nothing
and 0 asks. It is logged as warnings: those are what every host shows, however it has set up its log. Nothing else
changes, and while nobody asks, a move costs the look-up of one attribute.
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
"""Whether decisions are told."""
moves = False
"""Whether moves are told."""


def ask(environment: Mapping[str, str]) -> None:
    """Tell from now on what these variables ask for, and only that."""
    global decisions, moves
    decisions, moves = (environment.get(name, "").strip() not in ("", "0") for name in (DECISIONS, MOVES))


def files(reports: Iterable[NetworkReport]) -> None:
    """Say what became of the files of a stack, key by key."""
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
        why: why its weight is not merged into, where that was asked for.
    """
    reason = f"; live: {why}" if why else ""
    logger.warning("%s: %s: %s: %s%s", DECISIONS, layer, chosen, ", ".join(adapters), reason)


def anew(kept: bool, parked: bool = False) -> None:
    """Say whether an activation had to choose executors, or only wrote strengths.

    Args:
        kept: whether those that were in force serve it.
        parked: whether those that were in force at another time do.
    """
    what = "the same files and layers: strengths written" if kept else "executors chosen again"
    logger.warning("%s: %s", DECISIONS, "as at an earlier time: what was kept is used again" if parked else what)


def move(
    path: str, files: Iterable[str], before: torch.device | str, after: torch.device | str, nbytes: int, why: str
) -> None:
    """Say that what lies beside a layer moved.

    Args:
        path: of the layer.
        files: names of the files that it has adapters of.
        before: device, or what else it came from.
        after: the same.
        nbytes: how much.
        why: in a few words.
    """
    names = "+".join(dict.fromkeys(files))
    logger.warning("%s: %s %s: %s -> %s, %d bytes: %s", MOVES, names, path, before, after, nbytes, why)


ask(os.environ)
