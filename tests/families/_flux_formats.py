"""What FLUX.1 and Chroma have in common: blocks of the same shapes, and formats of their files."""

from __future__ import annotations

import re

from .base import KOHYA_PARAMS, PEFT_ALPHA, Shapes, Writer, below, dotted, kohya, linear, norm

WIDTH, MLP = 3072, 12288
BLOCKS = 2  # of each kind, in the models of the tests


def side(name: str) -> Shapes:
    """Return the image's or the text's half of a double block."""
    return {
        **linear(3 * WIDTH, WIDTH, f"{name}_attn.qkv"),
        **norm(128, f"{name}_attn.norm.query_norm", f"{name}_attn.norm.key_norm", param="scale"),
        **linear(WIDTH, WIDTH, f"{name}_attn.proj"),
        **linear(MLP, WIDTH, f"{name}_mlp.0"),
        **linear(WIDTH, MLP, f"{name}_mlp.2"),
    }


def single() -> Shapes:
    """Return a single block."""
    return {
        **linear(3 * WIDTH + MLP, WIDTH, "linear1"),
        **linear(WIDTH, WIDTH + MLP, "linear2"),
        **norm(128, "norm.query_norm", "norm.key_norm", param="scale"),
    }


def blocks() -> Shapes:
    """All of them."""
    found: Shapes = {}
    for i in range(BLOCKS):
        for name in ("img", "txt"):
            found |= below(f"double_blocks.{i}", side(name))
        found |= below(f"single_blocks.{i}", single())
    return found


def _parts(i: int) -> dict[str, tuple[str, ...]]:
    double, one = f"transformer_blocks.{i}.attn", f"single_transformer_blocks.{i}"
    return {
        f"double_blocks.{i}.img_attn.qkv": tuple(f"{double}.to_{part}" for part in "qkv"),
        f"double_blocks.{i}.txt_attn.qkv": tuple(f"{double}.add_{part}_proj" for part in "qkv"),
        f"single_blocks.{i}.linear1": (*(f"{one}.attn.to_{part}" for part in "qkv"), f"{one}.proj_mlp"),
    }


def numbered() -> dict[str, tuple[str, ...]]:
    """OMI: the parts of fused layers, by number."""
    return {
        f"{fused}.{n}": (part,)
        for i in range(BLOCKS)
        for fused, parts in _parts(i).items()
        for n, part in enumerate(parts)
    }


def omi() -> dict[str, tuple[str, ...]]:
    """OMI: layers by their own code's names -> diffusers'."""
    found = numbered() | {
        "txt_in": ("context_embedder",),
        "img_in.proj": ("x_embedder",),
        "final_layer.linear": ("proj_out",),
    }
    for i in range(BLOCKS):
        double = f"transformer_blocks.{i}"
        names = {"img": ("attn.to_out.0", "ff"), "txt": ("attn.to_add_out", "ff_context")}
        for name, (out, mlp) in names.items():
            found[f"double_blocks.{i}.{name}_attn.proj"] = (f"{double}.{out}",)
            found[f"double_blocks.{i}.{name}_mlp.0"] = (f"{double}.{mlp}.net.0.proj",)
            found[f"double_blocks.{i}.{name}_mlp.2"] = (f"{double}.{mlp}.net.2",)
        found[f"single_blocks.{i}.linear2"] = (f"single_transformer_blocks.{i}.proj_out",)
    return found


def processors(*, singles: bool) -> dict[str, tuple[str, ...]]:
    """XLabs' and USO's layers: `qkv_lora1` and the like, below a block."""
    found = {}
    for i in range(BLOCKS):
        parts, double, one = _parts(i), f"transformer_blocks.{i}.attn", f"single_blocks.{i}"
        found[f"double_blocks.{i}.qkv_lora1"] = parts[f"double_blocks.{i}.img_attn.qkv"]
        found[f"double_blocks.{i}.qkv_lora2"] = parts[f"double_blocks.{i}.txt_attn.qkv"]
        found[f"double_blocks.{i}.proj_lora1"] = (f"{double}.to_out.0",)
        found[f"double_blocks.{i}.proj_lora2"] = (f"{double}.to_add_out",)
        if singles:
            found[f"{one}.qkv_lora"] = parts[f"{one}.linear1"][:3]
            found[f"{one}.proj_lora"] = (f"single_transformer_blocks.{i}.proj_out",)
    return found


def xlabs(layer: str, param: str) -> str | None:
    """`double_blocks.0.processor.qkv_lora1.down.weight`."""
    block, _, name = layer.rpartition(".")
    return None if param == "alpha" else f"{block}.processor.{name}.{param.removeprefix('lora_')}"


def tlora(layer: str, param: str) -> str | None:
    """`transformer_blocks.0.attn.processor.to_q_proj_lora.down.weight`, which is add_q_proj's."""
    attention, name = re.fullmatch(r"(.*attn)\.(.+)", layer).groups()  # type: ignore[union-attr]
    name = re.sub(r"^add_(.)_proj$", r"to_\1_proj", name).removesuffix(".0")
    return None if param == "alpha" else f"{attention}.processor.{name}_lora.{param.removeprefix('lora_')}"


def writers() -> dict[str, Writer]:
    """Return the formats of both families' denoisers, without metadata."""
    onetrainer = "Nerogar/OneTrainer modules/util/convert_lora_util.py"
    return {
        "kohya": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_flux.py, LoRANetwork.LORA_PREFIX_FLUX",
            kohya(),
            layers=("blocks",),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, save_lora_weights; SimpleTuner and diffusion-pipe call it",
            dotted("transformer."),
            "diffusers",
        ),
        "native-peft": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/chroma.py, save_adapter; ostris/ai-toolkit chroma_model.py,"
            " convert_lora_weights_before_save; ComfyUI's own name for every layer",
            dotted("diffusion_model."),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "lycoris": Writer(
            "kohya",
            "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX; SimpleTuner save_hooks.py, _save_lycoris",
            kohya("lycoris_"),
            "diffusers",
            layers=("blocks",),
        ),
        "onetrainer-mixture": Writer(
            "kohya", f"{onetrainer}, convert_to_mixture", kohya("lora_transformer_"), "diffusers"
        ),
        "onetrainer-kohya": Writer("kohya", f"{onetrainer}, lora_kohya_conversion", kohya()),
        # PEFT's names beside an alpha, which is the first key of a layer and so gives it its format
        "onetrainer-original": Writer("peft", f"{onetrainer}, lora_original_conversion", dotted("", PEFT_ALPHA)),
        "onetrainer-comfy": Writer(
            "peft", f"{onetrainer}, lora_original_conversion", dotted("diffusion_model.", PEFT_ALPHA)
        ),
        "onetrainer-internal": Writer(
            "diffusers",
            "Nerogar/OneTrainer modules/modelSaver/mixin/LoRASaverMixin.py, _save_internal",
            dotted("transformer.", KOHYA_PARAMS),
            "diffusers",
        ),
    }
