"""The training options in a file's metadata, and in its trainer's configuration, that say what its tensors mean.

kohya's sd-scripts writes `ss_network_module`, `ss_network_args` (JSON) and the time of the training, ModelSpec's
`modelspec.date` its day. Metadata is untrusted: unreadable values are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache

from torch import Tensor

from ..errors import NumberError, UnsupportedError
from ..files.formats.base import CONFIG_SCALE
from ..tensors import LARGEST
from .base import NO_ALPHA, Alpha, Origin, RankSchedule

GLORA_OLD = (datetime(2023, 6, 28, tzinfo=timezone.utc), datetime(2024, 5, 25, tzinfo=timezone.utc))
"""When LyCORIS saved GLoRA in its first layout (changed by 8c6576f)."""
RS_LORA_RAW = (datetime(2024, 4, 5, tzinfo=timezone.utc), datetime(2024, 7, 9, tzinfo=timezone.utc))
"""When LyCORIS saved the alpha of an rs-LoRA as it was given, not multiplied by sqrt(r) (changed by 170554c)."""

_TIMES = ("ss_training_finished_at", "ss_training_started_at", "modelspec.date")
_DYLORA_BLOCK = 4  # LyCORIS' default
_SPLIT = {"qkv": 3, "linear1": 4}  # how a layer's name ends -> how many kohya's split_qkv makes of it


def arguments(origin: Origin) -> Mapping[str, object]:
    """Return the arguments of the network: kohya's `ss_network_args`, else the configuration (SimpleTuner's)."""
    return _parsed(origin.metadata.get("ss_network_args", "")) or origin.config


def trained_within(origin: Origin, period: tuple[datetime, datetime]) -> bool:
    """Return whether the file says that it was made in a period, the end excluded."""
    for key in _TIMES:
        when = _time(origin.metadata.get(key, ""))
        if when is not None:
            return period[0] <= when < period[1]
    return False


def lycoris_scale(origin: Origin, rank: int, *, alpha_is_raw: bool = False) -> float:
    """Return alpha / rank as the trainer of the file used it.

    With `alpha_is_raw`, every version saves the alpha of an rs-LoRA as it was given.
    """
    alpha, said = origin.alpha, arguments(origin)
    if str(said.get("rs_lora", False)).lower() != "false" and (alpha_is_raw or trained_within(origin, RS_LORA_RAW)):
        alpha = replace(alpha, rank_stabilized=True)
    return alpha.scale(rank)


def dylora_block(origin: Origin, rank: int) -> int:
    """Return the size of the rank blocks of LyCORIS' DyLoRA; 1 for everything else.

    It trains at alpha / number of blocks (LyCORIS modules/dylora.py), so its scale is alpha / rank times this. kohya's
    own DyLoRA has units instead and trains at alpha / rank.
    """
    said = arguments(origin)
    if str(said.get("algo")).lower() != "dylora":
        return 1
    try:
        size = int(str(said.get("block_size") or _DYLORA_BLOCK))
    except ValueError:
        return 1
    return size if size > 0 and rank % size == 0 else 1


def split_parts(origin: Origin, up: Tensor) -> int:
    """Return how many LoRA of kohya's `split_qkv` this one holds; 1 for everything else.

    Each was trained at alpha / r, and together they have the rank parts * r and the same alpha: the scale is alpha /
    rank times this (sd-scripts networks/lora_flux.py and lora_sd3.py, `state_dict`). `up` then is zero but for a block
    of each part. The first and the last row are checked, as the metadata outlives a resize or a merge.
    """
    # the trainer takes no other spelling of it
    if str(arguments(origin).get("split_qkv")) != "True":
        return 1
    parts = next((count for end, count in _SPLIT.items() if origin.module.endswith(end)), 1)
    rank = up.shape[1]
    own, rest = divmod(rank, parts)
    others = up[0, own:], up[-1, : rank - own]
    return 1 if rest or any(bool(one.float().any()) for one in others) else parts


def lora_scale_and_schedule(origin: Origin, rank: int, up: Tensor) -> tuple[float, RankSchedule | None]:
    """Return the factor on up @ down of a LoRA, and the schedule of its ranks, as its trainer used them."""
    said = arguments(origin)
    scale = lycoris_scale(origin, rank) if "rs_lora" in said else origin.alpha.scale(rank)
    if origin.reading.dylora_as_trained:
        scale *= dylora_block(origin, rank)
    if origin.reading.split_qkv_as_trained:
        scale *= split_parts(origin, up)
    return scale, rank_schedule(origin, up.shape[1]) if "use_timestep_mask" in said else None


def rank_schedule(origin: Origin, rank: int, *, certain: bool = False) -> RankSchedule | None:
    """Read the schedule of a T-LoRA by the names of SimpleTuner and LyCORIS' wrapper.

    It is `certain` where the parameters show it. A LoRA that was trained with a schedule looks like others.
    """
    said = arguments(origin)
    if not certain and str(said.get("use_timestep_mask", False)).lower() == "false":
        return None
    least, power = _number(said.get("tlora_min_rank"), 1), _number(said.get("tlora_alpha"), 1)
    return RankSchedule(rank, int(min(max(least, 0), rank)), power if power > 0 else 1.0)


def configured(origin: Origin, name: str) -> float:
    """Return a number of the trainer's configuration; raise a ValueError if it is missing or not finite."""
    value = origin.config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(f"without the number {name}, which adapter_config.json of adapter_model.safetensors has")
    return _finite(value, name)


def configured_count(origin: Origin, name: str, least: int = 1) -> int:
    """Return a whole number of the trainer's configuration; raise a ValueError if there is none of `least` or more."""
    value = configured(origin, name)
    if value != int(value) or value < least:
        raise UnsupportedError(f"with {name} {value:g} in adapter_config.json: want a whole number of {least} or more")
    return int(value)


def configured_alpha(values: Mapping[str, object]) -> Alpha:
    """Return the alpha in a layer's configuration; raise NumberError where it is not finite."""
    scale = values.get(CONFIG_SCALE)
    value = values.get("lora_alpha", values.get("alpha")) if scale is None else scale  # in PEFT's LoHa it is `alpha`
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NO_ALPHA
    if scale is not None:
        return Alpha(fixed=_finite(value, "scale"))
    return Alpha(_finite(value, "alpha"), rank_stabilized=values.get("use_rslora") is True)


def _finite(value: float, name: str) -> float:
    if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
        raise NumberError(f"want a finite number as {name}, got {str(value)[:20]}")
    return float(value)


@lru_cache(maxsize=8)
def _parsed(text: str) -> Mapping[str, object]:
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _number(value: object, default: float) -> float:
    try:
        number = float(str(value))
    except ValueError:
        return default
    return number if math.isfinite(number) else default


def _time(text: str) -> datetime | None:
    """Return a time in seconds or in ISO 8601; None for anything else."""
    try:
        return datetime.fromtimestamp(float(text), timezone.utc)
    except (OverflowError, OSError):
        return None
    except ValueError:  # no number, or no finite one
        pass
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
