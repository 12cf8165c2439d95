"""Kandinsky 5. Its own code, diffusers and musubi-tuner have the same names."""

from __future__ import annotations

from diffusers import Kandinsky5Transformer3DModel
from torch import nn

from ._encoders import clip_l, encoder_writers
from .base import KOHYA_PARAMS, Family, Writer, dotted, kohya, on_meta


def build(full: bool) -> nn.Module:
    """kandinskylab/Kandinsky-5.0-T2V-Lite-sft-5s-Diffusers, transformer/config.json."""
    return on_meta(
        Kandinsky5Transformer3DModel,
        num_text_blocks=2,
        num_visual_blocks=32 if full else 2,
        model_dim=1792,
        ff_dim=7168,
        time_dim=512,
    )


FAMILY = Family(
    name="kandinsky5",
    named=("kandinsky5", "Kandinsky-5/lora", "kandinsky5-image-t2i-lite-sft/lora"),
    alone=("visual_transformer_blocks.0.self_attention.to_query:1792",),
    build=build,
    encoders={"text_encoder_2": clip_l},
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_kandinsky.py, KANDINSKY5_TARGET_REPLACE_MODULES",
            kohya(),
            "diffusers",
            layers=("self_attention.", "cross_attention.", "feed_forward."),
            metadata={"ss_base_model_version": "kandinsky5"},
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, KandinskyLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=("visual_transformer_blocks",),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
            "diffusers",
        ),
        **encoder_writers({"clip_l": "text_encoder_2"}, {}, {"ss_base_model_version": "kandinsky5"}),
    },
)
