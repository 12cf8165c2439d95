"""Files that one program writes alike for many families."""

from __future__ import annotations

from .base import PEFT_ALPHA, Writer, dotted, kohya


def onetrainer(names: str = "native") -> dict[str, Writer]:
    """OneTrainer's formats that have the denoiser under the names of its own code, or of diffusers if it has no other.

    Layers that are one there are trained as one; see `fusion_groups` of each of its models.
    """
    return {
        "onetrainer kohya": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _convert_kohya",
            kohya(),
            names,
        ),
        "onetrainer original": Writer(
            "peft",
            "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _save_original",
            dotted("", PEFT_ALPHA),
            names,
        ),
        "onetrainer comfy": Writer(
            "peft",
            "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _save_comfy",
            dotted("diffusion_model.", PEFT_ALPHA),
            names,
        ),
    }


def simpletuner_comfy(prefix: str) -> dict[str, Writer]:
    """SimpleTuner's option for ComfyUI: an alpha beside diffusers' names, and its prefix but for some families.

    Args:
        prefix: `transformer.` where the family's model.py has that in `COMFYUI_LORA_PRESERVE_COMPONENT_PREFIXES`.
    """
    return {
        "simpletuner, lora_format=comfyui": Writer(
            "peft",
            "bghira/SimpleTuner simpletuner/helpers/training/lora_format.py, convert_diffusers_to_comfyui",
            dotted(prefix, PEFT_ALPHA),
            "diffusers",
        ),
    }


def extracted(model: str, *layers: str, component: str = "text_encoder") -> dict[str, Writer]:
    """Return a text encoder's layers as ComfyUI saves the difference of two.

    Args:
        model: ComfyUI's name of it, with what stands before transformers' names.
        layers: that are enough of all of them.
        component: diffusers' name of it.
    """
    params = {param: param for param in ("lora_up.weight", "lora_down.weight")}
    return {
        f"comfy extract of {model}": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy_extras/nodes_lora_extract.py, LoraSave; comfy/text_encoders",
            dotted(f"text_encoders.{model}.", params),
            "diffusers",
            layers=layers,
            component=component,
            tells=False,  # it has no metadata
        ),
    }
