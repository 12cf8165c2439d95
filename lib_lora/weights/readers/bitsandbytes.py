"""bitsandbytes' 8-bit and 4-bit weights, and Forge's layers on top of the latter.

Source: bitsandbytes nn/modules.py and functional.py; Forge backend/operations_bnb.py, whose layers are no nn.Linear,
declare no sizes and hold a subclass of `Params4bit`.
"""

import copy
import sys
from typing import Any

from torch import Tensor, nn

from .base import WeightReader, found, stored


class BitsAndBytes8(WeightReader):
    """One int8 per entry and the largest absolute value of each row: W = CB * SCB / 127, in fp32."""

    name = "bitsandbytes_8bit"

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        return weight is not None and not weight.is_floating_point() and _row_maxima(layer, weight) is not None

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight = found(layer, param)
        maxima = _row_maxima(layer, weight)
        assert maxima is not None  # `matches` said so
        scale = maxima.detach().to(weight.device).float() / 127
        return weight.detach().float() * scale.view(-1, 1)


class BitsAndBytes4(WeightReader):
    """Blocks of nf4 or fp4 codes, described by a `QuantState`; in the dtype the weight had before."""

    name = "bitsandbytes_4bit"
    before = ("dense",)  # codes may be stored as floats

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        return _quant_state(layer, param) is not None

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        codes, state = found(layer, param).data, _quant_state(layer, param)
        library: Any = sys.modules[type(state).__module__]
        if getattr(state, "packing_format_for_cpu", False):
            codes, state = _unpacked(library, codes, state)
        read: Tensor = library.dequantize_4bit(codes, state)
        return read

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        return tuple(_quant_state(layer, param).shape)


def _row_maxima(layer: nn.Module, weight: Tensor) -> Tensor | None:
    """Return `SCB`, which the first forward moves from the weight to the layer's `state`."""
    for holder in (weight, getattr(layer, "state", None)):
        maxima = getattr(holder, "SCB", None)
        if isinstance(maxima, Tensor):
            return maxima
    return None


def _quant_state(layer: nn.Module, param: str) -> Any:
    """Return the parameter's state, or the layer's copy if a conversion lost it."""
    state = getattr(stored(layer, param), "quant_state", None)
    return getattr(layer, "quant_state", None) if state is None and param == "weight" else state


def _unpacked(library: Any, codes: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Undo, on a copy, the order in which CPUs with AVX-512 BF16 keep the codes from the first forward on.

    The library's own inverse restores the first order in place. It would quantize nested scales a second time, so it
    is told that there are none: they are stored decoded, (blocks, out) in bf16.
    """
    state = copy.copy(state)
    state.original_nested = False
    codes, state = library._convert_weight_packed_for_cpu_inverse(codes, state)
    state.absmax = state.absmax.t().reshape(-1).float()
    return codes, state
