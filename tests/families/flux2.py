"""FLUX.2 dev. Klein is narrower and has no guidance; see `flux2_klein.py`."""

from __future__ import annotations

from collections.abc import Mapping

from diffusers import Flux2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers
from torch import nn

from ._kinds import lokr, weights
from ._trainers import onetrainer
from .base import (
    KOHYA_PARAMS,
    Base,
    Family,
    List,
    Made,
    Shapes,
    Writer,
    below,
    dotted,
    kohya,
    linear,
    norm,
    on_meta,
)

WIDTH, TEXT = 6144, 15360
BLOCKS = ("double_blocks.", "single_blocks.")


def build(full: bool) -> nn.Module:
    """black-forest-labs/FLUX.2-dev, transformer/config.json."""
    return on_meta(Flux2Transformer2DModel, num_layers=8 if full else 2, num_single_layers=48 if full else 2)


def native() -> Shapes:
    return flux2(WIDTH, TEXT, guidance=True)


def flux2(width: int, text: int, *, guidance: bool) -> Shapes:
    """black-forest-labs/flux2 src/flux2/model.py, Flux2, with two blocks of each kind."""
    found: Shapes = {}
    for name in ("time_in", "guidance_in") if guidance else ("time_in",):
        found |= linear(width, 256, f"{name}.in_layer", bias=False)
        found |= linear(width, width, f"{name}.out_layer", bias=False)
    found |= linear(width, 128, "img_in", bias=False) | linear(width, text, "txt_in", bias=False)
    found |= linear(128, width, "final_layer.linear", bias=False)
    found |= linear(2 * width, width, "final_layer.adaLN_modulation.1", bias=False)
    found |= linear(6 * width, width, *(f"double_stream_modulation_{side}.lin" for side in ("img", "txt")), bias=False)
    found |= linear(3 * width, width, "single_stream_modulation.lin", bias=False)
    for i in range(2):
        for side in ("img", "txt"):
            found |= below(f"double_blocks.{i}", _side(side, width))
        found |= below(f"single_blocks.{i}", _single(width))
    return found


def _side(side: str, width: int) -> Shapes:
    return {
        **linear(3 * width, width, f"{side}_attn.qkv", bias=False),
        **norm(128, f"{side}_attn.norm.query_norm", f"{side}_attn.norm.key_norm", param="scale"),
        **linear(width, width, f"{side}_attn.proj", bias=False),
        **linear(6 * width, width, f"{side}_mlp.0", bias=False),
        **linear(width, 3 * width, f"{side}_mlp.2", bias=False),
    }


def _single(width: int) -> Shapes:
    return {
        **linear(9 * width, width, "linear1", bias=False),
        **linear(width, 4 * width, "linear2", bias=False),
        **norm(128, "norm.query_norm", "norm.key_norm", param="scale"),
    }


def writers() -> Mapping[str, Writer]:
    """Of all trainers of FLUX.2; they write alike for all sizes."""
    return {
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_flux_2.py, FLUX_2_TARGET_REPLACE_MODULES",
            kohya(),
            layers=BLOCKS,
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/flux2/flux2_model.py, "
            "convert_lora_weights_before_save",
            dotted("diffusion_model."),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, Flux2LoraLoaderMixin.save_lora_weights; "
            "bghira/SimpleTuner",
            dotted("transformer."),
            "diffusers",
        ),
        "diffusers, of the model alone": Writer(
            "peft", "huggingface/diffusers loaders/peft.py, save_lora_adapter", dotted(""), "diffusers"
        ),
        "simpletuner lycoris": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), "diffusers"
        ),
        "peft of the native model": Writer(
            "peft",
            "huggingface/peft utils/save_and_load.py; fal's trainer, see diffusers' Flux2LoraLoaderMixin",
            dotted("base_model.model."),
        ),
        "onetrainer legacy": Writer(
            "diffusers",
            "Nerogar/OneTrainer modules/modelSaver/flux2/Flux2LoRASaver.py, _convert_legacy",
            dotted("transformer.", KOHYA_PARAMS),
            "diffusers",
        ),
        **onetrainer(),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    }


def made(shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Made]:
    """LoKr of the trainers that have it."""
    layers = weights(shapes, *BLOCKS)
    count = len(layers)
    changed = count + 2 * sum(name.endswith("qkv") for name in layers)
    return {
        "musubi lokr": Made(
            "kohya-ss/musubi-tuner networks/lokr.py, LoKrModule",
            lambda: lokr(kohya(), layers),
            {"lokr": count},
            List("kohya", count, changed),
        ),
        "ai-toolkit lokr": Made(
            "ostris/ai-toolkit toolkit/models/lokr.py; network_mixins.py, get_state_dict",
            lambda: lokr(lambda layer, param: f"diffusion_model.{layer}.{param}", layers),
            {"lokr": count},
            List("diffusers", count, changed),
        ),
        "ai-toolkit lokr, old": Made(
            "ostris/ai-toolkit toolkit/network_mixins.py, use_old_lokr_format",
            lambda: lokr(kohya("lycoris_"), layers),
            {"lokr": count},
            List("kohya", count, changed),
        ),
    }


FAMILY = Family(
    name="flux2",
    named=("flux2", "Flux.2-dev/lora", "Flux.2/lora"),
    bases={"flux2_vae_bfl_keys": Base({})},
    build=build,
    native=native,
    convert=convert_flux2_transformer_checkpoint_to_diffusers,
    writers=writers(),
    made=made(native()),
)
