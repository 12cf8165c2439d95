"""LoRA-XS: a small trained matrix between singular vectors of the weight, dW = alpha / r * up R down.

`lora_latent_mapping.weight` is R (r, r). `up` and `down` are made of the base weight and stay as they are; a file has
them, as PEFT saves all that is called `lora_`. https://arxiv.org/abs/2405.17604. Source: MohammadrezaBanaei/LoRA-XS
utils/latent_utils.py.
"""

from ._refused import Refused
from .base import Params, Shapes
from .moslora import MoSLoRA

_MIDDLE = "lora_latent_mapping.weight"


class LoRAXS(MoSLoRA):
    """A matrix between two factors that were not trained."""

    name = "loraxs"
    params = Params(
        frozenset({"lora_up.weight", "lora_down.weight", _MIDDLE}),
        frozenset({"lora_up.bias", "alpha"}),
        layers=frozenset({"lora_latent_mapping"}),
    )


class LoRAXSAlone(Refused):
    """The matrix without the factors beside it."""

    name = "loraxs_alone"
    params = Params(frozenset({_MIDDLE}))
    reason = (
        "of a LoRA-XS without lora_A and lora_B, singular vectors of the base weight whose signs each machine chooses "
        "for itself: save them, too"
    )

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return shapes.keys() == {_MIDDLE}
