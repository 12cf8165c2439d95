"""torch's DTensor: a weight that lies in parts on several processes, as of FSDP2 and tensor parallel.

FSDP2 gives a layer its whole weight for a call. Elsewhere, all processes must read the weight at the same time.
"""

from typing import Any

from torch import Tensor, nn

from .base import WeightReader, found, stored


class DTensor(WeightReader):
    """The whole weight, which the processes send each other."""

    name = "dtensor"
    before = ("wrapper",)

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        return hasattr(weight, "full_tensor") and hasattr(weight, "placements")

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight: Any = found(layer, param)
        whole: Tensor = weight.full_tensor()
        return whole
