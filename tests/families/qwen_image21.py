"""Qwen-Image 2.1."""

from __future__ import annotations

from diffusers import QwenImage21Transformer2DModel
from torch import Tensor, nn

from .base import KOHYA_PARAMS, Family, Shapes, Writer, dotted, kohya, on_meta

PARTS = ("gate_layer", "proj")


def build(full: bool) -> nn.Module:
    """Return the class's defaults."""
    return on_meta(QwenImage21Transformer2DModel, num_layers=32 if full else 2)


def native() -> Shapes:
    """ComfyUI's checkpoint, of which vladmandic/sdnext pipelines/qwen/qwen21_lora.py tells the layer of two."""
    found: Shapes = {}
    for name, value in build(False).state_dict().items():
        layer, _, param = name.removesuffix(".weight").rpartition(".")
        if param == PARTS[0]:
            found[f"{layer}.gate_up.weight"] = (2 * value.shape[0], value.shape[1])
        elif param != PARTS[1] or not layer.endswith("img_mlp"):
            found[name] = tuple(value.shape)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """As SD.Next's `resolve_targets` does with a LoRA: the first half of the rows is the gate's."""
    found = {}
    for key, value in checkpoint.items():
        before, fused, param = key.partition("gate_up.")
        if fused:
            for part, rows in zip(PARTS, value.chunk(2), strict=True):
                found[f"{before}{part}.{param}"] = rows
        else:
            found[key] = value
    return found


LAYERS = (".attn.", ".img_mlp.")
FAMILY = Family(
    name="qwen_image21",
    named=("qwen_image_2.1", "Qwen-Image-2.1/lora"),
    alone=(
        "transformer_blocks.0.img_mlp.gate_up:4096",
        "transformer_blocks.31.img_mlp.gate_layer:4096",
        "transformer_blocks.0.img_mlp.out:12288",
    ),
    build=build,
    native=native,
    convert=convert,
    writers={
        "musubi": Writer(
            "kohya", "vladmandic/sdnext pipelines/qwen/qwen21_lora.py, GATE_UP_SUFFIXES", kohya(), layers=LAYERS
        ),
        "ai-toolkit": Writer(
            "peft",
            "vladmandic/sdnext pipelines/qwen/qwen21_lora.py, resolve_targets",
            dotted("diffusion_model."),
            layers=LAYERS,
        ),
        "diffusers": Writer(
            "peft", "huggingface/diffusers loaders/peft.py, save_lora_adapter", dotted("transformer."), "diffusers"
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    },
)
