"""How the numbers of a file are read: the alpha of a layer, and the user's choices where programs disagree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import NumberError
from ..tensors import LARGEST


@dataclass(frozen=True, slots=True)
class Reading:
    """Choices where the trainer of a file and the programs that load it disagree.

    By default a file acts as it does in other programs: pictures and strengths that users know stay as they are.
    """

    split_qkv_as_trained: bool = False
    """kohya's `split_qkv=True` trains q, k and v (and the MLP beside them) as LoRA of their own, at alpha / r. It saves
    them as one of rank 3 r or 4 r with the alpha unchanged, so that they act at a third or a quarter of what they
    learned (kohya-ss/sd-scripts networks/lora_flux.py, `state_dict`). True multiplies those layers by 3 or 4.
    """
    dylora_as_trained: bool = False
    """LyCORIS' DyLoRA trains at alpha / number of blocks and is loaded at alpha / rank (modules/dylora.py). True
    multiplies it by the size of its blocks.
    """
    fragments: bool = False
    """Apply a file of which most fits no layer of the model. By default it is refused: what fits by accident, such as a
    layer that has the same name in another model, gives a picture that no user wants.
    """


USUAL = Reading()
"""As other programs read."""


@dataclass(frozen=True, slots=True)
class Alpha:
    """The source of a scale: the file's alpha, and whether it is divided by r or by sqrt(r)."""

    value: float | None = None
    """None or 0 means scale 1, as in every trainer."""
    rank_stabilized: bool = False
    """rsLoRA, https://arxiv.org/abs/2312.03732."""

    def scale(self, rank: int) -> float:
        """Return alpha / rank."""
        if not self.value:
            return 1.0
        return self.value / (math.sqrt(rank) if self.rank_stabilized else rank)


_NO_ALPHA = Alpha()


def configured_alpha(values: Mapping[str, object]) -> Alpha:
    """Return the alpha in a layer's configuration; raise NumberError where it is not finite."""
    value = values.get("lora_alpha", values.get("alpha"))  # the second in PEFT's LoHa and LoKr
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _NO_ALPHA
    if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
        raise NumberError(f"want a finite number as alpha, got {str(value)[:20]}")
    return Alpha(float(value), rank_stabilized=values.get("use_rslora") is True)
