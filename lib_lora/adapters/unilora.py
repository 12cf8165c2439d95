"""UniLoRA: a pair whose numbers are picked from one vector that all layers share, https://arxiv.org/abs/2506.00799.

A[i, j] = theta[indices_A[i, j]] scales_A[i, j], and B likewise; there is no alpha. Without `save_indices` PEFT draws
the indices for all trained layers at once from a seed. Source: huggingface/peft tuners/unilora/layer.py and model.py.
"""

from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from ._rows import unfit
from .base import Origin, Params, Site, Tensors
from .lora import LoRA

_A = ("unilora_indices_A", "unilora_scales_A")
_B = ("unilora_indices_B", "unilora_scales_B")


class UniLoRA(LoRA):
    name = "unilora"
    scaled = False
    params = Params(frozenset({*_A, *_B}))
    shaped_by = (_B[0], _A[0])
    shared = frozenset({"unilora_theta_d"})
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        theta = origin.shared.get("unilora_theta_d")
        if theta is None or theta.ndim != 1:
            raise UnsupportedError("of UniLoRA without unilora_theta_d, which all its layers share")
        rank = params[_A[0]].shape[0] if params[_A[0]].ndim else 0
        down = _picked(theta, params, _A, (rank, site.inside))
        return cls(down, _picked(theta, params, _B, (site.shape[0], rank)), 1.0, site.shape)


def _picked(theta: Tensor, params: Tensors, names: tuple[str, str], want: tuple[int, int]) -> Tensor:
    indices, scales = (params[name] for name in names)
    if indices.shape != want or scales.shape != want:
        raise unfit(f"{' and '.join(names)} {want}", indices, scales)
    indices, dtype = indices.long(), wide(theta.dtype)
    if bool(((indices < 0) | (indices >= theta.shape[0])).any()):
        raise ValueError(f"{names[0]} reaches outside of a vector of {theta.shape[0]}")
    return theta.to(dtype)[indices] * scales.to(dtype)
