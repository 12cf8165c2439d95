"""transformers' `Conv1D`, a linear layer whose weight is (in, out): GPT-2, in UniDiffuser and AudioLDM 2.

Source: huggingface/transformers pytorch_utils.py.
"""

from torch import Tensor, nn

from .base import WeightReader, stored
from .dense import Dense


class Conv1D(WeightReader):
    """The parameter, with rows and columns exchanged."""

    name = "conv1d"
    before = ("dense",)

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param) if type(layer).__name__ == "Conv1D" and param == "weight" else None
        return weight is not None and weight.ndim == 2 and getattr(layer, "nf", None) == weight.shape[1]

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        return Dense.read(layer, param).t()

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        weight = stored(layer, param)
        return None if weight is None else tuple(weight.t().shape)
