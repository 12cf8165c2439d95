"""Components of a model: the role of each, and which of them a key of a file means.

Names are diffusers'. Files are not as exact: kohya calls every denoiser `lora_unet`, ComfyUI `diffusion_model`, and
trainers number text encoders differently. So a key names a component or a role, and the layers it names decide where
that leaves a choice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from ..errors import check_type

DENOISER = "denoiser"
"""Role of the denoiser: a UNet or a transformer."""
TEXT_ENCODER = "text_encoder"
"""Role of text encoders, and the name of the first."""

EXPERTS = ("transformer", "transformer_2")
NOISE = ("high", "low")
"""Two halves of one denoiser (Wan 2.2), and the noise in which each acts."""
REFERENCE = "transformer_ref"
"""MiniMax-H3's denoiser for references: the layers of `transformer`, other weights. A file is for one of the two."""

EXACT = frozenset({"unet", "prior", *EXPERTS, REFERENCE, TEXT_ENCODER, *(f"{TEXT_ENCODER}_{i}" for i in (2, 3, 4))})
"""Names of one component each; any other name in a key is a role."""
_DENOISERS = re.compile(
    r"(?:\w+_)?(?:unet|transformer|prior|denoiser|dit)(?:_ref|_?\d+)?|diffusion_model|decoder|super_res_(?:first|last)"
)
"""Names of denoisers in diffusers: `decoder` is Stable Cascade's and UnCLIP's; what decodes latents is called `vae`."""
_TEXT_ENCODERS = re.compile(r"(?:prior_)?text_encoders?(?:_?\d+)?(?:\..+)?|bert")
"""`prior_text_encoder` is of pipelines that have a prior of their own, `bert` of the first latent diffusion model.
Programs have further names below `text_encoders`.
"""

_INSIDE = {"llm_adapter": DENOISER, "text_conditioner": DENOISER}
"""Components that other programs keep inside another one, so that files have them there: Anima's adapter."""


@lru_cache(maxsize=1024)
def role(component: str) -> str:
    """Return the role of a component, by its name; its own name if no other component has that role."""
    if _TEXT_ENCODERS.fullmatch(component):
        return TEXT_ENCODER
    return DENOISER if _DENOISERS.fullmatch(component) else component


def is_denoiser(component: str) -> bool:
    """Return whether a component is called at each step, by its name."""
    check_type(component, str, "component", "the name of a component, as 'unet'")
    return role(component) == DENOISER


def candidates(wanted: str | None, present: Sequence[str], experts: Sequence[str] = EXPERTS) -> list[tuple[str, ...]]:
    """Return the components that a key may mean, the likeliest first; a tuple's components are meant together.

    Args:
        wanted: a component or a role, as the key says; None where it says nothing.
        present: the model's components.
        experts: the `EXPERTS` that the file is for where its keys do not tell, in a model that has both.
    """
    if wanted in (EXPERTS[1], REFERENCE):
        return [(wanted,)] if wanted in present else []
    found = [name for name in present if wanted is None or role(wanted) in (role(name), _INSIDE.get(name))]
    found.sort(key=lambda name: (name != wanted, name in _INSIDE, name == REFERENCE))
    if not set(EXPERTS) <= set(found):
        return [(name,) for name in found]
    both = tuple(name for name in EXPERTS if name in experts)
    return [both if name == EXPERTS[0] else (name,) for name in found if name != EXPERTS[1]]


def noise_of(changed: Collection[str], present: Collection[str]) -> str:
    """Return `high` or `low` where a model has both experts and one alone is changed; else an empty text."""
    found = [noise for noise, expert in zip(NOISE, EXPERTS, strict=True) if expert in changed]
    return found[0] if len(found) == 1 and set(EXPERTS) <= set(present) else ""
