"""How to read files of which their trainers and other programs make different things."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Any

from ..errors import FileError, OneLine, StackError, check_type, shown
from ..tensors import LARGEST

_MOST_JSON = 8 << 20  # bytes


@dataclass(frozen=True, slots=True, repr=False)
class Reading(OneLine):
    """Choices where the trainer of a file and the programs that load it disagree.

    By default a file acts as it does in other programs: pictures and strengths that users know stay as they are.

    Raises:
        ArgumentError: a choice is no True or False.
        StackError: alpha or scale is no finite number.
    """

    split_qkv_as_trained: bool = False
    """kohya's `split_qkv=True` trains q, k and v (and the MLP beside them) as LoRA of their own, at alpha / r. It saves
    them as one of rank 3 r or 4 r with the alpha unchanged, so that they act at a third or a quarter of what they
    learned (kohya-ss/sd-scripts networks/lora_flux.py, `state_dict`). True multiplies those layers by 3 or 4.
    """
    dylora_as_trained: bool = False
    """LyCORIS' DyLoRA trains at alpha / number of blocks and is loaded at alpha / rank (modules/dylora.py). True
    multiplies it by the size of its blocks.
    """
    alpha: float | None = None
    """The alpha of all layers, in the place of what the file says; None leaves it to the file."""
    scale: float | None = None
    """The scale of all layers, alpha / rank, in the place of what the file says. It beats `alpha`."""
    fragments: bool = False
    """Apply a file of which most fits no layer of the model. By default it is refused: what fits by accident, such as a
    layer that has the same name in another model, gives a picture that no user wants.
    """

    def __post_init__(self) -> None:
        for name in ("split_qkv_as_trained", "dylora_as_trained", "fragments"):
            check_type(getattr(self, name), bool, name, "True or False")
        for name in ("alpha", "scale"):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and abs(value) <= LARGEST):
                raise StackError(f"{name} must be a finite number, or None, not {shown(value)}")


USUAL = Reading()
"""As other programs read."""


def with_sidecar(path: Path, reading: Reading) -> Reading:
    """Return how to read a file beside which `NAME.json` may have its alpha or its scale; a given one beats these.

    They are in the object `remora`, as `{"remora": {"alpha": 8}}`; web UIs keep their notes on the file beside it.

    Raises:
        FileError: one of them is no finite number.
    """
    sidecar = path.with_suffix(".json")
    if reading.alpha is not None or reading.scale is not None:
        return reading
    try:
        stat = sidecar.stat()
    except (OSError, ValueError):
        return reading
    alpha, scale = _said(sidecar, stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino, stat.st_ctime_ns)
    try:
        return reading if alpha is None and scale is None else replace(reading, alpha=alpha, scale=scale)
    except StackError as error:
        raise FileError(sidecar, f"its {error}") from error


@lru_cache(maxsize=256)
def _said(sidecar: Path, *_state: int) -> tuple[Any, Any]:
    """Return alpha and scale in a state of a sidecar; what cannot be read as JSON says nothing."""
    try:
        own = read_object(sidecar).get("remora")
    except FileError:
        return None, None
    return (own.get("alpha"), own.get("scale")) if isinstance(own, dict) else (None, None)


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON file that has an object.

    Raises:
        FileError: it cannot be read, or has something else.
    """
    try:
        with open_regular(path) as stream:
            content = stream.read(_MOST_JSON + 1)
        if len(content) > _MOST_JSON:
            raise ValueError(f"it has more than {_MOST_JSON:,} bytes")
        loaded = json.loads(content.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(path, f"it cannot be read as JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise FileError(path, "it is not a JSON object")
    return loaded


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file. A pipe would block for ever, and a device may have no end.

    Another program may put a pipe in its place at any time, so that it is opened without waiting, and looked at again.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    if S_ISREG(path.stat().st_mode):
        stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  # it is returned
        if S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream
        stream.close()
    raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a regular file", str(path))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
