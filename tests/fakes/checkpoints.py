"""Tiny pipelines of every family, and their weights as a single-file checkpoint of the original (ldm) layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from extension.standalone.tokenizer import build_tokenizer

FAMILIES = ("sd1", "sd2", "sdxl", "sdxl-refiner")
_WIDTH, _WIDTH_2 = 64, 128  # of the text encoders

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
_UNET = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_VAE = (
    (r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}"),
    (r"mid_block\.attentions\.0\.group_norm", "mid.attn_1.norm"),
    (r"mid_block\.attentions\.0\.to_out\.0", "mid.attn_1.proj_out"),
    (r"mid_block\.attentions\.0\.to_([qkv])", r"mid.attn_1.\1"),
    (r"down_blocks\.(\d)\.resnets\.(\d)", r"down.\1.block.\2"),
    (r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample"),
    (r"conv_shortcut", "nin_shortcut"),
    (r"conv_norm_out", "norm_out"),
)
_OPEN_CLIP = {
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def tiny_pipeline(family: str) -> Any:
    """Make a pipeline with random weights, from torch's present random state."""
    pytest.importorskip("transformers", "5", reason="the embedded web UI needs transformers 5")
    tokenizer = build_tokenizer([])
    padded = build_tokenizer([], "!")
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 32, 64, 64),
        layers_per_block=1,
        latent_channels=4,
        scaling_factor=0.18215 if family in ("sd1", "sd2") else 0.13025,
    )
    shared = {"vae": vae, "unet": _unet(family), "scheduler": _scheduler()}
    if family in ("sd1", "sd2"):
        text = _text(CLIPTextModel, _WIDTH, "quick_gelu" if family == "sd1" else "gelu")
        return StableDiffusionPipeline(
            **shared,
            text_encoder=text,
            tokenizer=tokenizer if family == "sd1" else padded,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    second = _text(CLIPTextModelWithProjection, _WIDTH_2, "gelu")
    if family == "sdxl-refiner":
        return StableDiffusionXLImg2ImgPipeline(
            **shared,
            text_encoder=None,
            tokenizer=None,
            text_encoder_2=second,
            tokenizer_2=padded,
            requires_aesthetics_score=True,
            force_zeros_for_empty_prompt=False,
            add_watermarker=False,
        )
    first = _text(CLIPTextModel, _WIDTH, "quick_gelu")
    return StableDiffusionXLPipeline(
        **shared,
        text_encoder=first,
        text_encoder_2=second,
        tokenizer=tokenizer,
        tokenizer_2=padded,
        add_watermarker=False,
    )


def save_checkpoint(pipeline: Any, family: str, path: Path, metadata: Mapping[str, str] | None = None) -> Path:
    """Write a pipeline's weights as one file in the original layout."""
    tensors = {f"model.diffusion_model.{k}": v for k, v in _ldm_unet(pipeline.unet).items()}
    tensors |= {f"first_stage_model.{k}": v for k, v in _ldm_vae(pipeline.vae).items()}
    tensors["betas"] = torch.zeros(4)  # every original file carries such leftovers
    match family:
        case "sd1":
            tensors |= _clip_l("cond_stage_model.transformer.", pipeline.text_encoder)
        case "sd2":
            tensors |= _open_clip("cond_stage_model.model.", pipeline.text_encoder, extra_block=True)
        case "sdxl":
            tensors |= _clip_l("conditioner.embedders.0.transformer.", pipeline.text_encoder)
            tensors |= _open_clip("conditioner.embedders.1.model.", pipeline.text_encoder_2)
        case _:
            tensors |= _open_clip("conditioner.embedders.0.model.", pipeline.text_encoder_2)
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata=dict(metadata or {}))
    return path


def _unet(family: str) -> UNet2DConditionModel:
    attention, plain = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D"), ("DownBlock2D", "UpBlock2D")
    kinds = {
        "sd1": (attention, attention, attention, plain),
        "sd2": (attention, attention, attention, plain),
        "sdxl": (plain, attention, attention),
        "sdxl-refiner": (plain, attention, attention, plain),
    }[family]
    channels = {"sd1": (32, 32, 64, 64), "sdxl": (64, 64, 128)}.get(family, (64, 64, 128, 128))
    config: dict[str, Any] = {
        "sample_size": 8,
        "block_out_channels": channels,
        "down_block_types": tuple(down for down, _ in kinds),
        "up_block_types": tuple(up for _, up in reversed(kinds)),
        "cross_attention_dim": {"sdxl": _WIDTH + _WIDTH_2, "sdxl-refiner": _WIDTH_2}.get(family, _WIDTH),
        "attention_head_dim": 8 if family == "sd1" else tuple(width // 64 for width in channels),
        "use_linear_projection": family != "sd1",
        "transformer_layers_per_block": {"sdxl": (1, 1, 2), "sdxl-refiner": 2}.get(family, 1),
    }
    if family.startswith("sdxl"):
        times = 6 if family == "sdxl" else 5  # size, crop and target size, or size, crop and score
        config |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": _WIDTH_2 + 256 * times,
        }
    return UNet2DConditionModel(**config)


