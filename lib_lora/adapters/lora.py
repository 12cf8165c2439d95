"""LoRA on linear layers, LoCon on convolutions, with the optional tucker core; also on embeddings.

dW = alpha / r * up @ down, https://arxiv.org/abs/2106.09685. On a convolution `down` has the layer's kernel, stride
and padding and `up` is 1x1 (kohya networks/lora.py). LyCORIS' tucker form keeps `down` 1x1 and puts the kernel into a
core `mid` (LyCORIS functional/general.py, `rebuild_tucker`): dW[p, q, k] = sum_ij up[p, i] mid[i, j, k] down[j, q].
An embedding's weight is (entries, width); its pair is up (entries, r) and down (r, width). PEFT saves it as
`lora_embedding_A` (r, entries) and `lora_embedding_B` (width, r).

PEFT's configuration says of a LoRA what its tensors do not show. Sources: huggingface/peft tuners/lora/layer.py,
config.py, variants.py, and peft_model.py, `path_initial_model_for_weight_conversion`, whose result is a plain LoRA of
twice the rank.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from ._rows import shape_text, unfit
from ._trainer import configured_count, lora_scale_and_schedule
from .base import Form, LowRank, Origin, Pair, Params, RankSchedule, Shapes, Site, Tensors, bias_for

# setting -> what a LoRA with it is
_OTHERS = {
    "alora_invocation_tokens": "of an aLoRA, which acts only on tokens behind those that invoke it: "
    "use it with its language model in PEFT, or train a plain LoRA",
    "arrow_config": "of a LoRA that Arrow chooses for each token",
    "kasa_config": "of KaSA, which was trained on base weights without their least singular values",
    "monteclora_config": "of MonteCLoRA, whose samples are not in the file",
    "use_bdlora": "of BD-LoRA, whose factors are blocks of a diagonal",
}
_CHANGED = {"pissa": "PiSSA", "olora": "OLoRA", "corda": "CorDA", "lora_ga": "LoRA-GA"}
"""Begin of the way of initialisation -> name of one that changes the base weights; EVA's and MiCA's do not.

LoftQ's are the quantized ones, which such a file is for.
"""


@dataclass(frozen=True, slots=True, eq=False)
class LoRA(LowRank):
    down: Tensor  # (r, in, *kernel)
    up: Tensor  # (out, r)
    scale: float
    shape: tuple[int, ...]
    bias: Tensor | None = None  # (out,), PEFT's lora_bias, scaled
    schedule: RankSchedule | None = None

    name = "lora"
    scaled = True
    params = Params(
        required=frozenset({"lora_up.weight", "lora_down.weight"}),
        optional=frozenset({"lora_mid.weight", "lora_up.bias", "alpha", "reshape_weight"}),
    )
    shaped_by = ("lora_up.weight", "lora_down.weight")
    row_fields = ("up", "shape", "bias")
    kinds = frozenset({"linear", "conv", "attention", "embedding", "experts"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        down, up = params["lora_down.weight"], params["lora_up.weight"]
        mid, bias = params.get("lora_mid.weight"), params.get("lora_up.bias")
        out = site.shape[0]
        rank = up.shape[1] if up.ndim > 1 else 0
        if rank == 0 or up.numel() != out * rank:
            raise unfit(f"up ({out}, r)", up)
        up = up.reshape(out, rank)
        if "reshape_weight" in params:
            _check_reshaped(params["reshape_weight"], site)
        if origin.config:
            down = as_plain(down, site, origin)
        if mid is not None or down.shape != (rank, *site.shape[1:]):
            down = _down(down, mid, rank, site)
        scale, schedule = lora_scale_and_schedule(origin, params["lora_down.weight"].shape[0], up)
        bias = None if bias is None else bias_for(site, "a bias", bias.to(wide(bias.dtype)) * scale)
        return cls(down, up, scale, site.shape, bias, schedule)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        shape = super(LoRA, cls).own_shape(shapes)
        core = shapes.get("lora_mid.weight")
        return shape if shape is None or core is None else (*shape[:2], *core[2:])

    def form(self, rank: int | None = None) -> Form:
        full = self.up.shape[1]
        return Form(Pair(min(full, rank or full), self.scale, self.schedule))


class LoRAEmbedding(LoRA):
    name = "lora_embedding"
    params = Params(required=frozenset({"lora_embedding_A", "lora_embedding_B"}), optional=frozenset({"alpha"}))
    kinds = frozenset({"embedding"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        a, b = params["lora_embedding_A"], params["lora_embedding_B"]
        if a.ndim != 2 or b.ndim != 2:
            raise unfit(f"A (r, {site.shape[0]}) and B ({site.inside}, r)", a, b)
        return super().from_params({"lora_up.weight": a.t(), "lora_down.weight": b.t()}, site, origin)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return (*shapes["lora_embedding_A"][1:2], *shapes["lora_embedding_B"][:1])


def _down(down: Tensor, mid: Tensor | None, rank: int, site: Site) -> Tensor:
    """Reshape `down` to the site's shape, with the core, if there is one; raise ValueError if it does not fit."""
    shape = site.shape
    if down.ndim < 2:
        raise unfit(f"down ({rank}, {site.inside})", down)
    if mid is not None:
        core = (rank, down.shape[0], *shape[2:])
        if tuple(mid.shape) != core or down.numel() != down.shape[0] * shape[1]:
            got = f"{shape_text(mid)} and {shape_text(down)}"
            raise ValueError(f"want mid {core} and down (r, {shape[1]}), got {got}")
        dtype = wide(down.dtype)  # this product must not cost precision
        return torch.einsum("ij...,jq->iq...", mid.to(dtype), down.reshape(-1, shape[1]).to(dtype))
    if down.shape[0] != rank or down.numel() != rank * site.inside:
        raise unfit(f"down ({', '.join(map(str, (rank, *shape[1:])))})", down)
    # linear layers saved as 1x1 convolutions, the reverse, and LyCORIS' flattened convolutions all occur
    return down.reshape(rank, *shape[1:])


def as_plain(down: Tensor, site: Site, origin: Origin) -> Tensor:
    """Return the factor `down` of the plain LoRA that one of PEFT is; that of QALoRA acts on means of its inputs.

    Raises:
        UnsupportedError: it is no plain LoRA, or was trained on other base weights.
    """
    config = origin.config
    begin = str(config.get("init_lora_weights")).lower()
    for start, name in _CHANGED.items():
        if begin.startswith(start):
            raise UnsupportedError(
                f"of a LoRA beside base weights that {name} changed: save it again by PEFT's save_pretrained(folder, "
                "path_initial_model_for_weight_conversion=...), given the adapter as it was before the training"
            )
    for setting, text in _OTHERS.items():
        if config.get(setting):
            raise UnsupportedError(text)
    if config.get("use_qalora") and down.ndim == 2 and down.shape[1] != site.inside:
        size = configured_count(origin, "qalora_group_size")
        if down.shape[1] * size == site.inside:
            return down.repeat_interleave(size, 1) * (down.shape[1] / size)
    return down


def _check_reshaped(shape: Tensor, site: Site) -> None:
    """Check that a layer has the shape that its LoRA is for; ComfyUI widens it by zeros to its `reshape_weight` (n,).

    Raises:
        UnsupportedError: it has another shape.
    """
    wanted = tuple(int(size) for size in shape.flatten().tolist())
    if wanted != site.shape:
        raise UnsupportedError(
            f"of a layer that is widened from {site.shape} to {wanted}: load the model whose layer has that shape, "
            "such as a control model"
        )
