"""LoRA on an embedding as PEFT saves it: `lora_embedding_A` (r, entries) and `lora_embedding_B` (width, r).

dW = alpha / r * (B A)^T, huggingface/peft tuners/lora/layer.py, `Embedding`.
"""

from typing_extensions import Self

from ._rows import unfit
from .base import Origin, Params, Shapes, Site, Tensors
from .lora import LoRA


class LoRAEmbedding(LoRA):
    """A LoRA whose factors are saved the other way round."""

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
