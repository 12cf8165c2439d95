"""What a report says of the scale of a file's layers, alpha / rank.

`ParsedFile.adapter` decides it. The first that tells counts:

1. the user: `Reading.scale`, else `Reading.alpha`;
2. an `alpha` tensor of the layer;
3. the file's header, in any spelling: `files/formats/_header.py`;
4. `adapter_config.json`, where it is the file's own: `files/formats/_trainer_config.py`;
5. the convention of the spelling: without an alpha, kohya's and diffusers' trainers mean the scale 1;
6. a guess, 1, for PEFT's spelling, whose alpha is never 1 by itself. The report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from ..adapters import configured_alpha
from ..adapters.base import NO_ALPHA
from ..errors import NumberError
from ..files.file import AdapterFile

ScaleSource = Literal["user", "tensors", "file", "convention", "guess"]
"""What tells the scale of a file: `file` is its header or its configuration."""

NO_SCALE = (
    "its scale is unknown and taken as 1, as neither its tensors nor its header nor an adapter_config.json of its own "
    "has an alpha; if it is too strong or too weak, give its alpha"
)
UNUSED_SCALE = "the alpha or scale that you give has no effect, as no kind in it has a scale"
_LOKR = (
    "LoKr layers have two full matrices and an alpha, and nothing tells the rank that it is divided by: their scale is "
    "taken as 1; if it is too strong, give its scale"
)
_RANKS = {"lora_up.weight": 1, "hada_w1_b": 0, "lokr_w2_b": 0, "lokr_w1_b": 0, "lora_embedding_B": 1}
"""Parameter -> the dimension that is the rank, the one that counts first in front."""


def rank_of(shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the rank of a layer by the shapes of its parameters; None where none tells it."""
    for param, dim in _RANKS.items():
        if len(shape := shapes.get(param, ())) > dim:
            return shape[dim]
    return None


def source_of(config: Mapping[str, object], *, has_alpha: bool, configured: bool) -> ScaleSource:
    """Return what tells the scale of a layer if the user does not; for `configured` see `KeyFormat`."""
    if has_alpha:
        return "tensors"
    with suppress(NumberError):  # else the layer is left out, and says so
        if configured_alpha(config) == NO_ALPHA:
            return "guess" if configured else "convention"
    return "file"


def doubt_of(keys: Mapping[str, str], file: AdapterFile, config: Mapping[str, object]) -> str:
    """Return that only the trainer of a LoKr knows its scale; empty where something tells it.

    Of two full matrices no shape is the rank. LyCORIS then stores the rank as alpha, which is at least half as long as
    the second matrix, and trains at 1. Another number may be divided by a rank that is nowhere.
    """
    full = {"lokr_w1", "lokr_w2", "alpha"}
    if not full <= keys.keys() or config.get("r") or "lokr_factor" in file.infos:
        return ""
    alpha, size = file.numbers.get(keys["alpha"], 0.0), max(file.infos[keys["lokr_w2"]].shape, default=0)
    return _LOKR if 0 < 2 * alpha < size else ""
