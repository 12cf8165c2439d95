"""Mochi 1."""

from __future__ import annotations

from diffusers import MochiTransformer3DModel
from torch import Tensor, nn

from .base import Family, Shapes, Writer, below, converter, dotted, linear, norm, on_meta

WIDTH, TEXT, T5 = 3072, 1536, 4096
OWN = "transformer_blocks.N"


def build(full: bool) -> nn.Module:
    """genmo/mochi-1-preview, transformer/config.json."""
    return on_meta(MochiTransformer3DModel, num_layers=48 if full else 2)


def native() -> Shapes:
    """genmoai/mochi src/genmo/mochi_preview/dit/joint_model/asymm_models_joint.py, AsymmDiTJoint."""
    found: Shapes = {"x_embedder.proj.weight": (WIDTH, 12, 2, 2), "x_embedder.proj.bias": (WIDTH,)}
    found |= linear(WIDTH, 256, "t_embedder.mlp.0") | linear(WIDTH, WIDTH, "t_embedder.mlp.2")
    found |= linear(2 * T5, T5, "t5_y_embedder.to_kv") | linear(T5, T5, "t5_y_embedder.to_q")
    found |= linear(WIDTH, T5, "t5_y_embedder.to_out") | linear(TEXT, T5, "t5_yproj")
    found |= linear(2 * WIDTH, WIDTH, "final_layer.mod") | linear(48, WIDTH, "final_layer.linear")
    for i, goes_on in enumerate((True, False)):
        block = {
            **linear(3 * WIDTH, WIDTH, "attn.qkv_x", bias=False),
            **linear(3 * WIDTH, TEXT, "attn.qkv_y", bias=False),
            **norm(128, *(f"attn.{part}_norm_{side}" for part in "qk" for side in "xy")),
            **linear(WIDTH, WIDTH, "attn.proj_x"),
            **linear(4 * WIDTH, WIDTH, "mod_x"),
            **linear(16384, WIDTH, "mlp_x.w1", bias=False),
            **linear(WIDTH, 8192, "mlp_x.w2", bias=False),
            **linear(4 * TEXT if goes_on else TEXT, WIDTH, "mod_y"),
        }
        if goes_on:
            block |= linear(TEXT, WIDTH, "attn.proj_y")
            block |= linear(8192, TEXT, "mlp_y.w1", bias=False) | linear(TEXT, 4096, "mlp_y.w2", bias=False)
        found |= below(f"blocks.{i}", block)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers loaders/single_file_utils.py, convert_mochi_transformer_checkpoint_to_diffusers, of 2 blocks."""
    names = {
        "x_embedder.proj": ["patch_embed.proj"],
        "t_embedder.mlp.0": ["time_embed.timestep_embedder.linear_1"],
        "t_embedder.mlp.2": ["time_embed.timestep_embedder.linear_2"],
        **{f"t5_y_embedder.{one}": [f"time_embed.pooler.{one}"] for one in ("to_kv", "to_q", "to_out")},
        "t5_yproj": ["time_embed.caption_proj"],
        "final_layer.linear": ["proj_out"],
        "blocks.N.mod_x": [f"{OWN}.norm1.linear"],
        "blocks.N.mod_y": [f"{OWN}.norm1_context.linear"],
        "blocks.N.attn.qkv_x": [f"{OWN}.attn1.to_{part}" for part in "qkv"],
        "blocks.N.attn.qkv_y": [f"{OWN}.attn1.add_{part}_proj" for part in "qkv"],
        "blocks.N.attn.proj_x": [f"{OWN}.attn1.to_out.0"],
        "blocks.N.attn.proj_y": [f"{OWN}.attn1.to_add_out"],
        **{f"blocks.N.attn.{part}_norm_x": [f"{OWN}.attn1.norm_{part}"] for part in "qk"},
        **{f"blocks.N.attn.{part}_norm_y": [f"{OWN}.attn1.norm_added_{part}"] for part in "qk"},
        "blocks.N.mlp_x.w2": [f"{OWN}.ff.net.2"],
        "blocks.N.mlp_y.w2": [f"{OWN}.ff_context.net.2"],
    }
    swapped = {
        "blocks.N.mlp_x.w1": f"{OWN}.ff.net.0.proj",
        "blocks.N.mlp_y.w1": f"{OWN}.ff_context.net.0.proj",
        "final_layer.mod": "norm_out.linear",
    }
    last = "transformer_blocks.1.norm1_context.linear"
    found = converter(names, checkpoint, swapped)
    return {name.replace(f"{last}.", f"{last}_1."): value for name, value in found.items()}


FAMILY = Family(
    name="mochi",
    named=("mochi", "mochi-1/lora"),
    alone=(
        "blocks.0.attn.qkv_x:3072",
        "transformer_blocks.0.attn1.add_q_proj:1536",
        "transformer_blocks.47.norm1_context.linear_1:3072",
    ),
    build=build,
    native=native,
    convert=convert,
    writers={
        "genmo": Writer(
            "peft",
            "genmoai/mochi src/genmo/mochi_preview/dit/joint_model/lora.py, lora_state_dict; Comfy-Org/ComfyUI "
            "comfy/lora.py, model_lora_keys_unet",
            dotted("", {"lora_down.weight": "lora_A", "lora_up.weight": "lora_B"}),  # parameters of the layer itself
            layers=("attn.",),
        ),
        "diffusers and finetrainers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, Mochi1LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
