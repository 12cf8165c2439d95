"""OmniGen 2. All programs have the names of its own code; diffusers has no class of it."""

from __future__ import annotations

from torch import nn

from lib_lora.inspection.skeleton import skeleton

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, norm

WIDTH, KEYS, MLP, TIME = 2520, 840, 10240, 1024


def block(width: int, keys: int, mlp: int, *, modulated: bool) -> Shapes:
    """OmniGen2TransformerBlock, which Boogu Image has as well."""
    found = linear(width, width, "attn.to_q", "attn.to_out.0", bias=False)
    found |= linear(keys, width, "attn.to_k", "attn.to_v", bias=False)
    found |= linear(mlp, width, "feed_forward.linear_1", "feed_forward.linear_3", bias=False)
    found |= linear(width, mlp, "feed_forward.linear_2", bias=False)
    if modulated:
        return found | linear(4 * width, TIME, "norm1.linear") | norm(width, "norm1.norm")
    return found | norm(width, "norm1")


def around(width: int, text: int) -> Shapes:
    """Return the layers before and after the blocks."""
    found = linear(width, 64, "x_embedder", "ref_image_patch_embedder")
    found |= linear(TIME, 256, "time_caption_embed.timestep_embedder.linear_1")
    found |= linear(TIME, TIME, "time_caption_embed.timestep_embedder.linear_2")
    found |= linear(width, text, "time_caption_embed.caption_embedder.1")
    return found | linear(width, TIME, "norm_out.linear_1") | linear(64, width, "norm_out.linear_2")


def build(full: bool) -> nn.Module:
    """OmniGen2/OmniGen2, transformer/config.json: VectorSpaceLab/OmniGen2 transformer_omnigen2.py."""
    found = around(WIDTH, 2048)
    stacks = {"layers": 32 if full else 2, "noise_refiner": 2, "ref_image_refiner": 2, "context_refiner": 2}
    for stack, count in stacks.items():
        for i in range(count):
            found |= below(f"{stack}.{i}", block(WIDTH, KEYS, MLP, modulated=stack != "context_refiner"))
    return skeleton(found)


FAMILY = Family(
    name="omnigen2",
    named=("omnigen2", "omnigen-2/lora"),
    alone=("layers.0.attn.to_q:2520", "noise_refiner.0.feed_forward.linear_1:2520"),
    build=build,
    writers={
        "omnigen2": Writer(
            "peft",
            "VectorSpaceLab/OmniGen2 train.py over pipelines/lora_pipeline.py, save_lora_weights",
            dotted("transformer."),
            "diffusers",
            layers=("layers.", "_refiner."),
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/omnigen2/__init__.py",
            dotted("transformer."),
            "diffusers",
            metadata={"ss_base_model_version": "omnigen2"},
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet; comfy/ldm/omnigen/omnigen2.py",
            dotted("diffusion_model.", KOHYA_PARAMS),
            "diffusers",
        ),
        "kohya": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya(), "diffusers"),
    },
)
