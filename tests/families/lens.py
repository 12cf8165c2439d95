"""Lens. All programs have the names of its own code; diffusers has no class of it yet."""

from __future__ import annotations

from torch import nn

from lib_lora.inspection.skeleton import skeleton

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear

WIDTH, MLP, LATENTS, TEXT = 1536, 4096, 128, 2880


def block() -> Shapes:
    """LensTransformerBlock with `gate_mlp`."""
    found = linear(3 * WIDTH, WIDTH, "attn.img_qkv", "attn.txt_qkv")
    found |= linear(WIDTH, WIDTH, "attn.to_out.0", "attn.to_add_out")
    for side in ("img", "txt"):
        found |= linear(6 * WIDTH, WIDTH, f"{side}_mod.1")
        found |= linear(MLP, WIDTH, f"{side}_mlp.w1", f"{side}_mlp.w3", bias=False)
        found |= linear(WIDTH, MLP, f"{side}_mlp.w2", bias=False)
    return found


def build(full: bool) -> nn.Module:
    """vladmandic/sdnext pipelines/lens/transformer.py, LensTransformer2DModel with its default arguments."""
    found = linear(WIDTH, LATENTS, "img_in") | linear(WIDTH, 4 * TEXT, "txt_in")
    found |= linear(WIDTH, 256, "time_text_embed.timestep_embedder.linear_1")
    found |= linear(WIDTH, WIDTH, "time_text_embed.timestep_embedder.linear_2")
    found |= linear(2 * WIDTH, WIDTH, "norm_out.linear") | linear(LATENTS, WIDTH, "proj_out")
    for i in range(48 if full else 2):
        found |= below(f"transformer_blocks.{i}", block())
    return skeleton(found)


FAMILY = Family(
    name="lens",
    named=("Lens/lora",),
    alone=(
        "transformer_blocks.0.attn.img_qkv:1536",
        "transformer_blocks.47.attn.txt_qkv:1536",
        "transformer_blocks.0.img_mlp.w1:1536",
        "transformer_blocks.0.txt_mod.1:1536",
    ),
    build=build,
    writers={
        "kohya": Writer(
            "kohya",
            "sdbds/musubi-tuner src/musubi_tuner/networks/lora_lens.py, create_arch_network",
            kohya(),
            "diffusers",
            layers=("attn.", "img_mlp.", "txt_mlp."),
        ),
        "onetrainer": Writer(
            "diffusers",
            "Nerogar/OneTrainer modules/modelSaver/lens/LensLoRASaver.py, without key sets",
            dotted("transformer.", KOHYA_PARAMS),
            "diffusers",
            metadata={"modelspec.architecture": "Lens/lora"},
        ),
        "diffusers": Writer(
            "peft", "huggingface/diffusers loaders/peft.py, save_lora_adapter", dotted("transformer."), "diffusers"
        ),
    },
)
