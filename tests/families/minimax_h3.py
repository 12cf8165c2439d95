"""MiniMax-H3."""

from __future__ import annotations

from diffusers import MiniMaxH3Transformer3DModel
from diffusers.loaders.single_file_utils import convert_minimax_h3_transformer_checkpoint_to_diffusers
from torch import Tensor, nn

from .base import Family, Shapes, Writer, below, dotted, first_columns, kohya, linear, norm, on_meta

WIDTH, INNER, MLP, TIME, TEXT = 5376, 7168, 14336, 2688, 5120


def build(full: bool) -> nn.Module:
    """MiniMaxAI/MiniMax-H3, transformer/config.json."""
    return on_meta(MiniMaxH3Transformer3DModel, num_layers=50 if full else 2)


def native() -> Shapes:
    """ostris/ai-toolkit extensions_built_in/diffusion_models/minimax_h3/src/transformer.py, MiniMaxH3Transformer."""
    found = linear(WIDTH, 96, "video_patch_proj") | linear(WIDTH, 32, "audio_patch_proj")
    found |= linear(WIDTH, TEXT, "condition_proj")
    found |= linear(WIDTH, 256, "time_embedder.proj_in") | linear(TIME, WIDTH, "time_embedder.proj_out")
    found |= linear(2 * WIDTH, TIME, "final_layer.adaln_proj.linear")
    found |= linear(96, WIDTH, "final_layer.video_out") | linear(32, WIDTH, "final_layer.audio_out")
    for i in range(2):
        block = {
            **linear(3 * INNER, WIDTH, "attn.qkv_proj", bias=False),
            **norm(128, "attn.q_norm", "attn.k_norm"),
            **linear(WIDTH, INNER, "attn.out_proj", bias=False),
            **linear(2 * MLP, WIDTH, "mlp.fc1", bias=False),
            **linear(WIDTH, MLP, "mlp.fc2", bias=False),
            **norm(WIDTH, "norm1", "norm2"),
        }
        found |= below(f"token_refiner.blocks.{i}", block)
        found |= below(f"blocks.{i}", block | linear(18 * WIDTH, TIME, "adaln_proj.linear", bias=False))
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' converter, on the first column of each weight: it copies the largest ones."""
    narrow = {name: first_columns(value) for name, value in checkpoint.items()}
    return convert_minimax_h3_transformer_checkpoint_to_diffusers(narrow, {})


FAMILY = Family(
    name="minimax_h3",
    named=("minimax_h3", "minimax-h3/lora", "minimax_h3_ref2va"),
    alone=(
        "blocks.0.attn.qkv_proj:5376",
        "transformer_blocks.0.attn.to_q:5376",
        "transformer_blocks.49.attn.to_out.0:7168",
        "token_refiner.blocks.0.mlp.fc2:14336",
    ),
    build=build,
    native=native,
    convert=convert,
    writers={
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/minimax_h3/minimax_h3.py, "
            "convert_lora_weights_before_save",
            dotted("diffusion_model."),
            metadata={"ss_base_model_version": "minimax_h3"},
        ),
        "musubi": Writer(
            "kohya",
            "huggingface/diffusers lora_conversion_utils.py, _convert_non_diffusers_minimax_h3_lora_to_diffusers",
            kohya(),
        ),
        "bare": Writer("peft", "the same", dotted("")),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, MiniMaxH3LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
