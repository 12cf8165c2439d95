"""DeLoRA: a pair whose rank-one parts have a trained strength, https://arxiv.org/abs/2503.18225.

dW = m (l / r) B diag(1 / (|a_i| |b_i|)) A diag(w), with rows a_i and columns b_i, `delora_lambda` l, and
`delora_w_norm` w (in,), the norms of the columns of the weight that was trained on. Source: huggingface/peft
tuners/delora/layer.py.
"""

from typing_extensions import Self

from ..tensors import wide
from ._rows import number, unfit
from .base import Origin, Params, Site, Tensors
from .lora import LoRA

_LEAST = 1e-4  # PEFT's, of a norm


class DeLoRA(LoRA):
    name = "delora"
    scaled = False
    params = Params(frozenset({"delora_A", "delora_B", "delora_lambda", "delora_w_norm"}))
    shaped_by = ("delora_B", "delora_A")
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        a, b, widths, out = params["delora_A"], params["delora_B"], params["delora_w_norm"], site.shape[0]
        rank, strength = a.shape[0] if a.ndim == 2 else 0, number(params, "delora_lambda")
        if a.shape != (rank, site.inside) or b.shape != (out, rank) or widths.shape != (site.inside,):
            raise unfit(f"A (r, {site.inside}), B ({out}, r) and delora_w_norm ({site.inside},)", a, b, widths)
        assert strength is not None
        down, up, widths = (one.to(wide(a.dtype)) for one in (a, b, widths))
        down, up = down / down.norm(dim=1, keepdim=True).clamp_min(_LEAST), up / up.norm(dim=0).clamp_min(_LEAST)
        return cls(down * widths, up, strength / rank, site.shape)
