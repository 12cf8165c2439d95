"""PixArt alpha, which has the embedders for size and shape that sigma has not."""

from __future__ import annotations

from diffusers import PixArtTransformer2DModel
from torch import Tensor, nn

from ._encoders import encoder_writers, t5
from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, converter, dotted, kohya, linear, on_meta

WIDTH, MLP = 1152, 4608


def build(full: bool) -> nn.Module:
    """PixArt-alpha/PixArt-XL-2-1024-MS, transformer/config.json."""
    return on_meta(
        PixArtTransformer2DModel,
        num_layers=28 if full else 2,
        caption_channels=4096,
        cross_attention_dim=WIDTH,
        use_additional_conditions=True,
    )


def native() -> Shapes:
    """PixArt-alpha/PixArt-sigma diffusion/model/nets/PixArtMS.py."""
    found: Shapes = {"x_embedder.proj.weight": (WIDTH, 4, 2, 2), "x_embedder.proj.bias": (WIDTH,)}
    for name, width in (("t", WIDTH), ("csize", 384), ("ar", 384)):
        found |= linear(width, 256, f"{name}_embedder.mlp.0") | linear(width, width, f"{name}_embedder.mlp.2")
    found |= linear(WIDTH, 4096, "y_embedder.y_proj.fc1") | linear(WIDTH, WIDTH, "y_embedder.y_proj.fc2")
    found |= linear(6 * WIDTH, WIDTH, "t_block.1") | linear(32, WIDTH, "final_layer.linear")
    for i in range(2):
        found |= below(f"blocks.{i}", _block())
    return found


def _block() -> Shapes:
    return {
        **linear(3 * WIDTH, WIDTH, "attn.qkv"),
        **linear(WIDTH, WIDTH, "attn.proj", "cross_attn.q_linear", "cross_attn.proj"),
        **linear(2 * WIDTH, WIDTH, "cross_attn.kv_linear"),
        **linear(MLP, WIDTH, "mlp.fc1"),
        **linear(WIDTH, MLP, "mlp.fc2"),
    }


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """As huggingface/diffusers scripts/convert_pixart_sigma_to_diffusers.py, which is not in the package."""
    return converter(
        {
            "x_embedder.proj": ["pos_embed.proj"],
            "y_embedder.y_proj.fc1": ["caption_projection.linear_1"],
            "y_embedder.y_proj.fc2": ["caption_projection.linear_2"],
            "t_embedder.mlp.0": ["adaln_single.emb.timestep_embedder.linear_1"],
            "t_embedder.mlp.2": ["adaln_single.emb.timestep_embedder.linear_2"],
            "csize_embedder.mlp.0": ["adaln_single.emb.resolution_embedder.linear_1"],
            "csize_embedder.mlp.2": ["adaln_single.emb.resolution_embedder.linear_2"],
            "ar_embedder.mlp.0": ["adaln_single.emb.aspect_ratio_embedder.linear_1"],
            "ar_embedder.mlp.2": ["adaln_single.emb.aspect_ratio_embedder.linear_2"],
            "t_block.1": ["adaln_single.linear"],
            "blocks.N.attn.qkv": [f"transformer_blocks.N.attn1.to_{part}" for part in "qkv"],
            "blocks.N.attn.proj": ["transformer_blocks.N.attn1.to_out.0"],
            "blocks.N.mlp.fc1": ["transformer_blocks.N.ff.net.0.proj"],
            "blocks.N.mlp.fc2": ["transformer_blocks.N.ff.net.2"],
            "blocks.N.cross_attn.q_linear": ["transformer_blocks.N.attn2.to_q"],
            "blocks.N.cross_attn.kv_linear": [f"transformer_blocks.N.attn2.to_{part}" for part in "kv"],
            "blocks.N.cross_attn.proj": ["transformer_blocks.N.attn2.to_out.0"],
            "final_layer.linear": ["proj_out"],
        },
        checkpoint,
    )


FAMILY = Family(
    name="pixart",
    named=("pixart", "pixart-alpha/lora", "pixart-sigma/lora", "pixart_sigma-900m-1024-v0.6/lora"),
    alone=("blocks.0.attn.qkv:1152", "transformer_blocks.0.attn1.to_q:1152", "blocks.0.cross_attn.kv_linear:1152"),
    build=build,
    native=native,
    convert=convert,
    encoders={"text_encoder": t5},
    writers={
        "diffusers": Writer(
            "peft",
            "PixArt-alpha/PixArt-alpha train_scripts/train_pixart_lora_hf.py; Comfy-Org/ComfyUI comfy/lora.py, PixArt",
            dotted("base_model.model."),
            "diffusers",
            layers=(".attn1.", ".attn2.", ".ff."),
        ),
        "first script": Writer(
            "peft",
            "Comfy-Org/ComfyUI comfy/lora.py, PixArt, `old reference peft script`",
            dotted("unet.base_model.model."),
            "diffusers",
            layers=("transformer_blocks",),
        ),
        "simpletuner": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/models/pixart/pipeline.py, PixArtSigmaPipeline.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner lycoris": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn1.", ".attn2.", ".ff."),
        ),
        "onetrainer": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/modelSaver/pixartAlpha/PixArtAlphaLoRASaver.py, _convert_legacy",
            kohya("lora_transformer_"),
            "diffusers",
        ),
        **encoder_writers(
            {"t5": "text_encoder"},
            {"lora_te": "t5", "lora_te1": "t5"},
            {"modelspec.architecture": "pixart-alpha/lora"},
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "comfy flattened": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya()),
    },
)
