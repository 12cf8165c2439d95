"""Stable Diffusion 3 and 3.5 in their sizes."""

from __future__ import annotations

from collections.abc import Iterable

from diffusers import SD3Transformer2DModel
from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
from torch import nn

from ._encoders import CLIP_LAYERS, clip_g, clip_l_projected, encoder_writers, nested, t5
from ._trainers import simpletuner_comfy
from .base import KOHYA_PARAMS, PEFT_ALPHA, Family, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

BLOCKS = 3  # of the model in the tests: two whole ones, and the last, which gives no context
GRID = 4  # of the table of positions there


def family(
    name: str,
    width: int,
    depth: int,
    dual: Iterable[int],
    qk_norm: bool,
    version: str,
    named: tuple[str, ...],
    encoders: bool = False,
) -> Family:
    """One size of the model.

    Args:
        name: for the test.
        width: of the hidden states.
        depth: number of blocks of the real model.
        dual: which of its blocks have a second attention.
        qk_norm: whether queries and keys are normed.
        version: that sd-scripts calls it.
        named: as in `Family`, beside the version.
        encoders: whether its text encoders are tested, which are those of all sizes.
    """

    def build(full: bool) -> nn.Module:
        count = depth if full else BLOCKS
        return on_meta(
            SD3Transformer2DModel,
            num_layers=count,
            num_attention_heads=width // 64,
            caption_projection_dim=width,
            pos_embed_max_size=GRID,
            sample_size=GRID,
            dual_attention_layers=tuple(i for i in dual if i < count - 1),
            qk_norm="rms_norm" if qk_norm else None,
        )

    found = writers(version)
    if not encoders:
        found = {one: writer for one, writer in found.items() if not writer.component}
    few = {i for i in dual if i < BLOCKS - 1}
    return Family(
        name=name,
        named=(version, *named),
        both_trees=True,
        build=build,
        native=lambda: native(width, few, qk_norm),
        convert=convert_sd3_transformer_checkpoint_to_diffusers,
        writers=found,
        encoders={"text_encoder": clip_l_projected, "text_encoder_2": clip_g, "text_encoder_3": t5} if encoders else {},
        architecture="sd3",
    )


def native(width: int, dual: Iterable[int], qk_norm: bool) -> Shapes:
    """Stability-AI/sd3.5 mmditx.py, MMDiTX."""
    found: Shapes = {"pos_embed": (1, GRID * GRID, width)}
    found |= {"x_embedder.proj.weight": (width, 16, 2, 2), "x_embedder.proj.bias": (width,)}
    for name, inside in (("t_embedder", 256), ("y_embedder", 2048)):
        found |= linear(width, inside, f"{name}.mlp.0") | linear(width, width, f"{name}.mlp.2")
    found |= linear(width, 4096, "context_embedder") | linear(64, width, "final_layer.linear")
    found |= linear(2 * width, width, "final_layer.adaLN_modulation.1")
    for i in range(BLOCKS):
        block, last = f"joint_blocks.{i}", i == BLOCKS - 1
        found |= below(f"{block}.context_block", _half(width, 2 if last else 6, qk_norm, whole=not last))
        found |= below(f"{block}.x_block", _half(width, 9 if i in dual else 6, qk_norm, whole=True))
        if i in dual:
            found |= below(f"{block}.x_block.attn2", _attention(width, qk_norm, whole=True))
    return found


def _half(width: int, chunks: int, qk_norm: bool, *, whole: bool) -> Shapes:
    found = below("attn", _attention(width, qk_norm, whole=whole))
    found |= linear(chunks * width, width, "adaLN_modulation.1")
    if whole:
        found |= linear(4 * width, width, "mlp.fc1") | linear(width, 4 * width, "mlp.fc2")
    return found


def _attention(width: int, qk_norm: bool, *, whole: bool) -> Shapes:
    found = linear(3 * width, width, "qkv")
    if whole:
        found |= linear(width, width, "proj")
    if qk_norm:
        found |= norm(64, "ln_q", "ln_k")
    return found


def writers(version: str) -> dict[str, Writer]:
    """Return the formats of the transformer and of the three text encoders."""
    onetrainer = "Nerogar/OneTrainer modules/util/convert_lora_util.py"
    # OMI: parts of fused layers by number, the rest by their own names
    omi = {}
    for i in range(BLOCKS):
        own, theirs = f"joint_blocks.{i}", f"transformer_blocks.{i}"
        omi |= {f"{own}.x_block.attn.qkv.{n}": (f"{theirs}.attn.to_{part}",) for n, part in enumerate("qkv")}
        omi |= {
            f"{own}.context_block.attn.qkv.{n}": (f"{theirs}.attn.add_{part}_proj",) for n, part in enumerate("qkv")
        }
        omi[f"{own}.x_block.mlp.fc1"] = (f"{theirs}.ff.net.0.proj",)
    return {
        "kohya": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_sd3.py, LoRANetwork.LORA_PREFIX_SD3",
            kohya(),
            layers=("joint_blocks",),
            metadata={"ss_base_model_version": version},
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, SD3LoraLoaderMixin; SimpleTuner, ai-toolkit",
            dotted("transformer."),
            "diffusers",
        ),
        "flash-sd3": Writer(
            "peft",
            "Comfy-Org/ComfyUI comfy/lora.py, `base_model.model.` of SD3",
            dotted("base_model.model."),
            "diffusers",
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
        ),
        "onetrainer-mixture": Writer(
            "kohya", f"{onetrainer}, convert_to_mixture", kohya("lora_transformer_"), "diffusers"
        ),
        "onetrainer-kohya": Writer("kohya", f"{onetrainer}, lora_kohya_conversion", kohya()),
        "onetrainer-original": Writer("peft", f"{onetrainer}, lora_original_conversion", dotted("", PEFT_ALPHA)),
        "onetrainer-comfy": Writer(
            "peft", f"{onetrainer}, lora_original_conversion", dotted("diffusion_model.", PEFT_ALPHA)
        ),
        **simpletuner_comfy("transformer."),
        **{  # beside the transformer, which tells the family; here the metadata does
            f"ai-toolkit, {prefix}": Writer(
                "peft",
                "ostris/ai-toolkit toolkit/lora_special.py, LoRASpecialNetwork with is_v3 and peft_format",
                nested(dotted(f"{prefix}.")),
                "diffusers",
                layers=CLIP_LAYERS,
                component=component,
                metadata={"ss_base_model_version": version},
            )
            for prefix, component in (("lora_te1", "text_encoder"), ("lora_te2", "text_encoder_2"))
        },
        "omi": Writer(
            "diffusers",
            "OMI, convert/lora/convert_sd3_lora.py",
            dotted("transformer.", KOHYA_PARAMS),
            fuse=omi,
            metadata={"modelspec.architecture": "stable-diffusion-v3-medium/lora"},
        ),
        **encoder_writers(
            {"clip_l": "text_encoder", "clip_g": "text_encoder_2", "t5": "text_encoder_3"},
            {"lora_te1": "clip_l", "lora_te2": "clip_g", "lora_te3": "t5"},
            {"modelspec.architecture": "stable-diffusion-v3-medium/lora"},
            omi=True,
        ),
    }
