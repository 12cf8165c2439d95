"""How to read files of which their trainers and other programs make different things."""

from __future__ import annotations

from dataclasses import dataclass


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
    alpha: float | None = None
    """The alpha of all layers, in the place of what the file says; None leaves it to the file."""
    scale: float | None = None
    """The scale of all layers, alpha / rank, in the place of what the file says. It beats `alpha`."""
    fragments: bool = False
    """Apply a file of which most fits no layer of the model. By default it is refused: what fits by accident, such as a
    layer that has the same name in another model, gives a picture that no user wants.
    """


USUAL = Reading()
"""As other programs read."""
