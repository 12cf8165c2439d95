"""ERNIE-Image, which has the same names in every program."""

from __future__ import annotations

from diffusers import ErnieImageTransformer2DModel
from torch import nn

from .base import KOHYA_PARAMS, Family, Writer, dotted, kohya, on_meta

BLOCKS = ("layers.",)


def build(full: bool) -> nn.Module:
    """As wide as diffusers makes it by itself."""
    return on_meta(ErnieImageTransformer2DModel, num_layers=24 if full else 2)


FAMILY = Family(
    name="ernie_image",
    named=("ernie_image", "Ernie/lora", "ernie-base/lora"),
    build=build,
    writers={
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/ernie_image/ernie_image.py, "
            "convert_lora_weights_before_save",
            dotted("diffusion_model."),
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/ernie_image.py, adapter_target_modules",
            dotted("diffusion_model."),
            layers=BLOCKS,
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, ErnieImageLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
        ),
        "simpletuner lycoris": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), layers=BLOCKS
        ),
        "onetrainer legacy": Writer(
            "diffusers",
            "Nerogar/OneTrainer modules/modelSaver/ernie/ErnieLoRASaver.py, _convert_legacy",
            dotted("transformer.", KOHYA_PARAMS),
        ),
        "kohya": Writer(
            "kohya", "vladmandic/sdnext pipelines/ernie/ernie_lora.py, KNOWN_PREFIXES", kohya(), layers=BLOCKS
        ),
    },
)
