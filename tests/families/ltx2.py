"""LTX-2, with what 2.3 added."""

from __future__ import annotations

from diffusers import LTX2VideoTransformer3DModel
from diffusers.loaders.single_file_utils import convert_ltx2_transformer_to_diffusers
from torch import Tensor, nn

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, on_meta
from .ltx import adaln, attention

VIDEO, AUDIO, TEXT = 4096, 2048, 3840


def build(full: bool) -> nn.Module:
    """Lightricks/LTX-2, transformer/config.json, with the modulation of 2.3."""
    return on_meta(
        LTX2VideoTransformer3DModel, num_layers=48 if full else 2, cross_attn_mod=True, audio_cross_attn_mod=True
    )


def native() -> Shapes:
    """Lightricks/LTX-2 packages/ltx-core/src/ltx_core/model/transformer/model.py, LTXModel."""
    found: Shapes = {}
    for prefix, width in (("", VIDEO), ("audio_", AUDIO)):
        found |= linear(width, 128, f"{prefix}patchify_proj") | linear(128, width, f"{prefix}proj_out")
        found |= linear(width, TEXT, f"{prefix}caption_projection.linear_1")
        found |= linear(width, width, f"{prefix}caption_projection.linear_2")
        found |= adaln(f"{prefix}adaln_single", width, 9) | adaln(f"{prefix}prompt_adaln_single", width, 2)
    found |= adaln("av_ca_video_scale_shift_adaln_single", VIDEO, 4)
    found |= adaln("av_ca_audio_scale_shift_adaln_single", AUDIO, 4)
    found |= adaln("av_ca_a2v_gate_adaln_single", VIDEO, 1) | adaln("av_ca_v2a_gate_adaln_single", AUDIO, 1)
    for i in range(2):
        found |= below(f"transformer_blocks.{i}", _block())
    return found


def _block() -> Shapes:
    found: Shapes = {}
    for prefix, width in (("", VIDEO), ("audio_", AUDIO)):
        found |= attention(f"{prefix}attn1", width, width, width) | attention(f"{prefix}attn2", width, width, width)
        found |= linear(4 * width, width, f"{prefix}ff.net.0.proj") | linear(width, 4 * width, f"{prefix}ff.net.2")
    found |= attention("audio_to_video_attn", VIDEO, VIDEO, AUDIO, AUDIO)
    found |= attention("video_to_audio_attn", AUDIO, AUDIO, VIDEO, AUDIO)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' converter, and what only that of LoRA knows of 2.3: loaders/lora_conversion_utils.py,
    `_convert_non_diffusers_ltx2_lora_to_diffusers`."""
    found = convert_ltx2_transformer_to_diffusers(checkpoint)
    return {key.replace("prompt_adaln_single", "prompt_adaln"): value for key, value in found.items()}


FAMILY = Family(
    name="ltx2",
    named=("ltx2", "ltx2.3", "ltxvideo2-dev/lora", "ltx-2"),
    alone=("transformer_blocks.0.audio_attn1.to_q:2048", "transformer_blocks.0.audio_to_video_attn.to_q:4096"),
    build=build,
    native=native,
    convert=convert,
    writers={
        "diffusion-pipe and ai-toolkit": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/base.py, ComfyPipeline.save_adapter; ostris/ai-toolkit"
            " extensions_built_in/diffusion_models/ltx2/ltx2.py, convert_lora_weights_before_save",
            dotted("diffusion_model."),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, LTX2LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
        ),
    },
)
