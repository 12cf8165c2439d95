"""A small model in the layout of SD 1.5 with random weights, and two LoRAs for it, made on the spot in seconds.

Its pictures mean nothing; they show that every part works, and what a LoRA changes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from .tokenizer import build_tokenizer

logger = logging.getLogger(__name__)

VERSION = "1"  # of what is made here; a folder of another version is made anew
DEMO_PROMPT = "a red fox <lora:demo-linear:0.8>"
_SEED = 20
_WIDTH = 64  # of the text model
_GAIN = 0.6  # contrast of the pictures


@dataclass(frozen=True)
class Demo:
    """Where the demo lies."""

    model: Path
    loras: Path


def make_demo(folder: Path) -> Demo:
    """Make the demo in `folder`, or return what is there already."""
    demo = Demo(folder / "remora-demo", folder / "loras")
    stamp = folder / "version.txt"
    if stamp.is_file() and stamp.read_text("utf-8") == VERSION:
        return demo
    for old in (demo.model, demo.loras):
        shutil.rmtree(old, ignore_errors=True)
    demo.loras.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        pipeline = make_pipeline()
        pipeline.save_pretrained(demo.model)
        _save_lora(demo.loras / "demo-linear.safetensors", _linear(pipeline), rank=4, strength=2.0)
        _save_lora(demo.loras / "demo-locon.safetensors", _convolutions(pipeline), rank=8, strength=1.5)
    stamp.write_text(VERSION, "utf-8")
    logger.info("demo model and LoRAs made in %s", folder)
    return demo


def make_pipeline() -> Any:
    """Make the demo's pipeline with random weights from torch's present random state."""
    tokenizer = build_tokenizer([])
    unet = UNet2DConditionModel(
        sample_size=32, block_out_channels=(32, 64, 128, 128), cross_attention_dim=_WIDTH, attention_head_dim=8
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 32, 64, 64),
        layers_per_block=1,
        latent_channels=4,
    )
    _smooth(unet)
    _smooth(vae.decoder)
    vae.decoder.conv_out.weight.data *= _GAIN
    scheduler = PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
    )
    return StableDiffusionPipeline(
        unet=unet,
        vae=vae,
        text_encoder=_text_encoder(tokenizer),
        tokenizer=tokenizer,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _text_encoder(tokenizer: Any) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=4 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=1,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def _smooth(model: nn.Module) -> None:
    """Make convolutions blur: random ones give noise, in which nobody sees what a LoRA does."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            # the mean of nine independent weights is a third as large as each
            module.weight.data = (
                (3 * module.weight.data.mean((2, 3), keepdim=True)).expand_as(module.weight).contiguous()
            )


def _linear(pipeline: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield what a plain LoRA trains: attention of the unet and the text encoder."""
    for path, module in pipeline.unet.named_modules():
        if isinstance(module, nn.Linear) and ".attentions." in path:
            yield f"lora_unet_{path.replace('.', '_')}", module
    for path, module in pipeline.text_encoder.named_modules():
        if isinstance(module, nn.Linear):
            # transformers 5.6 flattened the model; the files kept the name
            nested = path if path.startswith("text_model.") else f"text_model.{path}"
            yield f"lora_te_{nested.replace('.', '_')}", module


def _convolutions(pipeline: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield what a LoCon trains beside the attention: convolutions of the unet's blocks."""
    for path, module in pipeline.unet.named_modules():
        inside = ".attentions." in path or ".resnets." in path or "samplers." in path
        if inside and isinstance(module, nn.Linear | nn.Conv2d):
            yield f"lora_unet_{path.replace('.', '_')}", module


def _save_lora(path: Path, layers: Iterator[tuple[str, nn.Module]], rank: int, strength: float) -> None:
    """Write a LoRA in kohya's format whose delta has about `strength` times the norm of the weight it changes."""
    tensors: dict[str, Tensor] = {}
    for name, layer in layers:
        weight = layer.get_parameter("weight")
        down = torch.randn(rank, *weight.shape[1:])
        up = torch.randn(weight.shape[0], rank, *[1] * (weight.ndim - 2))
        size = (up.flatten(1) @ down.flatten(1)).norm()
        up *= strength * weight.detach().norm() / size
        tensors[f"{name}.lora_down.weight"] = down.contiguous()
        tensors[f"{name}.lora_up.weight"] = up.contiguous()
        tensors[f"{name}.alpha"] = torch.tensor(float(rank))
    metadata = {"ss_output_name": path.stem, "ss_network_dim": str(rank), "ss_network_alpha": str(rank)}
    save_file(tensors, path, metadata=metadata)
