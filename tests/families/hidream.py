"""HiDream-I1. Its own code and diffusers' have the same names: the converter changes none."""

from __future__ import annotations

from diffusers import HiDreamImageTransformer2DModel
from torch import nn

from ._encoders import LLM_LAYERS, clip_g, clip_l_projected, encoder_writers, llama, t5
from ._trainers import onetrainer, simpletuner_comfy
from .base import KOHYA_PARAMS, Family, Writer, dotted, kohya, on_meta


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


def language_model() -> nn.Module:
    """meta-llama/Llama-3.1-8B-Instruct."""
    return llama(128256, head=True)


METADATA = {"ss_base_model_version": "hidream_i1"}


FAMILY = Family(
    name="hidream",
    named=("hidream_i1", "hidream", "hidream_e1", "hidream-i1/lora", "hidream-full/lora"),
    alone=("double_stream_blocks.0.block.attn1.to_q:2560", "single_stream_blocks.0.block.ff_i.experts.0.w1:2560"),
    build=build,
    encoders={
        "text_encoder": clip_l_projected,
        "text_encoder_2": clip_g,
        "text_encoder_3": t5,
        "text_encoder_4": language_model,
    },
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
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn1.", ".ff_i.", ".ff_t."),
        ),
        "onetrainer llama": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/model/HiDreamModel.py, lora_text_encoders",
            kohya("lora_te4_"),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder_4",
            metadata=METADATA,
        ),
        "comfy llama": Writer(
            "peft",
            "Nerogar/OneTrainer modules/model/HiDreamModel.py, lora_text_encoders",
            dotted("text_encoders.llama.transformer."),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder_4",
            metadata=METADATA,
        ),
        **encoder_writers(
            {"clip_l": "text_encoder", "clip_g": "text_encoder_2", "t5": "text_encoder_3"},
            {"lora_te1": "clip_l", "lora_te2": "clip_g", "lora_te3": "t5"},
            METADATA,
            omi=True,
        ),
        "comfy": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya(), "diffusers"),
        **onetrainer("diffusers"),
        **simpletuner_comfy("transformer."),
        "comfy extract": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy_extras/nodes_lora_extract.py, LoraSave",
            dotted("diffusion_model.", KOHYA_PARAMS),
            "diffusers",
        ),
        "omi": Writer(
            "diffusers",
            "Nerogar/OneTrainer up to de1437cb, modules/util/convert/lora/convert_hidream_lora.py",
            dotted("transformer.", KOHYA_PARAMS),
            "diffusers",
            layers=("_stream_blocks",),
        ),
        "omi llama": Writer(
            "diffusers",
            "Nerogar/OneTrainer up to de1437cb, modules/util/convert/lora/convert_llama.py, map_causal_llama",
            dotted("llama.", KOHYA_PARAMS),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder_4",
            metadata=METADATA,
        ),
    },
)
