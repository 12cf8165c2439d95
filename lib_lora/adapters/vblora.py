"""VB-LoRA: a pair whose pieces are mixtures of a few vectors of one bank, https://arxiv.org/abs/2405.15179.

`vblora_logits_A` (r, in / v, bank) and `vblora_logits_B` (out / v, r, bank): the `topk` largest logits of a piece, put
through softmax, mix as many vectors of `vblora_vector_bank` (bank, v), which all layers share. With
`save_only_topk_weights` the file has the places (..., topk) and all but the last of the mixing weights (..., topk - 1).
There is no alpha. Source: huggingface/peft tuners/vblora/layer.py and model.py.
"""

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from ._rows import unfit
from ._trainer import configured_count
from .base import Origin, Params, Shapes, Site, Tensors
from .lora import LoRA

_LOGITS = frozenset({"vblora_logits_A", "vblora_logits_B"})
_SAVED = frozenset({f"{name}_topk_{part}" for name in _LOGITS for part in ("indices", "weights")})


class VBLoRA(LoRA):
    name = "vblora"
    scaled = False
    params = Params(frozenset(), _LOGITS | _SAVED)
    shared = frozenset({"vblora_vector_bank"})
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return shapes.keys() in (_LOGITS, _SAVED)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        bank = origin.shared.get("vblora_vector_bank")
        if bank is None or bank.ndim != 2:
            raise UnsupportedError("of VB-LoRA without vblora_vector_bank, which all its layers share")
        a, b = (_mixed(params, name, origin, bank) for name in sorted(_LOGITS))
        down, up = a.flatten(1), b.transpose(1, 2).flatten(0, 1)
        if down.shape[1] != site.inside or up.shape != (site.shape[0], len(down)):
            raise unfit(f"pieces of A (r, {site.inside}) and B ({site.shape[0]}, r)", down, up)
        return cls(down, up, 1.0, site.shape)


def _mixed(params: Tensors, name: str, origin: Origin, bank: Tensor) -> Tensor:
    """Return the pieces (..., v) that the logits make of the bank, or what was saved in their place.

    Raises:
        ValueError: the tensors do not fit each other or the bank.
    """
    if name in params:
        logits, count = params[name], configured_count(origin, "topk")
        if logits.ndim != 3 or logits.shape[2] != len(bank) or count > len(bank):
            raise unfit(f"{name} of {len(bank)} logits, {count} or more", logits)
        largest, places = logits.to(wide(logits.dtype)).topk(count, dim=-1)
        weights = largest.softmax(-1)
    else:
        places, weights = params[f"{name}_topk_indices"].long(), params[f"{name}_topk_weights"]
        if places.ndim != 3 or weights.shape != (*places.shape[:2], places.shape[2] - 1):
            raise unfit(f"{name} (..., k) and (..., k - 1)", places, weights)
        if bool(((places < 0) | (places >= len(bank))).any()):
            raise ValueError(f"{name} reaches outside of a bank of {len(bank)}")
        weights = weights.to(wide(weights.dtype))
        weights = torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], -1)
    return (weights.unsqueeze(-1) * bank.to(weights)[places]).sum(-2)
