"""Z-Image."""

from __future__ import annotations

from diffusers import ZImageTransformer2DModel
from diffusers.loaders.single_file_utils import convert_z_image_transformer_checkpoint_to_diffusers
from torch import nn

from ._kinds import lokr, weights
from ._language_models import qwen3
from ._trainers import extracted, onetrainer
from .base import KOHYA_PARAMS, Base, Family, List, Made, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, MLP, TEXT = 3840, 10240, 2560
STACKS = ("layers", "noise_refiner", "context_refiner")
BLOCKS = ("layers.", "refiner.")


def build(full: bool) -> nn.Module:
    """Tongyi-MAI/Z-Image-Turbo, transformer/config.json; the refiners always have two blocks."""
    return on_meta(ZImageTransformer2DModel, n_layers=30 if full else 2)


def native() -> Shapes:
    """Comfy-Org/ComfyUI comfy/ldm/lumina/model.py, NextDiT, as Comfy-Org/z_image_turbo has it."""
    found = linear(WIDTH, 64, "x_embedder") | linear(WIDTH, TEXT, "cap_embedder.1") | norm(TEXT, "cap_embedder.0")
    found |= linear(1024, 256, "t_embedder.mlp.0") | linear(256, 1024, "t_embedder.mlp.2")
    found |= linear(64, WIDTH, "final_layer.linear") | linear(WIDTH, 256, "final_layer.adaLN_modulation.1")
    for stack in STACKS:
        for i in range(2):
            found |= below(f"{stack}.{i}", _block(modulated=stack != "context_refiner"))
    return found


def _block(*, modulated: bool) -> Shapes:
    found = linear(3 * WIDTH, WIDTH, "attention.qkv", bias=False) | linear(WIDTH, WIDTH, "attention.out", bias=False)
    found |= linear(MLP, WIDTH, "feed_forward.w1", "feed_forward.w3", bias=False)
    found |= linear(WIDTH, MLP, "feed_forward.w2", bias=False)
    found |= norm(WIDTH, *(f"{part}_norm{i}" for part in ("attention", "ffn") for i in (1, 2)))
    found |= norm(128, "attention.q_norm", "attention.k_norm")
    return found | (linear(4 * WIDTH, 256, "adaLN_modulation.0") if modulated else {})


def apart() -> dict[str, tuple[int, ...]]:
    """Layers of the blocks as diffusers has them."""
    return weights({name: tuple(value.shape) for name, value in build(False).state_dict().items()}, "layers.")


FAMILY = Family(
    name="z_image",
    named=("z_image", "zimage", "Z-Image/lora", "z-image-turbo/lora"),
    bases={"z_image_transformer_comfyui_keys": Base({"transformer": lambda: build(True)}, absent=("norm_final",))},
    build=build,
    native=native,
    convert=convert_z_image_transformer_checkpoint_to_diffusers,
    encoders={"text_encoder": lambda: qwen3(2560, 9728, 32)},
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_zimage.py, ZIMAGE_TARGET_REPLACE_MODULES",
            kohya(),
            "diffusers",
            layers=("layers.",),
        ),
        "musubi, for comfy": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/convert_z_image_lora_to_comfy.py",
            kohya(),
            layers=("layers.",),
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/z_image/z_image.py, "
            "convert_lora_weights_before_save",
            dotted("diffusion_model."),
            "diffusers",
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/z_image.py, adapter_target_modules",
            dotted("diffusion_model."),
            layers=BLOCKS,
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, ZImageLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "modelscope": Writer(
            "peft",
            "modelscope/DiffSynth-Studio, as in diffusers _convert_non_diffusers_z_image_lora_to_diffusers",
            lambda layer, param: {
                "lora_down.weight": f"{layer}.lora_A.default.weight",
                "lora_up.weight": f"{layer}.lora_B.default.weight",
            }.get(param),
            "diffusers",
            layers=("layers.",),
        ),
        "videox-fun": Writer(
            "kohya",
            "aigc-apps/VideoX-Fun videox_fun/utils/lora_utils.py, LoRANetwork.create_modules",
            kohya("lora_unet__"),
            "diffusers",
        ),
        "simpletuner lycoris": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), "diffusers"
        ),
        "onetrainer legacy": Writer(
            "diffusers",
            "Nerogar/OneTrainer modules/modelSaver/zImage/ZImageLoRASaver.py, _convert_legacy",
            dotted("transformer.", KOHYA_PARAMS),
            "diffusers",
        ),
        **onetrainer("diffusers"),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        **extracted("qwen3_4b.transformer", "layers.0.self_attn", "layers.1.mlp"),
    },
    made={
        "musubi lokr": Made(
            "kohya-ss/musubi-tuner networks/lokr.py, LoKrModule",
            lambda: lokr(kohya(), apart()),
            {"lokr": 16},
            List("kohya", 16, 16),
        ),
        "ai-toolkit lokr": Made(
            "ostris/ai-toolkit toolkit/network_mixins.py, use_old_lokr_format",
            lambda: lokr(kohya("lycoris_"), apart()),
            {"lokr": 16},
            List("kohya", 16, 16),
        ),
        "lokr of the native model": Made(
            "KohakuBlueleaf/LyCORIS lycoris/modules/lokr.py",
            lambda: lokr(kohya(), weights(native(), "layers.")),
            {"lokr": 12},
            List("kohya", 12, 16),
        ),
    },
)
