"""Stable Cascade's prior, stage C, under the names of ComfyUI, OneTrainer and diffusers."""

from __future__ import annotations

import re

import torch
from diffusers import StableCascadeUNet
from diffusers.loaders.single_file_utils import convert_stable_cascade_unet_single_file_to_diffusers
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from ._encoders import CLIP_LAYERS, nested
from .base import Family, Shapes, Writer, below, dotted, kohya, linear, on_meta

WIDTH = 2048
ATTENTION = ("attention.",)
OWN = {"attention.to_": "attention.attn.to_", "attention.attn.to_out.0": "attention.attn.out_proj"}


def build(full: bool) -> nn.Module:
    """stabilityai/stable-cascade-prior, prior/config.json."""
    return on_meta(
        StableCascadeUNet,
        clip_image_in_channels=768,
        clip_text_in_channels=1280,
        clip_text_pooled_in_channels=1280,
        conditioning_dim=WIDTH,
        down_num_layers_per_block=(8, 24) if full else (1, 2),
        up_num_layers_per_block=(24, 8) if full else (2, 1),
        switch_level=(False,),
    )


def native() -> Shapes:
    """Stability-AI/StableCascade modules/stage_c.py, StageC, with the attention of ComfyUI's comfy/ldm/cascade."""
    found = linear(4 * WIDTH, 1280, "clip_txt_pooled_mapper") | linear(WIDTH, 1280, "clip_txt_mapper")
    found |= linear(4 * WIDTH, 768, "clip_img_mapper")
    found |= {"embedding.1.weight": (WIDTH, 16, 1, 1), "clf.1.weight": (16, WIDTH, 1, 1)}
    found |= {f"{side}scalers.{i}.1.blocks.{j}.weight": (WIDTH, WIDTH, 1, 1) for side, i, j in SCALERS}
    for side, counts in (("down_blocks", (1, 2)), ("up_blocks", (2, 1))):
        for i, count in enumerate(counts):
            for j in range(count):
                found |= below(f"{side}.{i}", _layers(3 * j, skips=side == "up_blocks" and i > 0 and j == 0))
    return found


SCALERS = (("down_down", 1, 0), ("up_up", 0, 1))


def _layers(first: int, *, skips: bool) -> Shapes:
    inside = 2 * WIDTH if skips else WIDTH
    return {
        f"{first}.depthwise.weight": (WIDTH, 1, 3, 3),
        **linear(4 * WIDTH, inside, f"{first}.channelwise.0"),
        **linear(WIDTH, 4 * WIDTH, f"{first}.channelwise.4"),
        **linear(2 * WIDTH, 64, *(f"{first + 1}.mapper{kind}" for kind in ("", "_sca", "_crp"))),
        **linear(WIDTH, WIDTH, *(f"{first + 2}.attention.attn.to_{part}" for part in "qkv")),
        **linear(WIDTH, WIDTH, f"{first + 2}.attention.attn.out_proj", f"{first + 2}.kv_mapper.1"),
    }


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' converter. Checkpoints have the three of an attention as one; ComfyUI takes them apart."""
    for key in [key for key in checkpoint if ".attn.to_q." in key]:
        parts = [checkpoint.pop(key.replace(".to_q.", f".to_{part}.")) for part in "qkv"]
        checkpoint[key.replace(".to_q.", ".in_proj_")] = torch.cat(parts)
    return convert_stable_cascade_unet_single_file_to_diffusers(checkpoint)


def onetrainer(layer: str, param: str) -> str | None:
    """Keys of `cascade_prior_legacy`."""
    for own, theirs in OWN.items():
        layer = layer.replace(own, theirs)
    return kohya("lora_prior_unet_")(layer, param)


def parts_of_torchs(layer: str, param: str) -> str | None:
    """Keys with the parts of torch's attention by number."""
    layer = re.sub(r"attn\.to_([qkv])", lambda found: f"attn.in_proj.{'qkv'.index(found[1])}", layer)
    return kohya("lora_unet_")(layer, param)


def clip() -> nn.Module:
    """stabilityai/stable-cascade-prior, text_encoder/config.json."""
    config = CLIPTextConfig(
        hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20, projection_dim=1280
    )
    return on_meta(CLIPTextModelWithProjection, config=config)


METADATA = {"modelspec.architecture": "stable-cascade-v1-prior/lora"}


FAMILY = Family(
    name="stable_cascade",
    named=("stable_cascade", "stable-cascade-v1-prior/lora", "stable_cascade-stage-c/lora"),
    alone=("down_blocks.0.2.attention.attn.to_q:2048", "up_blocks.1.47.attention.to_q:2048"),
    build=build,
    component="prior",
    native=native,
    convert=convert,
    encoders={"text_encoder": clip},
    writers={
        "onetrainer": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/model/WuerstchenModel.py, cascade_prior_legacy",
            onetrainer,
            "diffusers",
        ),
        "onetrainer in kohya's format": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/model/WuerstchenModel.py, diffusers_to_original",
            parts_of_torchs,
        ),
        "comfy": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, StableCascade_C", kohya("lora_prior_unet_")),
        "onetrainer in diffusers' format": Writer(
            "peft",
            "Nerogar/OneTrainer modules/modelSaver/wuerstchen/WuerstchenLoRASaver.py, DIFFUSERS_LORA",
            dotted("prior."),
            "diffusers",
        ),
        "onetrainer, the text encoder": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/modelSaver/wuerstchen/WuerstchenLoRASaver.py, _convert_legacy",
            nested(kohya("lora_prior_te_")),
            "diffusers",
            layers=CLIP_LAYERS,
            component="text_encoder",
            metadata=METADATA,
        ),
        "onetrainer in kohya's format, the text encoder": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/model/WuerstchenModel.py, lora_text_encoders",
            nested(kohya("lora_te_")),
            "diffusers",
            layers=CLIP_LAYERS,
            component="text_encoder",
            metadata=METADATA,
        ),
    },
)
