"""HiDream-I1. Its own code and diffusers' have the same names: the converter changes none."""

from __future__ import annotations

from diffusers import HiDreamImageTransformer2DModel
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from .base import Family, Writer, dotted, kohya, on_meta
from .flux import clip, t5


def build(full: bool) -> nn.Module:
    """HiDream-ai/HiDream-I1-Full, transformer/config.json."""
    double, single = (16, 32) if full else (2, 2)
    return on_meta(
        HiDreamImageTransformer2DModel,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=double,
        num_single_layers=single,
        attention_head_dim=128,
        num_attention_heads=20,
        caption_channels=[4096, 4096],
        text_emb_dim=2048,
        num_routed_experts=4,
        num_activated_experts=2,
        llama_layers=list(range(double + single)),
    )


def llama() -> nn.Module:
    """meta-llama/Llama-3.1-8B-Instruct."""
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_hidden_layers=32,
        vocab_size=128256,
    )
    return on_meta(LlamaForCausalLM, config=config)


FAMILY = Family(
    name="hidream",
    build=build,
    encoders={"text_encoder": clip, "text_encoder_3": t5, "text_encoder_4": llama},
    writers={
        "diffusion-pipe and ai-toolkit": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/hidream.py, save_adapter; ostris/ai-toolkit"
            " extensions_built_in/diffusion_models/hidream/hidream_model.py, convert_lora_weights_before_save",
            dotted("diffusion_model."),
            "diffusers",
        ),
        "diffusers and simpletuner": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, HiDreamImageLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
            layers=("_stream_blocks",),
        ),
        "simpletuner lycoris": Writer(
            "lycoris",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn1.", ".ff_i.", ".ff_t."),
        ),
        "comfy": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya(), "diffusers"),
    },
)
