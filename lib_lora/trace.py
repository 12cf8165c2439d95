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

if TYPE_CHECKING:
    import torch

    from .binding import Binding
    from .report import NetworkReport

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


def way(component: str, bindings: Iterable[Binding], chosen: object, why: str | None) -> None:
    """Say how a layer is served.

    Args:
        component: of the layer.
        bindings: its adapters.
        chosen: the way.
        why: why its weight is not merged into, where that was asked for.
    """
    bindings = tuple(bindings)
    which = ", ".join(f"{one.file.path.name} ({type(one.adapter).__name__})" for one in bindings)
    reason = f"; live: {why}" if why else ""
    path, name = bindings[0].target.path, type(chosen).__name__.lower()
    logger.warning("%s: %s.%s: %s: %s%s", DECISIONS, component, path, name, which, reason)


def anew(kept: bool, parked: bool = False) -> None:
    """Say whether an activation had to choose ways, or only wrote strengths.

    Args:
        kept: whether those that were in force serve it.
        parked: whether those that were in force at another time do.
    """
    what = "the same files and layers: strengths written" if kept else "ways chosen anew"
    logger.warning("%s: %s", DECISIONS, "as at an earlier time: what was kept is used again" if parked else what)


def move(
    bindings: Iterable[Binding], before: torch.device | str, after: torch.device | str, nbytes: int, why: str
) -> None:
    """Say that what lies beside a layer moved.

    Args:
        bindings: the layer's.
        before: device, or what else it came from.
        after: the same.
        nbytes: how much.
        why: in a few words.
    """
    bindings = tuple(bindings)
    names = "+".join(dict.fromkeys(one.file.path.name for one in bindings))
    path = bindings[0].target.path
    logger.warning("%s: %s %s: %s -> %s, %d bytes: %s", MOVES, names, path, before, after, nbytes, why)


ask(os.environ)
