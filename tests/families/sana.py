"""Sana 1.6B."""

from __future__ import annotations

import torch
from diffusers import SanaTransformer2DModel
from diffusers.loaders.single_file_utils import convert_sana_transformer_to_diffusers
from torch import Tensor, nn

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, TEXT, MLP = 2240, 2304, 5600


def build(full: bool) -> nn.Module:
    """Efficient-Large-Model/Sana_1600M_1024px_diffusers, transformer/config.json."""
    return on_meta(SanaTransformer2DModel, num_layers=20 if full else 2)


def native() -> Shapes:
    """NVlabs/Sana diffusion/model/nets/sana_multi_scale.py, SanaMS."""
    found: Shapes = {"x_embedder.proj.weight": (WIDTH, 32, 1, 1), "x_embedder.proj.bias": (WIDTH,)}
    found |= linear(WIDTH, 256, "t_embedder.mlp.0") | linear(WIDTH, WIDTH, "t_embedder.mlp.2")
    found |= linear(6 * WIDTH, WIDTH, "t_block.1") | norm(WIDTH, "attention_y_norm")
    found |= linear(WIDTH, TEXT, "y_embedder.y_proj.fc1") | linear(WIDTH, WIDTH, "y_embedder.y_proj.fc2")
    found |= linear(32, WIDTH, "final_layer.linear")
    for i in range(2):
        block = {
            **linear(3 * WIDTH, WIDTH, "attn.qkv", bias=False),
            **linear(WIDTH, WIDTH, "attn.proj", "cross_attn.q_linear", "cross_attn.proj"),
            **linear(2 * WIDTH, WIDTH, "cross_attn.kv_linear"),
            "mlp.inverted_conv.conv.weight": (2 * MLP, WIDTH, 1, 1),
            "mlp.inverted_conv.conv.bias": (2 * MLP,),
            "mlp.depth_conv.conv.weight": (2 * MLP, 1, 3, 3),
            "mlp.depth_conv.conv.bias": (2 * MLP,),
            "mlp.point_conv.conv.weight": (WIDTH, MLP, 1, 1),
        }
        found |= below(f"blocks.{i}", block)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' converter, with what it expects and no adapter changes."""
    nothing = torch.zeros(1)
    more = dict.fromkeys(("pos_embed", "y_embedder.y_embedding", "final_layer.scale_shift_table"), nothing)
    more |= {f"blocks.{i}.scale_shift_table": nothing for i in range(2)}
    found = convert_sana_transformer_to_diffusers(checkpoint | more)
    return {name: value for name, value in found.items() if "scale_shift_table" not in name}


FAMILY = Family(
    name="sana",
    named=("sana", "sana-1.0/lora"),
    alone=(
        "blocks.0.attn.qkv:2240",
        "transformer_blocks.0.attn1.to_q:2240",
        "transformer_blocks.19.ff.conv_point:5600",
    ),
    build=build,
    native=native,
    convert=convert,
    writers={
        "diffusers and onetrainer": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, SanaLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "kohya": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya(), layers=("blocks.",)),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    },
)
