"""LTX-Video."""

from __future__ import annotations

from diffusers import LTXVideoTransformer3DModel
from diffusers.loaders.single_file_utils import convert_ltx_transformer_checkpoint_to_diffusers
from torch import nn

from ._encoders import t5
from ._trainers import extracted
from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, MLP = 2048, 8192


def build(full: bool) -> nn.Module:
    """Lightricks/LTX-Video, transformer/config.json."""
    return on_meta(LTXVideoTransformer3DModel, num_layers=28 if full else 2)


def native() -> Shapes:
    """Lightricks/LTX-Video ltx_video/models/transformers/transformer3d.py, Transformer3DModel."""
    found = linear(WIDTH, 128, "patchify_proj") | linear(128, WIDTH, "proj_out")
    found |= adaln("adaln_single", WIDTH, 6)
    found |= linear(WIDTH, 4096, "caption_projection.linear_1") | linear(WIDTH, WIDTH, "caption_projection.linear_2")
    for i in range(2):
        block = linear(MLP, WIDTH, "ff.net.0.proj") | linear(WIDTH, MLP, "ff.net.2")
        for name in ("attn1", "attn2"):
            block |= attention(name, WIDTH, WIDTH, WIDTH)
        found |= below(f"transformer_blocks.{i}", block)
    return found


def adaln(name: str, width: int, parts: int) -> Shapes:
    """AdaLayerNormSingle."""
    return {
        **linear(width, 256, f"{name}.emb.timestep_embedder.linear_1"),
        **linear(width, width, f"{name}.emb.timestep_embedder.linear_2"),
        **linear(parts * width, width, f"{name}.linear"),
    }


def attention(name: str, width: int, inside: int, context: int, inner: int = 0) -> Shapes:
    """Attention, `inner` wide if that is not `width`."""
    inner = inner or width
    return {
        **linear(inner, inside, f"{name}.to_q"),
        **linear(inner, context, f"{name}.to_k", f"{name}.to_v"),
        **linear(width, inner, f"{name}.to_out.0"),
        **norm(inner, f"{name}.q_norm", f"{name}.k_norm"),
    }


FAMILY = Family(
    name="ltx",
    named=("ltxv", "ltx-video", "ltxvideo-0.9.5/lora", "ltxv-2b-0.9.8"),
    alone=("transformer_blocks.0.attn2.to_k:2048", "transformer_blocks.0.attn2.to_k:4096"),
    build=build,
    native=native,
    convert=convert_ltx_transformer_checkpoint_to_diffusers,
    encoders={"text_encoder": t5},
    writers={
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/ltx_video.py, save_adapter",
            dotted("diffusion_model."),
            layers=("transformer_blocks",),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, LTXVideoLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn1.", ".attn2.", ".ff."),
        ),
        **extracted("t5xxl.transformer", "block.0.", "block.23."),
    },
)
