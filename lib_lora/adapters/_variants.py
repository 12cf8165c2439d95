"""What PEFT's configuration says of a LoRA that its tensors do not show.

Source: huggingface/peft tuners/lora/config.py, variants.py, and peft_model.py,
`path_initial_model_for_weight_conversion`, whose result is a plain LoRA of twice the rank.
"""

from __future__ import annotations

from torch import Tensor

from ..errors import UnsupportedError
from ._config import configured_count
from .base import Origin, Site

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


def check_reshaped(shape: Tensor, site: Site) -> None:
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
