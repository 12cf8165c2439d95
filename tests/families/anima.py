"""Anima: transformer, adapter and text encoder."""

from __future__ import annotations

from collections.abc import Callable

from diffusers import AnimaTextConditioner
from diffusers.loaders.single_file_utils import convert_cosmos_transformer_checkpoint_to_diffusers
from torch import nn

from ._cosmos import dit, transformer
from ._kinds import lokr, weights
from ._language_models import qwen3
from ._trainers import onetrainer
from .base import KOHYA_PARAMS, PEFT, Base, Family, List, Made, Shapes, Writer, dotted, kohya, on_meta

HEADS, WIDTH = 16, 2048


def build(full: bool) -> nn.Module:
    """circlestone-labs/Anima, as diffusers' scripts/convert_anima_to_diffusers.py makes it."""
    return transformer(HEADS, 28 if full else 2)


def native() -> Shapes:
    return dit(WIDTH)


def adapter() -> nn.Module:
    """SD.Next's AnimaLLMAdapter and diffusers' AnimaTextConditioner have the same layers."""
    return on_meta(AnimaTextConditioner)


def blocks() -> dict[str, tuple[int, ...]]:
    """Layers that LoKr are mostly for."""
    return weights(native(), "_proj", "mlp.layer")


def inside(key: Callable[[str, str], str | None]) -> Callable[[str, str], str | None]:
    """Keys of the adapter, which all trainers have inside the transformer."""
    return lambda layer, param: key(f"llm_adapter.{layer}", param)


FAMILY = Family(
    name="anima",
    named=("anima", "anima-preview/lora", "anima-unknown/lora", "Anima/lora", "anima-preview-3/lora"),
    bases={"anima_comfyui_keys": Base({"transformer": lambda: build(True), "llm_adapter": adapter})},
    build=build,
    native=native,
    convert=convert_cosmos_transformer_checkpoint_to_diffusers,
    encoders={"text_encoder": lambda: qwen3(1024, 3072, 16, head=False), "llm_adapter": adapter},
    writers={
        "kohya": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_anima.py, ANIMA_TARGET_REPLACE_MODULE",
            kohya(),
            layers=("blocks.",),
        ),
        "kohya, everything": Writer("kohya", "kohya-ss/sd-scripts networks/lora_anima.py, include_patterns", kohya()),
        "kohya, the adapter": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_anima.py, ANIMA_ADAPTER_TARGET_REPLACE_MODULE",
            inside(kohya()),
            names="diffusers",
            component="llm_adapter",
            layers=("blocks.",),
        ),
        "kohya, the text encoder": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_anima.py, TEXT_ENCODER_TARGET_REPLACE_MODULE",
            kohya("lora_te_"),
            names="diffusers",
            component="text_encoder",
        ),
        "ai-toolkit and diffusion-pipe": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/anima/anima.py, convert_lora_weights_before_save;"
            " tdrussell/diffusion-pipe models/cosmos_predict2.py, save_adapter",
            dotted("diffusion_model."),
        ),
        "ai-toolkit, the adapter": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/anima/anima.py, train_text_conditioner",
            inside(dotted("diffusion_model.")),
            names="diffusers",
            component="llm_adapter",
        ),
        "comfy, the text encoder": Writer(
            "peft",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_clip",
            dotted("text_encoders.qwen3_06b.transformer.model."),
            names="diffusers",
            component="text_encoder",
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, AnimaLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "diffusers, the adapter": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, AnimaLoraLoaderMixin.text_conditioner_name",
            dotted("text_conditioner."),
            names="diffusers",
            component="llm_adapter",
        ),
        "simpletuner": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/models/anima/transformer.py, AnimaTransformerModel.core",
            dotted("transformer.core."),
            "diffusers",
            layers=("to_q", "to_k", "to_v", "to_out.0"),
        ),
        "simpletuner, the adapter": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/models/anima/transformer.py, AnimaTransformerModel.llm_adapter",
            inside(dotted("transformer.")),
            names="diffusers",
            component="llm_adapter",
        ),
        **onetrainer(),
        "onetrainer original": Writer(
            "peft",
            "Nerogar/OneTrainer modules/model/AnimaModel.py, diffusers_to_original",
            dotted("net.", PEFT | {"alpha": "alpha"}),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "lycoris": Writer(
            "kohya",
            "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX; bghira/SimpleTuner save_hooks.py, _save_lycoris",
            kohya("lycoris_"),
            "diffusers",
            layers=("transformer_blocks",),
        ),
    },
    made={
        "kohya lokr": Made(
            "KohakuBlueleaf/LyCORIS lycoris/modules/lokr.py under kohya-ss/sd-scripts",
            lambda: lokr(kohya(), blocks()),
            {"lokr": 20},
            List("kohya", 20, 20),
        ),
        "ai-toolkit lokr": Made(
            "ostris/ai-toolkit toolkit/network_mixins.py, get_state_dict",
            lambda: lokr(lambda layer, param: f"diffusion_model.{layer}.{param}", blocks()),
            {"lokr": 20},
            List("diffusers", 20, 20),
        ),
    },
    lists={
        # cross attention and modulation are wider or narrower than this model has them
        "anima_lora_kohya_format": List("kohya", 11, 11, shapes=False),
        "anima_lora_kohya_with_te_format": List("kohya", 9, 9, shapes=False),
        "anima_lora_lokr_format": List("diffusers", 3, 3, shapes=False),
        "anima_lora_peft_format": List("peft", 6, 6, shapes=False),
    },
)
