"""AuraFlow."""

from __future__ import annotations

import torch
from diffusers import AuraFlowTransformer2DModel
from diffusers.loaders.single_file_utils import convert_auraflow_transformer_checkpoint_to_diffusers
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from ._trainers import extracted, simpletuner_comfy
from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, on_meta

WIDTH, MLP = 3072, 8192


def build(full: bool) -> nn.Module:
    """fal/AuraFlow-v0.3, transformer/config.json."""
    return on_meta(
        AuraFlowTransformer2DModel,
        num_mmdit_layers=4 if full else 2,
        num_single_dit_layers=32 if full else 2,
        out_channels=4,
    )


def native() -> Shapes:
    """cloneofsimo/minRF advanced/mmdit.py, MMDiT. Nothing has a bias but the first and the time's layers."""
    found = linear(WIDTH, 16, "init_x_linear") | linear(16, WIDTH, "final_linear", bias=False)
    found |= linear(WIDTH, 2048, "cond_seq_linear", bias=False) | linear(2 * WIDTH, WIDTH, "modF.1", bias=False)
    found |= linear(WIDTH, 256, "t_embedder.mlp.0") | linear(WIDTH, WIDTH, "t_embedder.mlp.2")
    for i in range(2):
        for side, number in (("C", 1), ("X", 2)):
            found |= below(f"double_layers.{i}", _side(f"mlp{side}", f"mod{side}", number))
        found |= below(f"single_layers.{i}", _side("mlp", "modCX", 1))
    return found


def _side(mlp: str, modulation: str, number: int) -> Shapes:
    return {
        **linear(WIDTH, WIDTH, *(f"attn.w{number}{part}" for part in "qkvo"), bias=False),
        **linear(MLP, WIDTH, f"{mlp}.c_fc1", f"{mlp}.c_fc2", bias=False),
        **linear(WIDTH, MLP, f"{mlp}.c_proj", bias=False),
        **linear(6 * WIDTH, WIDTH, f"{modulation}.1", bias=False),
    }


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' converter, which wants the parameters that are no layers as well."""
    checkpoint["register_tokens"] = checkpoint["positional_encoding"] = torch.zeros(1)
    return dict(convert_auraflow_transformer_checkpoint_to_diffusers(checkpoint))


def pile_t5() -> nn.Module:
    """fal/AuraFlow-v0.3, text_encoder/config.json."""
    config = UMT5Config(
        d_model=2048, d_ff=5120, d_kv=64, num_heads=32, num_layers=24, vocab_size=32128, feed_forward_proj="gated-gelu"
    )
    return on_meta(UMT5EncoderModel, config=config)


FAMILY = Family(
    name="auraflow",
    named=("auraflow", "auraflow-v0.3/lora"),
    alone=(
        "double_layers.0.attn.w1q:3072",
        "joint_transformer_blocks.0.attn.to_q:3072",
        "single_transformer_blocks.31.ff.linear_1:3072",
    ),
    build=build,
    native=native,
    convert=convert,
    encoders={"text_encoder": pile_t5},
    writers={
        "simpletuner, diffusion-pipe and diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, AuraFlowLoraLoaderMixin.save_lora_weights;"
            " tdrussell/diffusion-pipe models/auraflow.py, save_adapter",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner lycoris": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=("single_transformer_blocks",),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "comfy flattened": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya()),
        **simpletuner_comfy("transformer."),
        **extracted("pile_t5xl.transformer", "block.0.", "block.23."),
        "ai-toolkit": Writer(
            "kohya",
            "ostris/ai-toolkit toolkit/lora_special.py, LoRASpecialNetwork with is_auraflow, which has no peft_format",
            kohya("lora_transformer_"),
            "diffusers",
            layers=("transformer_blocks",),
        ),
    },
)
