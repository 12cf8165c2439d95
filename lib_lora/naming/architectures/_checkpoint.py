"""How the keys of a checkpoint in one file begin, and which component each is of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from ...files.components import DENOISER, TEXT_ENCODER, role
from ...report import Family
from .base import fact, family_of

_PREFIXES = {  # of a single-file checkpoint's keys -> component, or role
    "model.diffusion_model.": DENOISER,
    "diffusion_model.": DENOISER,
    "net.": DENOISER,  # Cosmos and its descendants
    "cond_stage_model.": "text_encoder",
    "conditioner.embedders.0.": "text_encoder",
    "conditioner.embedders.1.": "text_encoder_2",
}
_ENCODER = re.compile(r"text_encoders\.(\w+)\.(?:transformer\.)?(.+)")
"""ComfyUI's: each text encoder has the name of its kind."""
_CLIPS = {f"{TEXT_ENCODER}s.clip_l": 0, f"{TEXT_ENCODER}s.clip_g": 1}  # the usual numbers; others come after
_UNET = ("input_blocks.", "down_blocks.", "time_embed.")
_ENCODER_STARTS = ("text_model.", "encoder.block.", "model.layers.", "model.language_model.", "visual.")
"""CLIP, T5 and language models, in a file of their own."""
_OTHERS = re.compile(r"(first_stage_model|vae|encoder|decoder|control_model)\.|(.*[._])?(lora|lokr|hada|oft)_")
"""Begin of keys in files that are no model here: VAEs, ControlNets, adapters."""
_BLOCK = re.compile(r"(.*\.)?\w*(blocks|layers|refiner)\.\d+\.")

Shapes = Mapping[str, tuple[int, ...]]
T = TypeVar("T")


def prefixes_of(component: str) -> Iterator[str]:
    """Return how the keys of a component may begin in a checkpoint of several."""
    own = DENOISER if role(component) == DENOISER else component
    return (prefix for prefix, owner in _PREFIXES.items() if owner == own)


def components_of(keys: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return the components of a checkpoint in one file: what is known of each key, by the name without its prefix."""
    found: dict[str, dict[str, T]] = {}  # by component, role, or encoder's kind
    for key, known in keys.items():
        prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), None)
        if prefix is not None:
            found.setdefault(_PREFIXES[prefix], {})[key.removeprefix(prefix)] = known
        elif encoder := _ENCODER.fullmatch(key):
            found.setdefault(f"{TEXT_ENCODER}s.{encoder[1]}", {})[encoder[2]] = known
    if not found and (owner := _sole_owner(keys)) is not None:
        found = {owner: dict(keys)}
    return {_name(owner, own, list(found)): own for owner, own in found.items()}


def family_of_checkpoint(shapes: Shapes) -> Family | None:
    """Return the family of a checkpoint in one file; None where nothing tells."""
    facts = [
        fact(component, key.removesuffix(".weight"), shape[1])
        for component, own in components_of(shapes).items()
        for key, shape in own.items()
        if key.endswith(".weight") and len(shape) > 1
    ]
    return family_of(facts)


def _sole_owner(keys: Iterable[str]) -> str | None:
    """Return the role of a file without prefixes; None if it is no model here."""
    if any(key.startswith(_ENCODER_STARTS) for key in keys):
        return TEXT_ENCODER
    if any(_OTHERS.match(key) for key in keys):
        return None
    return DENOISER if any(_BLOCK.match(key) for key in keys) else None


def _name(owner: str, keys: Iterable[str], owners: Iterable[str]) -> str:
    """Return diffusers' name of a component."""
    if owner == DENOISER:
        return "unet" if any(key.startswith(_UNET) for key in keys) else "transformer"
    kinds = [one for one in owners if one.startswith(f"{TEXT_ENCODER}s.")]
    if owner not in kinds:
        return owner
    number = sorted(kinds, key=lambda kind: _CLIPS.get(kind, len(_CLIPS))).index(owner) + 1
    return TEXT_ENCODER if number == 1 else f"{TEXT_ENCODER}_{number}"
