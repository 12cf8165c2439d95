"""Components of a model: what each does, and which of them a key of a file means.

Names are diffusers'. Files are not as exact: kohya calls whatever denoises `lora_unet`, ComfyUI `diffusion_model`, and
numbers of text encoders differ from trainer to trainer. So a key names a component or a role, and the layers it names
decide where that leaves a choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

DENOISER = "denoiser"
"""Role of what denoises: a UNet or a transformer."""
TEXT_ENCODER = "text_encoder"
"""Role of text encoders. It is the first one's name, too, and so that is asked first."""

EXPERTS = ("transformer", "transformer_2")
"""Two halves of one denoiser: the first acts in high noise, the second in low (Wan 2.2)."""


_DENOISERS = frozenset({DENOISER, "diffusion_model", "unet", "prior", "decoder"})

_INSIDE = {"llm_adapter": DENOISER, "text_conditioner": DENOISER}
"""Components that other programs keep inside another, and so files have their layers among its: Anima's adapter."""


def role(component: str) -> str:
    """What a component does; its own name if that is nothing that others do, too."""
    if component in _DENOISERS or component in EXPERTS:
        return DENOISER
    return TEXT_ENCODER if component.startswith(TEXT_ENCODER) else component


def candidates(wanted: str | None, present: Sequence[str], experts: Sequence[str] = EXPERTS) -> list[tuple[str, ...]]:
    """The components a key may be for, the likeliest first; those of one tuple are meant together.

    Args:
        wanted: what the key says: a component, a role, or None where it says nothing.
        present: the model's.
        experts: those of `EXPERTS` that the file is for as far as its keys do not tell. Asked where a model has both.
    """
    if wanted == EXPERTS[1]:
        return [(wanted,)] if wanted in present else []
    found = [name for name in present if wanted is None or role(wanted) in (role(name), _INSIDE.get(name))]
    found.sort(key=lambda name: (name != wanted, name in _INSIDE))
    if not set(EXPERTS) <= set(found):
        return [(name,) for name in found]
    both = tuple(name for name in EXPERTS if name in experts)
    return [both if name == EXPERTS[0] else (name,) for name in found if name != EXPERTS[1]]


_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OF_NOISE = re.compile(
    r"(?<![a-z])(high|low)(?=(?:[\W_]*(?:high|low))?[\W_]*noise)|(?<=noise)[\W_]*(high|low)(?![a-z])"
)
_OF_SOMETHING_ELSE = "angle|cfg|contrast|detail|fps|guidance|key|light|mem|memory|poly|quality|ram|res|resolution|speed"
_BARE = re.compile(rf"(?<![a-z])(high|low)(?![a-z])(?![\W_]*(?:{_OF_SOMETHING_ELSE}|steps?|vram)(?![a-z]))")


def experts_named(name: str) -> tuple[str, ...]:
    """Those of `EXPERTS` that the name of a file speaks of; none or both where it leaves the choice.

    Trainers write Wan 2.2's LoRA in pairs, `…_high_noise` and `…_low_noise` (ostris/ai-toolkit, `save_lora`); what is
    published is called `HighNoise`, `HIGH`, `low-v2` and so on as well. Where noise is spoken of, other words do not
    count. `low` may be the angle or the resolution.
    """
    text = _WORD.sub("_", name).lower()
    words = {before or behind for before, behind in _OF_NOISE.findall(text)} or set(_BARE.findall(text))
    return tuple(one for one, word in zip(EXPERTS, ("high", "low"), strict=True) if word in words)
