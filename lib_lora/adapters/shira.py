"""SHiRA: single entries of the weight, dW[i, j] = m w, https://arxiv.org/abs/2406.13175.

`shira_weight` (n,) has the changes and `shira_indices` (2, n) their rows and columns, as fp32 where Windows saved them.
Source: huggingface/peft tuners/shira/layer.py and model.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._rows import unfit
from ._sparse import Entries
from .base import Adapter, At, Origin, Params, Proportional, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class SHiRA(Proportional):
    """Single entries."""

    entries: Entries

    name = "shira"
    params = Params(frozenset({"shira_weight", "shira_indices"}))
    row_fields = ("entries",)
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        values, indices = params["shira_weight"], params["shira_indices"]
        if values.ndim != 1 or indices.shape != (2, values.shape[0]):
            want = "shira_weight (n,) and shira_indices (2, n)"
            raise unfit(want, values, indices)
        indices, limits = indices.long(), torch.tensor([[site.shape[0]], [site.inside]])
        if bool(((indices < 0) | (indices >= limits)).any()):
            raise ValueError(f"shira_indices reach outside of ({site.shape[0]}, {site.inside})")
        return cls(Entries(indices[0] * site.inside + indices[1], values, site.shape))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        return self.entries.dense(at.device, at.dtype), at.multiplier
