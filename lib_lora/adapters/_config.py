"""Numbers of a trainer's configuration that say what the tensors mean."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import NumberError, UnsupportedError
from ..files.formats.base import CONFIG_SCALE
from ..tensors import LARGEST
from .base import NO_ALPHA, Alpha, Origin


def configured(origin: Origin, name: str) -> float:
    """Return a number of the trainer's configuration; raise a ValueError if it is missing or not finite."""
    value = origin.config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(f"without the number {name}, which adapter_config.json of adapter_model.safetensors has")
    if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
        raise NumberError(f"want a finite number as {name}, got {str(value)[:20]}")
    return float(value)


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
    if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
        raise NumberError(f"want a finite number as {'alpha' if scale is None else 'scale'}, got {str(value)[:20]}")
    if scale is not None:
        return Alpha(fixed=float(value))
    return Alpha(float(value), rank_stabilized=values.get("use_rslora") is True)
