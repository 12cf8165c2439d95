"""What the families with Stable Diffusion's UNet share: how its model is made, and who writes files for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from torch import Tensor, nn

from tests.fakes.families import diffusers_unet, models
from tests.fakes.ldm import UNETS, UNetConfig, unet_shapes

from ._encoders import CLIP_LAYERS, nested
from .base import KOHYA_PARAMS, PEFT_ALPHA, PEFT_NAMED, Family, List, Made, Shapes, Writer, dotted, kohya

_ATTENTION = ("attn1.to_", "attn2.to_")
_TRANSFORMER = ("attentions",)


def family(
    name: str,
    *,
    depths: tuple[int, ...] | None = None,
    middle: int = 1,
    named: tuple[str, ...],
    writers: Mapping[str, Writer],
    lists: Mapping[str, List] | None = None,
    made: Mapping[str, Made] | None = None,
) -> Family:
    """One of the families.

    Args:
        name: as in `tests.fakes.ldm.UNETS`.
        depths: transformer blocks per level of the model with few blocks; those of the full one if none are given.
        middle: the same for its middle block.
        named: as in `Family`.
        writers: beside those that every family has.
        lists: of real files.
        made: lists of other kinds than LoRA.
    """
    full = UNETS[name]
    few = full if depths is None else replace(full, depths=depths, middle=middle)
    return Family(
        name=name,
        component="unet",
        named=named,
        both_trees=True,
        build=lambda whole: diffusers_unet(name, full if whole else few),
        native=lambda: unet_shapes(few),
        convert=lambda given: _converted(given, few),
        writers={**_WRITERS, **writers},
        lists=lists or {},
        made=made or {},
        encoders={one: _encoder(name, one) for one in ENCODERS[name]},
    )


ENCODERS = {
    "sd1": ("text_encoder",),
    "sd2": ("text_encoder",),
    "sdxl": ("text_encoder", "text_encoder_2"),
    "sdxl_refiner": ("text_encoder_2",),
}


def _encoder(name: str, component: str) -> Callable[[], nn.Module]:
    return lambda: models()[name, "diffusers"][component]


def _converted(given: Mapping[str, Tensor], config: UNetConfig) -> dict[str, Tensor]:
    checkpoint = {f"model.diffusion_model.{key}": value for key, value in given.items()}
    embed = None if config.label is None else "text_time"
    return dict(convert_ldm_unet_checkpoint(checkpoint, {"layers_per_block": 2, "addition_embed_type": embed}))


def _attention_processor(layer: str, param: str) -> str | None:
    above, _, leaf = layer.removesuffix(".0").rpartition(".")
    spelled = {"lora_down.weight": "down.weight", "lora_up.weight": "up.weight"}
    return f"{above}.processor.{leaf}_lora.{spelled[param]}" if param in spelled else None


def _before_peft(layer: str, param: str) -> str | None:
    spelled = {"lora_down.weight": "lora.down.weight", "lora_up.weight": "lora.up.weight"}
    return f"unet.{layer}.{spelled[param]}" if param in spelled else None


_WRITERS = {
    "kohya": Writer(
        "kohya",
        "kohya-ss/sd-scripts networks/lora.py, LoRANetwork.create_modules (SD 1 and 2, whose UNet has diffusers' names)"
        "; bghira/SimpleTuner simpletuner/helpers/training/lora_format.py, convert_diffusers_to_comfyui_sd_lora"
        "; ostris/ai-toolkit toolkit/lora_special.py, LoRASpecialNetwork (XL, too)",
        kohya(),
        "diffusers",
    ),
    "attention processors": Writer(
        "diffusers",
        "huggingface/diffusers up to 0.19, loaders.py, UNet2DConditionLoadersMixin.save_attn_procs; "
        "models/attention_processor.py, LoRAAttnProcessor; ControlGenAI/T-LoRA tlora/trainer_sdxl.py, save_model",
        _attention_processor,
        "diffusers",
        layers=_ATTENTION,
    ),
    "diffusers before PEFT": Writer(
        "diffusers",
        "huggingface/diffusers 0.20 to 0.22, models/lora.py, LoRACompatibleLinear, saved by save_lora_weights",
        _before_peft,
        "diffusers",
        layers=_TRANSFORMER,
    ),
    "diffusers": Writer(
        "peft",
        "huggingface/diffusers loaders/lora_pipeline.py, save_lora_weights; bghira/SimpleTuner saves through it",
        dotted("unet."),
        "diffusers",
    ),
    "PEFT, named": Writer(
        "peft",
        "huggingface/peft tuners/lora/layer.py, the state_dict of a PeftModel",
        dotted("base_model.model.", PEFT_NAMED),
        "diffusers",
    ),
    "lycoris": Writer(
        "kohya",
        "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LycorisNetwork.LORA_PREFIX",
        kohya("lycoris_"),
        "diffusers",
    ),
    "comfy": Writer(
        "diffusers",
        "Comfy-Org/ComfyUI comfy_extras/nodes_lora_extract.py, calc_lora_model",
        dotted("diffusion_model.", KOHYA_PARAMS),
    ),
    "OneTrainer, comfy": Writer(
        "peft",
        "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _save_comfy",
        dotted("diffusion_model.", PEFT_ALPHA),
    ),
    "OneTrainer, original": Writer(
        "peft",
        "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _save_original",
        dotted("", PEFT_ALPHA),
    ),
}

KOHYA_LDM = Writer(
    "kohya",
    "kohya-ss/sd-scripts networks/lora.py on library/sdxl_original_unet.py, which has ldm's names; "
    "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _convert_kohya",
    kohya(),
)


def omi(encoders: Mapping[str, str], architecture: str) -> dict[str, Writer]:
    """OMI: the UNet by ldm's names, text encoders by the models they are.

    Args:
        encoders: OMI's name -> diffusers' component.
        architecture: as OneTrainer's resources/sd_model_spec have it, for text encoders alone do not tell.
    """
    source = "Nerogar/OneTrainer up to de1437cb, modules/util/convert/lora/convert_sd_lora.py, convert_sdxl_lora.py"
    found = {"omi": Writer("diffusers", source, dotted("unet.", KOHYA_PARAMS))}
    for model, component in encoders.items():
        found[f"omi, {model}"] = Writer(
            "diffusers",
            source,
            nested(dotted(f"{model}.", KOHYA_PARAMS)),
            "diffusers",
            layers=CLIP_LAYERS,
            component=component,
            metadata={"modelspec.architecture": architecture},
        )
    return found


def kohya_oft(shapes: Callable[[], Mapping[str, tuple[int, ...]]], count: int, tells: bool = True) -> dict[str, Made]:
    """OFT of sd-scripts, which trains the linear layers of attentions in four blocks each.

    Args:
        shapes: parameters of the UNet as sd-scripts calls them.
        count: how many of its layers those are.
        tells: whether their names are those of one family alone, as OFT has only the widths of outputs.
    """

    def keys() -> Shapes:
        found: Shapes = {}
        for key, (out, *_) in shapes().items():
            if key.endswith(".weight") and any(part in key for part in _ATTENTION):
                name = f"oft_unet_{key.removesuffix('.weight').replace('.', '_')}"
                found |= {f"{name}.oft_blocks": (4, out // 4, out // 4), f"{name}.alpha": ()}
        return found

    source = "kohya-ss/sd-scripts networks/oft.py, OFTModule and UNET_TARGET_REPLACE_MODULE_ATTN_ONLY"
    return {"kohya oft": Made(source, keys, {"diag_oft": count}, List("kohya_oft", count, count, tells=tells))}


def cloneofsimo(name: str) -> Writer:
    """Layers by their number among the linear layers below modules of some classes, in the order torch lists them."""

    @lru_cache
    def numbers() -> dict[str, int]:
        found = [
            f"{above}.{inside}" if inside else above
            for above, module in diffusers_unet(name).named_modules()
            if type(module).__name__ in ("Attention", "GEGLU")
            for inside, layer in module.named_modules()
            if isinstance(layer, nn.Linear)
        ]
        return {layer: number for number, layer in enumerate(found)}

    def key(layer: str, param: str) -> str | None:
        spelled = {"lora_down.weight": "down", "lora_up.weight": "up"}
        return f"unet:{numbers()[layer]}:{spelled[param]}" if param in spelled else None

    return Writer(
        "cloneofsimo",
        "cloneofsimo/lora lora_diffusion/lora.py, save_safeloras_with_embeds and _find_modules_v2",
        key,
        "diffusers",
        layers=(*_ATTENTION, "ff.net.0.proj"),
        metadata={"unet": '["CrossAttention", "Attention", "GEGLU"]'},
    )