def _text(kind: type[nn.Module], width: int, activation: str) -> nn.Module:
    vocabulary = 514
    return kind(
        CLIPTextConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=width // 64,
            hidden_act=activation,
            projection_dim=width,
            bos_token_id=vocabulary - 2,
            eos_token_id=vocabulary - 1,
            pad_token_id=vocabulary - 1,
        )
    ).eval()


def _scheduler() -> DDIMScheduler:
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        steps_offset=1,
        clip_sample=False,
        set_alpha_to_one=False,
    )


def _ldm_unet(unet: UNet2DConditionModel) -> dict[str, Tensor]:
    stride = unet.config.layers_per_block + 1
    return {_ldm_unet_key(key, stride, unet): value for key, value in unet.state_dict().items()}


def _ldm_unet_key(key: str, stride: int, unet: UNet2DConditionModel) -> str:
    for ours, theirs in _UNET.items():
        if key.startswith(f"{ours}."):
            return key.replace(ours, theirs, 1)
    side, block, kind, index, rest = _split(key)
    if kind == "resnets":
        for ours, theirs in _RESNET.items():
            rest = rest.replace(ours, theirs)
    if side == "mid_block":
        return f"middle_block.{1 if kind == 'attentions' else 2 * index}.{rest}"
    if kind == "downsamplers":
        return f"input_blocks.{(block + 1) * stride}.0.op.{rest.removeprefix('conv.')}"
    if kind == "upsamplers":
        last = 2 if "CrossAttn" in unet.config.up_block_types[block] else 1
        return f"output_blocks.{block * stride + stride - 1}.{last}.{rest}"
    first, base = ("input_blocks", 1) if side == "down_blocks" else ("output_blocks", 0)
    return f"{first}.{base + block * stride + index}.{1 if kind == 'attentions' else 0}.{rest}"


def _split(key: str) -> tuple[str, int, str, int, str]:
    match = re.match(r"(mid_block|down_blocks\.(\d)|up_blocks\.(\d))\.(\w+)\.(\d)\.(.+)", key)
    assert match, key
    block = int(match[2] or match[3] or 0)
    return match[1].partition(".")[0], block, match[4], int(match[5]), match[6]


def _ldm_vae(vae: AutoencoderKL) -> dict[str, Tensor]:
    count = len(vae.config.block_out_channels)
    renamed = {}
    for key, value in vae.state_dict().items():
        for pattern, replacement in _VAE:
            key = re.sub(pattern, replacement, key)
        key = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", lambda m: f"up.{count - 1 - int(m[1])}.block.{m[2]}", key)
        key = re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"up.{count - 1 - int(m[1])}.upsample", key)
        attention = "attn_1" in key and key.endswith("weight") and "norm" not in key
        renamed[key] = value[:, :, None, None] if attention else value
    return renamed


def _bare(encoder: nn.Module) -> dict[str, Tensor]:
    return {key.removeprefix("text_model."): value for key, value in encoder.state_dict().items()}


def _clip_l(prefix: str, encoder: nn.Module) -> dict[str, Tensor]:
    renamed = {f"{prefix}text_model.{key}": value for key, value in _bare(encoder).items()}
    return renamed | {f"{prefix}text_model.embeddings.position_ids": torch.arange(77)[None]}


def _open_clip(prefix: str, encoder: nn.Module, extra_block: bool = False) -> dict[str, Tensor]:
    bare = _bare(encoder)
    renamed = {
        "positional_embedding": bare["embeddings.position_embedding.weight"],
        "token_embedding.weight": bare["embeddings.token_embedding.weight"],
        "ln_final.weight": bare["final_layer_norm.weight"],
        "ln_final.bias": bare["final_layer_norm.bias"],
        "logit_scale": torch.tensor(1.0),
        "text_projection": bare["text_projection.weight"].T if "text_projection.weight" in bare else torch.eye(_WIDTH),
    }
    layers = 1 + max(int(key.split(".")[2]) for key in bare if key.startswith("encoder.layers."))
    for index in range(layers):
        ours, theirs = f"encoder.layers.{index}.", f"transformer.resblocks.{index}."
        for end in ("weight", "bias"):
            parts = [bare[f"{ours}self_attn.{name}_proj.{end}"] for name in "qkv"]
            renamed[f"{theirs}attn.in_proj_{end}"] = torch.cat(parts)
            for old, new in _OPEN_CLIP.items():
                renamed[f"{theirs}{new}.{end}"] = bare[f"{ours}{old}.{end}"]
    if extra_block:  # SD 2.x files hold a last block that is never run
        first = "transformer.resblocks.0."
        renamed |= {
            key.replace(first, f"transformer.resblocks.{layers}."): torch.randn_like(value)
            for key, value in renamed.items()
            if key.startswith(first)
        }
    return {prefix + key: value for key, value in renamed.items()}
