"""Files that may be of one training, by their names: trainers number what they save.

    name-000004                          an epoch of kohya's sd-scripts and musubi-tuner
    name-step00001000                    their steps
    name_000002500                       ai-toolkit
    2025-01-31_12-00-00-save-1000-10-0   OneTrainer
    checkpoint-500/name                  a folder of diffusers' scripts

`name` alone, in the same folder, is what the training ended with.

Sources: kohya-ss/sd-scripts library/train_util.py, `get_epoch_ckpt_name`; ostris/ai-toolkit
jobs/process/BaseSDTrainProcess.py, `save`; Nerogar/OneTrainer modules/trainer/GenericTrainer.py, `__save`;
huggingface/diffusers examples/dreambooth/train_dreambooth_lora.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

_NAME = re.compile(
    r"(?P<training>.+)(?:-(?P<epoch>\d{6})|-step(?P<step>\d{8})|_(?P<counted>\d{9}))"
    r"|(?P<prefix>.*)\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-save-(?P<saved>\d{1,9})-\d{1,9}-\d{1,9}"
)
_FOLDER = re.compile(r"checkpoint-(\d{1,9})")


def by_training(paths: Sequence[Path]) -> list[list[tuple[float, int]]]:
    """Return files whose names say that they may be of one training: how far it was, and their positions, in order."""
    found: dict[tuple[Path, str], list[tuple[float, int]]] = {}
    for at, path in enumerate(paths):
        told = _told(path)
        if told is not None:
            found.setdefault(told[:2], []).append((told[2], at))
    places = {path: at for at, path in enumerate(paths)}
    for (last, _), own in found.items():
        if last in places:
            own.append((math.inf, places[last]))
    return [sorted(own) for own in found.values() if len(own) > 1]


def _told(path: Path) -> tuple[Path, str, int] | None:
    """Return the path of what the training ends with, what its files are numbered by, and the number of this one."""
    in_folder = _FOLDER.fullmatch(path.parent.name)
    if in_folder is not None:
        return path.parent.parent / path.name, "folder", int(in_folder[1])
    named = _NAME.fullmatch(path.stem)
    if named is None:
        return None
    by = next(name for name in ("epoch", "step", "counted", "saved") if named[name])
    return path.with_name(f"{named['training'] or named['prefix']}{path.suffix}"), by, int(named[by])
