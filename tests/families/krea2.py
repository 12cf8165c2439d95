"""Krea 2."""

from __future__ import annotations

from diffusers import Krea2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_krea2_transformer_checkpoint_to_diffusers
from torch import nn

from ._kinds import lokr, weights
from ._trainers import onetrainer
from .base import KOHYA_PARAMS, Family, List, Made, Shapes, Writer, below, dotted, kohya, linear, on_meta

WIDTH, KEYS, MLP, TEXT, TEXT_MLP = 6144, 1536, 16384, 2560, 6912
STACKS = ("blocks", "txtfusion.layerwise_blocks", "txtfusion.refiner_blocks")


def build(full: bool) -> nn.Module:
    """krea/Krea-2-Raw, transformer/config.json; text fusion always has two blocks of each kind."""
    return on_meta(Krea2Transformer2DModel, num_layers=28 if full else 2)


def native() -> Shapes:
    """kohya-ss/musubi-tuner src/musubi_tuner/krea2/krea2_mmdit.py, SingleStreamDiT."""
    found = linear(WIDTH, 64, "first") | linear(64, WIDTH, "last.linear") | linear(6 * WIDTH, WIDTH, "tproj.1")
    found |= linear(WIDTH, 256, "tmlp.0") | linear(WIDTH, WIDTH, "tmlp.2", "txtmlp.3") | linear(WIDTH, TEXT, "txtmlp.1")
    found |= linear(1, 12, "txtfusion.projector", bias=False)
    for stack in STACKS:
        wide = stack == "blocks"
        for i in range(2):
            sizes = (WIDTH, KEYS, MLP) if wide else (TEXT, TEXT, TEXT_MLP)
            found |= below(f"{stack}.{i}", _block(*sizes))
    return found


def _block(width: int, keys: int, mlp: int) -> Shapes:
    return {
        **linear(width, width, "attn.wq", "attn.wo", "attn.gate", bias=False),
        **linear(keys, width, "attn.wk", "attn.wv", bias=False),
        **linear(mlp, width, "mlp.gate", "mlp.up", bias=False),
        **linear(width, mlp, "mlp.down", bias=False),
    }


def fused() -> dict[str, tuple[str, ...]]:
    """q, k and v as one, with the rest of what SimpleTuner trains then."""
    found: dict[str, tuple[str, ...]] = {}
    for stack in ("transformer_blocks", "text_fusion.layerwise_blocks", "text_fusion.refiner_blocks"):
        for i in range(2):
            attention = f"{stack}.{i}.attn"
            found[f"{attention}.to_qkv"] = tuple(f"{attention}.to_{part}" for part in "qkv")
            found[f"{attention}.to_out.0"] = (f"{attention}.to_out.0",)
    return found


def fused_shapes() -> dict[str, tuple[int, ...]]:
    """Of `fused`."""
    shapes = {name: tuple(value.shape) for name, value in build(False).state_dict().items()}
    return {
        name: (sum(shapes[f"{part}.weight"][0] for part in parts), shapes[f"{parts[0]}.weight"][1])
        for name, parts in fused().items()
    }


FAMILY = Family(
    name="krea2",
    named=("krea2", "Krea-2/lora", "krea2-raw/lora"),
    build=build,
    native=native,
    convert=convert_krea2_transformer_checkpoint_to_diffusers,
    writers={
        "musubi": Writer(
            "kohya", "kohya-ss/musubi-tuner networks/lora_krea2.py, KREA2_TARGET_REPLACE_MODULES", kohya()
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/krea2/krea2.py, convert_lora_weights_before_save",
            dotted("diffusion_model."),
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/krea2.py, get_target_modules",
            dotted("diffusion_model."),
            layers=("blocks.", "txtfusion.", "txtmlp."),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, Krea2LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "diffusers, of the model alone": Writer(
            "peft", "huggingface/diffusers loaders/peft.py, save_lora_adapter", dotted(""), "diffusers"
        ),
        "simpletuner": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/models/krea2/model.py, DEFAULT_LORA_TARGET",
            dotted("transformer."),
            "diffusers",
            layers=("to_q", "to_k", "to_v", "to_out.0"),
        ),
        "simpletuner, fused": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/models/krea2/model.py, FUSED_LORA_TARGET",
            dotted("transformer."),
            fuse=fused(),
        ),
        "simpletuner lycoris": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), "diffusers"
        ),
        "onetrainer diffusers": Writer(
            "peft",
            "Nerogar/OneTrainer modules/util/convert_lora_util.py, convert_to_diffusers",
            dotted("transformer."),
            "diffusers",
        ),
        **onetrainer(),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
    },
    made={
        "musubi lokr": Made(
            "kohya-ss/musubi-tuner networks/lokr.py, LoKrModule",
            lambda: lokr(kohya(), weights(native(), "blocks.")),
            {"lokr": 48},
            List("kohya", 48, 48),
        ),
        "ai-toolkit lokr": Made(
            "ostris/ai-toolkit toolkit/network_mixins.py, get_state_dict",
            lambda: lokr(lambda layer, param: f"diffusion_model.{layer}.{param}", weights(native(), "blocks.")),
            {"lokr": 48},
            List("diffusers", 48, 48),
        ),
        "simpletuner lokr, fused": Made(
            "bghira/SimpleTuner simpletuner/helpers/models/krea2/transformer.py, fuse_projections",
            lambda: lokr(kohya("lycoris_"), fused_shapes()),
            {"lokr": 12},
            List("kohya", 12, 24),
        ),
    },
    lists={"krea2_lora_kohya_format": List("kohya", 40, 40)},
)
