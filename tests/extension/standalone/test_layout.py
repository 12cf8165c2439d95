"""Configurations of the published models, derived from the shapes of their checkpoints at full size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from diffusers import UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint

from extension.standalone.layout import CheckpointError, Shapes, read_layout
from tests.fakes.ldm import UNETS, open_clip_shapes, unet_shapes

UNET = "model.diffusion_model."

# From the config.json beside the published weights in diffusers' format.
PUBLISHED: dict[str, dict[str, Any]] = {
    "sd1": {
        "block_out_channels": [320, 640, 1280, 1280],
        "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
        "cross_attention_dim": 768,
        "attention_head_dim": 8,
        "use_linear_projection": False,
        "transformer_layers_per_block": [1, 1, 1, 1],
    },
    "sd2": {
        "block_out_channels": [320, 640, 1280, 1280],
        "cross_attention_dim": 1024,
        "attention_head_dim": [5, 10, 20, 20],
        "use_linear_projection": True,
    },
    "sdxl": {
        "block_out_channels": [320, 640, 1280],
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        "cross_attention_dim": 2048,
        "attention_head_dim": [5, 10, 20],
        "transformer_layers_per_block": [1, 2, 10],
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    "sdxl-refiner": {
        "block_out_channels": [384, 768, 1536, 1536],
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        "cross_attention_dim": 1280,
        "attention_head_dim": [6, 12, 24, 24],
        "transformer_layers_per_block": [1, 4, 4, 4],
        "projection_class_embeddings_input_dim": 2560,
    },
}
PARAMETERS = {"sd1": 859_520_964, "sd2": 865_910_724, "sdxl": 2_567_463_684}  # as published


def clip_l(prefix: str) -> Shapes:
    shapes = {
        "embeddings.token_embedding.weight": (49408, 768),
        "embeddings.position_embedding.weight": (77, 768),
        **{f"encoder.layers.{index}.mlp.fc1.weight": (3072, 768) for index in range(12)},
    }
    return {f"{prefix}text_model.{key}": shape for key, shape in shapes.items()}


def vae() -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv_in.weight": (128, 3, 3, 3),
        "decoder.conv_out.weight": (3, 128, 3, 3),
        "post_quant_conv.weight": (4, 4, 1, 1),
    }
    for index, width in enumerate((128, 256, 512, 512)):
        for block in range(2):
            shapes[f"encoder.down.{index}.block.{block}.conv1.weight"] = (width, width, 3, 3)
    return {f"first_stage_model.{key}": shape for key, shape in shapes.items()}


def open_clip(prefix: str, width: int, layers: int) -> Shapes:
    shapes = {**open_clip_shapes(width, layers), "positional_embedding": (77, width)}
    return {prefix + key: shape for key, shape in shapes.items()}


def checkpoint(family: str) -> dict[str, tuple[int, ...]]:
    shapes = {UNET + key: shape for key, shape in unet_shapes(UNETS[family.replace("-", "_")]).items()} | vae()
    match family:
        case "sd1":
            return shapes | clip_l("cond_stage_model.transformer.")
        case "sd2":
            return shapes | open_clip("cond_stage_model.model.", 1024, 24)
        case "sdxl":
            second = open_clip("conditioner.embedders.1.model.", 1280, 32)
            return shapes | clip_l("conditioner.embedders.0.transformer.") | second
        case _:
            return shapes | open_clip("conditioner.embedders.0.model.", 1280, 32)


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_unet_is_the_published_one(family: str) -> None:
    layout = read_layout(checkpoint(family), {})
    assert layout.family == family
    assert layout.unet["layers_per_block"] == 2
    assert {key: layout.unet[key] for key in PUBLISHED[family]} == PUBLISHED[family]
    with init_empty_weights():
        unet = UNet2DConditionModel.from_config(dict(layout.unet))
    size = sum(parameter.numel() for parameter in unet.parameters())
    assert size == sum(math.prod(shape) for key, shape in checkpoint(family).items() if key.startswith(UNET))
    assert size == PARAMETERS.get(family, size)


REAL = {  # family -> key lists of its unet and text encoders, as they stand in published files
    "sd1": ("UNET-v1-SD", {"cond_stage_model.transformer.text_model.": "CLIP-v1-SD"}),
    "sd2": ("UNET-v2-SD", {"cond_stage_model.model.": "CLIP-v2-SD"}),
    "sdxl": (
        "UNET-XL-SD",
        {
            "conditioner.embedders.0.transformer.text_model.": "CLIP-v1-SD",
            "conditioner.embedders.1.model.": "CLIP-XL-SD",
        },
    ),
    "sdxl-refiner": ("UNET-XL-Refiner", {"conditioner.embedders.0.model.": "CLIP-XL-SD"}),
}


def key_list(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    loaded = json.loads((folder / f"toolkit_base_{name}.json").read_text())
    return {key: tuple(shape) for key, shape in loaded.items()}


@pytest.mark.parametrize("family", REAL)
def test_every_key_of_a_published_unet_has_its_place(family: str, real_keys: Path) -> None:
    unet_list, texts = REAL[family]
    shapes = {UNET + key: shape for key, shape in key_list(real_keys, unet_list).items()} | vae()
    for prefix, text in texts.items():
        shapes |= {prefix + key: shape for key, shape in key_list(real_keys, text).items()}
    layout = read_layout(shapes, {})
    assert layout.family == family
    with init_empty_weights():
        unet = UNet2DConditionModel.from_config(dict(layout.unet))
    weights = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    converted = convert_ldm_unet_checkpoint(weights, dict(layout.unet))
    assert {k: v.shape for k, v in converted.items()} == {k: v.shape for k, v in unet.state_dict().items()}
    derived = [encoder.config for encoder in layout.text_encoders]
    assert derived == [encoder.config for encoder in read_layout(checkpoint(family), {}).text_encoders]


def test_a_model_for_inpainting_is_refused(real_keys: Path) -> None:
    shapes = {UNET + key: shape for key, shape in key_list(real_keys, "UNET-v1-Inpainting").items()}
    with pytest.raises(CheckpointError, match="takes 9 channels, not 4"):
        read_layout({**checkpoint("sd1"), **shapes}, {})


def test_the_vae_is_the_published_one() -> None:
    sd, xl = (read_layout(checkpoint(family), {}).vae for family in ("sd1", "sdxl"))
    assert sd["block_out_channels"] == xl["block_out_channels"] == [128, 256, 512, 512]
    assert (sd["layers_per_block"], sd["latent_channels"]) == (2, 4)
    assert (sd["scaling_factor"], xl["scaling_factor"]) == (0.18215, 0.13025)


def test_the_text_encoders_are_the_published_ones() -> None:
    (clip,) = read_layout(checkpoint("sd1"), {}).text_encoders
    assert (clip.config["num_hidden_layers"], clip.config["num_attention_heads"]) == (12, 12)
    assert (clip.config["intermediate_size"], clip.config["hidden_act"]) == (3072, "quick_gelu")
    assert (clip.config["bos_token_id"], clip.config["eos_token_id"]) == (49406, 49407)
    (sd2,) = read_layout(checkpoint("sd2"), {}).text_encoders
    assert (sd2.config["num_hidden_layers"], sd2.config["num_attention_heads"]) == (23, 16)
    assert (sd2.open_clip, sd2.projection, sd2.config["hidden_act"]) == (True, False, "gelu")
    first, second = read_layout(checkpoint("sdxl"), {}).text_encoders
    assert (first.open_clip, second.open_clip, second.projection) == (False, True, True)
    assert (second.config["num_hidden_layers"], second.config["num_attention_heads"]) == (32, 20)
    assert (second.config["intermediate_size"], second.config["projection_dim"]) == (5120, 1280)


def test_blocks_laid_out_otherwise_are_refused() -> None:
    shapes = checkpoint("sdxl")
    drop = f"{UNET}input_blocks.8.1.transformer_blocks.9."
    with pytest.raises(CheckpointError, match="input block 8 differs"):
        read_layout({key: shape for key, shape in shapes.items() if not key.startswith(drop)}, {})
    drop = f"{UNET}middle_block.1.transformer_blocks.9."
    with pytest.raises(CheckpointError, match="not known here"):
        read_layout({key: shape for key, shape in shapes.items() if not key.startswith(drop)}, {})
