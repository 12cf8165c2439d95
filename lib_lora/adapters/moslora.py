"""LoRA with something that was trained between its factors, dW = alpha / r * up M down.

MoSLoRA: `lora_mixer.weight` is a matrix M (r, r), which mixes the rank components, https://arxiv.org/abs/2406.11909;
the paper's own code calls it `lora_AB`. Sources: wutaiqiang/MoSLoRA
subject_driven_generation/peft/tuners/lora/layer.py; huggingface/peft tuners/moslora/layer.py.

LoRA-XS: `lora_latent_mapping.weight` is M between singular vectors of the weight, https://arxiv.org/abs/2405.17604.
`up` and `down` stay as they are; a file has them, as PEFT saves all that is called `lora_`. Source:
MohammadrezaBanaei/LoRA-XS utils/latent_utils.py.

AdaLoRA: `lora_E` has singular values (r, 1), the diagonal of M, https://arxiv.org/abs/2303.10512. Its scale is alpha /
(ranknum + 1e-5), huggingface/peft tuners/adalora/layer.py. `ranknum` is the rank the training began with, `init_r` of
the configuration: pruning takes ranks away and leaves it as it is. PEFT does not save it.
"""

import math
from dataclasses import replace

from typing_extensions import Self

from ..tensors import LARGEST, wide
from ._rows import number, unfit
from .base import Origin, Params, Site, Tensors
from .lora import LoRA

_PAIR = frozenset({"lora_up.weight", "lora_down.weight"})


class MoSLoRA(LoRA):
    name = "moslora"
    params = Params(
        _PAIR | {"lora_mixer.weight"}, frozenset({"lora_up.bias", "alpha"}), frozenset({"lora_mixer", "lora_AB"})
    )
    kinds = frozenset({"linear", "conv", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        (name,) = cls.params.required - _PAIR
        found, mixer = super().from_params(params, site, origin), params[name]
        shape = found.rank, 1 if name == "lora_E" else found.rank
        if mixer.numel() != math.prod(shape):
            raise unfit(f"{name} {shape}", mixer)
        dtype = wide(found.down.dtype, mixer.dtype)
        mixer, down = mixer.reshape(shape).to(dtype), found.down.flatten(1).to(dtype)
        mixed = mixer * down if name == "lora_E" else mixer @ down
        return replace(found, down=mixed.reshape(found.down.shape))


class LoRAXS(MoSLoRA):
    name = "loraxs"
    params = Params(
        _PAIR | {"lora_latent_mapping.weight"}, frozenset({"lora_up.bias", "alpha"}), frozenset({"lora_latent_mapping"})
    )


class AdaLoRA(MoSLoRA):
    name = "adalora"
    params = Params(_PAIR | {"lora_E"}, frozenset({"ranknum", "alpha"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        lora = super().from_params(params, site, origin)
        begun, said = number(params, "ranknum"), origin.config.get("init_r")
        if begun is None:
            begun = float(said) if isinstance(said, int) and 0 < said <= LARGEST else float(lora.rank)
        scale = origin.alpha.fixed
        scale = (origin.alpha.value or begun) / (begun + 1e-5) if scale is None else scale
        return replace(lora, scale=scale, schedule=None)
