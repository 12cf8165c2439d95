"""Checkpoints as they are published: each of their weights is a layer of diffusers' model, under its published name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from diffusers import Flux2Transformer2DModel
from torch import nn

from lib_lora.families import alias_table
from lib_lora.layer import LayerIndex
from tests.families import _language_models, anima, families, z_image
from tests.families.base import on_meta


@dataclass(frozen=True)
class Base:
    """A published checkpoint.

    Args:
        components: in which its weights must be found, by diffusers' or a host's names.
        absent: weights that diffusers' own converter drops.
    """

    components: dict[str, Callable[[], nn.Module]]
    absent: tuple[str, ...] = ()


def klein() -> nn.Module:
    """black-forest-labs/FLUX.2-klein-9B, transformer/config.json."""
    return on_meta(
        Flux2Transformer2DModel,
        num_layers=8,
        num_single_layers=24,
        num_attention_heads=32,
        joint_attention_dim=12288,
        guidance_embeds=False,
    )


BASES = {
    "anima_comfyui_keys": Base({"transformer": partial(anima.build, True), "llm_adapter": anima.adapter}),
    "flux2_transformer_bfl_keys": Base({"transformer": klein}),
    "z_image_transformer_comfyui_keys": Base({"transformer": partial(z_image.build, True)}, absent=("norm_final",)),
    "qwen_vl_encoder_comfyui_keys": Base({"text_encoder": _language_models.qwen25_vl}),
}


@pytest.mark.parametrize("listed", BASES)
def test_weights_are_found_in_the_shape_they_have(real_keys, listed):
    """Also those of norms, which adapters of other kinds change; each in one component alone, fused or not."""
    base = BASES[listed]
    indexes = [LayerIndex(name, build(), alias_table()) for name, build in base.components.items()]
    shapes = json.loads((real_keys / f"invokeai_base_{listed}.json").read_text())
    weights = {key.removesuffix(".weight"): tuple(shape) for key, shape in shapes.items() if key.endswith(".weight")}
    missed = []
    for layer, shape in weights.items():
        found = [place.shape for index in indexes if (place := index.find(layer)) is not None]
        if found != [shape]:
            missed.append(layer)
    assert missed == list(base.absent)
    assert len(weights) > len(missed)


NOT_FOR_LORA = {"invokeai_base_flux2_vae_bfl_keys"}


def test_every_list_is_asserted_somewhere(real_keys):
    adapters = {f"invokeai_{listed}" for family in families().values() for listed in family.lists}
    bases = {path.stem for path in real_keys.glob("toolkit_base_*.json")}  # in test_architectures
    known = adapters | bases | {f"invokeai_base_{name}" for name in BASES} | NOT_FOR_LORA
    lists = {path.stem for path in real_keys.glob("*.json") if not path.stem.endswith(".meta")}
    assert lists - known == set()
