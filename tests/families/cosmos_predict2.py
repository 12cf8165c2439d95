"""Cosmos-Predict2 14B. Names tell nothing of the smaller, which Anima was made of; see `anima.py`."""

from __future__ import annotations

from diffusers.loaders.single_file_utils import convert_cosmos_transformer_checkpoint_to_diffusers
from torch import nn

from ._cosmos import dit, transformer
from .base import KOHYA_PARAMS, Family, Shapes, Writer, dotted, kohya

HEADS, WIDTH = 40, 5120


def build(full: bool) -> nn.Module:
    return transformer(HEADS, 36 if full else 2)


def native() -> Shapes:
    return dit(WIDTH)


FAMILY = Family(
    name="cosmos_predict2",
    named=("cosmos2image-2b/lora",),
    build=build,
    native=native,
    convert=convert_cosmos_transformer_checkpoint_to_diffusers,
    writers={
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/cosmos_predict2.py, save_adapter",
            dotted("diffusion_model."),
            layers=("blocks.",),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, CosmosLoraLoaderMixin.save_lora_weights; "
            "bghira/SimpleTuner",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner lycoris": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), "diffusers"
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    },
)
