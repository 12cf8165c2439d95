"""FLUX.1."""

from __future__ import annotations

from diffusers import FluxTransformer2DModel
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from .base import KOHYA_PARAMS, Family, List, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, MLP = 3072, 12288


def build(full: bool) -> nn.Module:
    """black-forest-labs/FLUX.1-dev, transformer/config.json."""
    return on_meta(
        FluxTransformer2DModel,
        num_layers=19 if full else 2,
        num_single_layers=38 if full else 2,
        guidance_embeds=True,
    )


def native() -> Shapes:
    """black-forest-labs/flux src/flux/model.py, Flux."""
    found: Shapes = {}
    for name, inside in (("time_in", 256), ("vector_in", 768), ("guidance_in", 256)):
        found |= linear(WIDTH, inside, f"{name}.in_layer") | linear(WIDTH, WIDTH, f"{name}.out_layer")
    found |= linear(WIDTH, 64, "img_in") | linear(WIDTH, 4096, "txt_in")
    found |= linear(64, WIDTH, "final_layer.linear") | linear(2 * WIDTH, WIDTH, "final_layer.adaLN_modulation.1")
    for i in range(2):
        for side in ("img", "txt"):
            found |= below(f"double_blocks.{i}", _side(side))
        found |= below(f"single_blocks.{i}", _single())
    return found


def _side(side: str) -> Shapes:
    return {
        **linear(6 * WIDTH, WIDTH, f"{side}_mod.lin"),
        **linear(3 * WIDTH, WIDTH, f"{side}_attn.qkv"),
        **norm(128, f"{side}_attn.norm.query_norm", f"{side}_attn.norm.key_norm", param="scale"),
        **linear(WIDTH, WIDTH, f"{side}_attn.proj"),
        **linear(MLP, WIDTH, f"{side}_mlp.0"),
        **linear(WIDTH, MLP, f"{side}_mlp.2"),
    }


def _single() -> Shapes:
    return {
        **linear(3 * WIDTH, WIDTH, "modulation.lin"),
        **linear(3 * WIDTH + MLP, WIDTH, "linear1"),
        **linear(WIDTH, WIDTH + MLP, "linear2"),
        **norm(128, "norm.query_norm", "norm.key_norm", param="scale"),
    }


def clip() -> nn.Module:
    """openai/clip-vit-large-patch14."""
    return on_meta(
        CLIPTextModel, config=CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12)
    )


def t5() -> nn.Module:
    """google/t5-v1_1-xxl, its encoder."""
    config = T5Config(
        d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu", vocab_size=32128
    )
    return on_meta(T5EncoderModel, config=config)


FAMILY = Family(
    name="flux",
    build=build,
    native=native,
    convert=convert_flux_transformer_checkpoint_to_diffusers,
    encoders={"text_encoder": clip, "text_encoder_2": t5},
    writers={
        "kohya": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_flux.py, LoRANetwork.LORA_PREFIX_FLUX",
            kohya(),
            layers=("blocks",),
        ),
        "ai-toolkit": Writer(
            "peft", "ostris/ai-toolkit toolkit/lora_special.py, LoRASpecialNetwork", dotted("diffusion_model.")
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    },
    lists={
        "flux_lora_kohya_format": List("kohya", 304, 494),
        "flux_lora_aitoolkit_format": List("peft", 228, 418),
        "flux_lora_diffusers_format": List("peft", 494, 494),
        "flux_lora_diffusers_no_proj_mlp_format": List("peft", 342, 342),
    },
)
