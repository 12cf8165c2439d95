"""Numbers of a trainer's configuration that say what the tensors mean."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import NumberError, UnsupportedError
from ..tensors import LARGEST
from .base import NO_ALPHA, Alpha, Origin


def configured(origin: Origin, name: str) -> float:
    """Return a number of the trainer's configuration.

    Raises:
        NumberError: it is not finite.
        UnsupportedError: it is missing, or no number.
    """
    value = origin.config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError(f"without the number {name}, which adapter_config.json of adapter_model.safetensors has")
    if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
        raise NumberError(f"want a finite number as {name}, got {str(value)[:20]}")
    return float(value)


def configured_count(origin: Origin, name: str, least: int = 1) -> int:
    """Return a whole number of the trainer's configuration.

    Raises:
        NumberError: it is not finite.
        UnsupportedError: it is missing, no whole number, or below `least`.
    """
    value = configured(origin, name)
    if value != int(value) or value < least:
        raise UnsupportedError(f"with {name} {value:g} in adapter_config.json: want a whole number of {least} or more")
    return int(value)


def configured_alpha(values: Mapping[str, object]) -> Alpha:
    """Return the alpha in a layer's configuration; raise NumberError where it is not finite."""
    value = values.get("lora_alpha", values.get("alpha"))  # the second in PEFT's LoHa and LoKr
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NO_ALPHA
    if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
        raise NumberError(f"want a finite number as alpha, got {str(value)[:20]}")
    return Alpha(float(value), rank_stabilized=values.get("use_rslora") is True)
