"""Wan 2.1 and 2.2: the model that has every layer, which is Wan 2.1's from image and text to video."""

from __future__ import annotations

from diffusers import WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from ._kinds import lokr, weights
from ._trainers import extracted
from .base import KOHYA_PARAMS, Family, List, Made, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, MLP = 5120, 13824
BLOCKS = ("blocks",)


def build(full: bool) -> nn.Module:
    """Wan-AI/Wan2.1-I2V-14B-480P-Diffusers, transformer/config.json."""
    return on_meta(
        WanTransformer3DModel,
        num_layers=40 if full else 2,
        in_channels=36,
        image_dim=1280,
        added_kv_proj_dim=WIDTH,
    )


def native() -> Shapes:
    """Wan-Video/Wan2.1 wan/modules/model.py, WanModel."""
    found: Shapes = {"patch_embedding.weight": (WIDTH, 36, 1, 2, 2)}
    found |= linear(WIDTH, 4096, "text_embedding.0") | linear(WIDTH, WIDTH, "text_embedding.2")
    found |= linear(WIDTH, 256, "time_embedding.0") | linear(WIDTH, WIDTH, "time_embedding.2")
    found |= linear(6 * WIDTH, WIDTH, "time_projection.1") | linear(64, WIDTH, "head.head")
    found |= norm(1280, "img_emb.proj.0") | norm(WIDTH, "img_emb.proj.4")
    found |= linear(1280, 1280, "img_emb.proj.1") | linear(WIDTH, 1280, "img_emb.proj.3")
    for i in range(2):
        found |= below(f"blocks.{i}", block())
    return found


def block() -> Shapes:
    """WanAttentionBlock."""
    found = linear(MLP, WIDTH, "ffn.0") | linear(WIDTH, MLP, "ffn.2") | norm(WIDTH, "norm3")
    for attention, more in (("self_attn", ""), ("cross_attn", "_img")):
        found |= linear(WIDTH, WIDTH, *(f"{attention}.{part}" for part in "qkvo"))
        found |= norm(WIDTH, f"{attention}.norm_q", f"{attention}.norm_k")
        if more:
            found |= linear(WIDTH, WIDTH, f"{attention}.k{more}", f"{attention}.v{more}")
            found |= norm(WIDTH, f"{attention}.norm_k{more}")
    return found


def umt5() -> nn.Module:
    """google/umt5-xxl, its encoder."""
    config = UMT5Config(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, vocab_size=256384)
    return on_meta(UMT5EncoderModel, config=config)


FAMILY = Family(
    name="wan",
    named=("wan", "wan_2.1", "wan_2.2_14b", "wan2.1/lora", "wan-t2v-480p-1.3b-2.1/lora", "skyreels"),
    alone=("blocks.7.self_attn.q:5120", "blocks.7.attn2.to_out.0:1536", "vace_blocks.0.ffn.0:3072"),
    build=build,
    native=native,
    convert=convert_wan_transformer_to_diffusers,
    encoders={"text_encoder": umt5},
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_wan.py, WAN_TARGET_REPLACE_MODULES",
            kohya(),
            layers=("_attn.", ".ffn."),
        ),
        "videox-fun": Writer(
            "kohya",
            "aigc-apps/VideoX-Fun videox_fun/utils/lora_utils.py, LoRANetwork.create_modules",
            kohya("lora_unet__"),
            layers=("_attn.", ".ffn.", "embedding.", "head."),
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/wan/wan.py, save_adapter",
            dotted("diffusion_model."),
            layers=BLOCKS,
        ),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit toolkit/models/wan21/wan21.py, convert_lora_weights_before_save",
            dotted("diffusion_model."),
            layers=BLOCKS,
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet; comfy_extras/nodes_lora_extract.py",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, WanLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/lycoris.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn1.", ".attn2.", ".ffn."),
        ),
        "lycoris of the native model": Writer(
            "kohya", "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX", kohya("lycoris_"), layers=BLOCKS
        ),
        # no trainer at hand has Wan's text encoder; who extracts its difference has this
        **extracted("umt5xxl.transformer", "block.0.", "block.23."),
    },
    made={
        "musubi lokr": Made(
            "kohya-ss/musubi-tuner networks/lokr.py, LoKrModule",
            lambda: lokr(kohya(), weights(native(), "_attn.", ".ffn.")),
            {"lokr": 24},
            List("kohya", 24, 24),
        ),
    },
)
