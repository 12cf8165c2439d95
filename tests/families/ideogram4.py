"""Ideogram 4."""

from __future__ import annotations

from diffusers import Ideogram4Transformer2DModel
from torch import Tensor, nn

from .base import KOHYA_PARAMS, PEFT_ALPHA, Family, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, MLP, TIME, TEXT = 4608, 1024, 512, 512


def build(full: bool) -> nn.Module:
    """Return the class's defaults; the small model has a narrow feed-forward and narrow text."""
    if full:
        return on_meta(Ideogram4Transformer2DModel)
    return on_meta(Ideogram4Transformer2DModel, num_layers=2, intermediate_size=MLP, llm_features_dim=TEXT)


def native() -> Shapes:
    """Return the names that `_convert_non_diffusers_ideogram4_lora_to_diffusers` reads."""
    found = linear(WIDTH, 128, "input_proj") | linear(WIDTH, TEXT, "llm_cond_proj")
    found |= linear(WIDTH, WIDTH, "t_embedding.mlp_in", "t_embedding.mlp_out") | linear(TIME, WIDTH, "adaln_proj")
    found |= linear(128, WIDTH, "final_layer.linear") | linear(WIDTH, TIME, "final_layer.adaln_modulation")
    for i in range(2):
        layer = {
            **linear(3 * WIDTH, WIDTH, "attention.qkv", bias=False),
            **linear(WIDTH, WIDTH, "attention.o", bias=False),
            **norm(256, "attention.norm_q", "attention.norm_k"),
            **linear(MLP, WIDTH, "feed_forward.w1", "feed_forward.w3", bias=False),
            **linear(WIDTH, MLP, "feed_forward.w2", bias=False),
            **linear(4 * WIDTH, TIME, "adaln_modulation"),
        }
        found |= below(f"layers.{i}", layer)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """As the converter of LoRA does with `up`, whose rows are those of the weight."""
    found = {}
    for key, value in checkpoint.items():
        before, fused, param = key.partition("attention.qkv.")
        if fused:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                found[f"{before}attention.to_{part}.{param}"] = rows
        else:
            found[key.replace("attention.o.", "attention.to_out.0.")] = value
    return found


_LAYERS = ("layers.",)
FAMILY = Family(
    name="ideogram4",
    named=("ideogram4", "ideogram-4/lora"),
    alone=("layers.0.attention.qkv:4608", "layers.33.attention.to_q:4608", "layers.3.feed_forward.w1:4608"),
    build=build,
    native=native,
    convert=convert,
    writers={
        "comfy and ai-toolkit": Writer(
            "peft",
            "huggingface/diffusers _convert_non_diffusers_ideogram4_lora_to_diffusers",
            dotted("diffusion_model."),
            layers=_LAYERS,
        ),
        "comfy with alpha": Writer(
            "peft",
            "huggingface/diffusers _convert_non_diffusers_ideogram4_lora_to_diffusers",
            dotted("diffusion_model.", PEFT_ALPHA),
            layers=_LAYERS,
        ),
        "conditional transformer": Writer(
            "diffusers",
            "huggingface/diffusers _convert_non_diffusers_ideogram4_lora_to_diffusers",
            dotted("conditional_transformer.", KOHYA_PARAMS),
            layers=_LAYERS,
        ),
        "kohya": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya(), layers=_LAYERS),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, Ideogram4LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
