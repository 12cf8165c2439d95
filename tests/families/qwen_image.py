"""Qwen-Image, which has the same names in every program."""

from __future__ import annotations

from diffusers import QwenImageTransformer2DModel
from torch import nn

from ._kinds import lokr, weights
from ._language_models import qwen25_vl
from ._trainers import onetrainer, simpletuner_comfy
from .base import KOHYA_PARAMS, Base, Family, List, Made, Writer, dotted, kohya, on_meta

BLOCKS = ("transformer_blocks.",)
ATTENTION = (".attn.", "_mlp.")


def build(full: bool) -> nn.Module:
    """Qwen/Qwen-Image, transformer/config.json; Qwen-Image-Edit's is the same."""
    return on_meta(QwenImageTransformer2DModel, num_layers=60 if full else 2)


def blocks() -> dict[str, tuple[int, ...]]:
    """Layers that adapters are mostly for."""
    shapes = {name: tuple(value.shape) for name, value in build(False).state_dict().items()}
    return weights(shapes, *ATTENTION)


FAMILY = Family(
    name="qwen_image",
    named=("qwen_image", "qwen_image_edit_plus", "Qwen-Image/lora", "Qwen-Image-Edit-2511/lora"),
    bases={"qwen_vl_encoder_comfyui_keys": Base({"text_encoder": qwen25_vl})},
    build=build,
    encoders={"text_encoder": qwen25_vl},
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_qwen_image.py, QWEN_IMAGE_TARGET_REPLACE_MODULES",
            kohya(),
            layers=ATTENTION,
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/qwen_image/qwen_image.py, "
            "convert_lora_weights_before_save; tdrussell/diffusion-pipe models/qwen_image.py, save_adapter",
            dotted("diffusion_model."),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, QwenImageLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
        ),
        "modelscope": Writer(
            "peft",
            "modelscope/DiffSynth-Studio diffsynth/trainers/utils.py, as in diffusers "
            "lora_conversion_utils.py, _convert_non_diffusers_qwen_lora_to_diffusers",
            lambda layer, param: {
                "lora_down.weight": f"{layer}.lora_A.default.weight",
                "lora_up.weight": f"{layer}.lora_B.default.weight",
            }.get(param),
            layers=BLOCKS,
        ),
        "kohya's names, bare": Writer(
            "diffusers",
            "the list qwen_image_lora_diffusers_format",
            dotted("", KOHYA_PARAMS),
            layers=BLOCKS,
        ),
        "simpletuner lycoris": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), layers=BLOCKS
        ),
        "videox-fun": Writer(
            "kohya",
            "aigc-apps/VideoX-Fun videox_fun/utils/lora_utils.py, LoRANetwork.create_modules",
            kohya("lora_unet__"),
            layers=BLOCKS,
        ),
        "onetrainer legacy": Writer(
            "diffusers",
            "Nerogar/OneTrainer modules/modelSaver/qwen/QwenLoRASaver.py, _convert_legacy",
            dotted("transformer.", KOHYA_PARAMS),
        ),
        "onetrainer comfy, the text encoder": Writer(
            "peft",
            "Nerogar/OneTrainer modules/model/QwenModel.py, lora_text_encoders",
            dotted("text_encoders.qwen25_7b.transformer."),
            names="diffusers",
            component="text_encoder",
            layers=("layers.0.self_attn",),
        ),
        "onetrainer kohya, the text encoder": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/model/QwenModel.py, lora_text_encoders",
            kohya("lora_te_"),
            names="diffusers",
            component="text_encoder",
            layers=("layers.0.self_attn",),
        ),
        **onetrainer("diffusers"),
        **simpletuner_comfy("diffusion_model."),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet; comfy_extras/nodes_lora_extract.py",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    },
    made={
        "musubi lokr": Made(
            "kohya-ss/musubi-tuner networks/lokr.py, LoKrModule",
            lambda: lokr(kohya(), blocks()),
            {"lokr": 24},
            List("kohya", 24, 24),
        ),
        "ai-toolkit lokr": Made(
            "ostris/ai-toolkit toolkit/network_mixins.py, use_old_lokr_format",
            lambda: lokr(kohya("lycoris_"), blocks()),
            {"lokr": 24},
            List("kohya", 24, 24),
        ),
    },
    lists={
        "qwen_image_lora_diffusers_format": List("diffusers", 3, 3),
        "qwen_image_lora_kohya_format": List("kohya", 8, 8, shapes=False),
    },
)
