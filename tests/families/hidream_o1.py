"""HiDream-O1. diffusers has no class of it."""

from __future__ import annotations

from torch import Tensor, nn

from lib_lora.inspection.skeleton import skeleton

from .base import Family, Shapes, Writer, below, dotted, kohya, linear

WIDTH, KEYS, MLP, VISION = 4096, 1024, 12288, 1152


def tree(layers: int, vision: int) -> Shapes:
    """HiDream-ai/HiDream-O1-Image models/qwen3_vl_transformers.py, Qwen3VLModel, without embeddings."""
    found = linear(WIDTH, 256, "t_embedder1.mlp.0") | linear(WIDTH, WIDTH, "t_embedder1.mlp.2")
    found |= linear(1024, 3072, "x_embedder.proj1", bias=False) | linear(WIDTH, 1024, "x_embedder.proj2")
    found |= linear(3072, WIDTH, "final_layer2.linear")
    for i in range(layers):
        layer = linear(WIDTH, WIDTH, "self_attn.q_proj", "self_attn.o_proj", bias=False)
        layer |= linear(KEYS, WIDTH, "self_attn.k_proj", "self_attn.v_proj", bias=False)
        layer |= linear(MLP, WIDTH, "mlp.gate_proj", "mlp.up_proj", bias=False)
        layer |= linear(WIDTH, MLP, "mlp.down_proj", bias=False)
        found |= below(f"language_model.layers.{i}", layer)
    for i in range(vision):
        layer = linear(3 * VISION, VISION, "attn.qkv") | linear(VISION, VISION, "attn.proj")
        layer |= linear(4304, VISION, "mlp.linear_fc1") | linear(VISION, 4304, "mlp.linear_fc2")
        found |= below(f"visual.blocks.{i}", layer)
    return found


def build(full: bool) -> nn.Module:
    """ComfyUI's tree; HiDream-ai/HiDream-O1-Image config.json."""
    return skeleton(tree(36, 27) if full else tree(2, 2))


def native() -> Shapes:
    """Qwen3VLForConditionalGeneration, as musubi-tuner and ai-toolkit have it."""
    return below("model", tree(2, 2))


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """ostris/ai-toolkit hidream_o1_model.py, convert_lora_weights_before_save."""
    return {name.removeprefix("model."): value for name, value in checkpoint.items()}


FAMILY = Family(
    name="hidream_o1",
    named=("hidream_o1", "hidream_o1_image", "hidream-o1/lora"),
    alone=("model.x_embedder.proj1:3072", "x_embedder.proj2:1024", "t_embedder1.mlp.2:4096"),
    build=build,
    native=native,
    convert=convert,
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_hidream_o1.py, HIDREAM_O1_T2I_TARGET_REPLACE_MODULES",
            kohya(),
            layers=("language_model.", "x_embedder.", "final_layer2."),
            metadata={"ss_base_model_version": "hidream_o1_image"},
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/hidream/hidream_o1_model.py",
            dotted("diffusion_model."),
            "diffusers",
            layers=("language_model.",),
            metadata={"ss_base_model_version": "hidream_o1"},
        ),
    },
)
