"""HunyuanVideo."""

from __future__ import annotations

from diffusers import HunyuanVideoTransformer3DModel
from diffusers.loaders.single_file_utils import convert_hunyuan_video_transformer_to_diffusers
from torch import nn

from ._encoders import LLM_LAYERS, clip_l, encoder_writers, llama
from ._trainers import onetrainer
from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, MLP = 3072, 12288
BLOCKS = ("double_blocks", "single_blocks")


def build(full: bool) -> nn.Module:
    """hunyuanvideo-community/HunyuanVideo, transformer/config.json."""
    return on_meta(
        HunyuanVideoTransformer3DModel,
        num_layers=20 if full else 2,
        num_single_layers=40 if full else 2,
        num_refiner_layers=2,
        guidance_embeds=True,
    )


def native() -> Shapes:
    """Tencent/HunyuanVideo hyvideo/modules/models.py, HYVideoDiffusionTransformer."""
    found: Shapes = {"img_in.proj.weight": (WIDTH, 16, 1, 2, 2)}
    found |= linear(WIDTH, 4096, "txt_in.input_embedder", "txt_in.c_embedder.linear_1")
    found |= linear(WIDTH, 256, "txt_in.t_embedder.mlp.0", "time_in.mlp.0", "guidance_in.mlp.0")
    found |= linear(WIDTH, WIDTH, "txt_in.t_embedder.mlp.2", "time_in.mlp.2", "guidance_in.mlp.2")
    found |= linear(WIDTH, WIDTH, "txt_in.c_embedder.linear_2", "vector_in.out_layer")
    found |= linear(WIDTH, 768, "vector_in.in_layer")
    found |= linear(64, WIDTH, "final_layer.linear") | linear(2 * WIDTH, WIDTH, "final_layer.adaLN_modulation.1")
    for i in range(2):
        found |= below(f"txt_in.individual_token_refiner.blocks.{i}", _refiner())
        for side in ("img", "txt"):
            found |= below(f"double_blocks.{i}", _side(side))
        found |= below(f"single_blocks.{i}", _single())
    return found


def _refiner() -> Shapes:
    return {
        **norm(WIDTH, "norm1", "norm2"),
        **linear(3 * WIDTH, WIDTH, "self_attn_qkv"),
        **linear(WIDTH, WIDTH, "self_attn_proj"),
        **linear(MLP, WIDTH, "mlp.fc1"),
        **linear(WIDTH, MLP, "mlp.fc2"),
        **linear(2 * WIDTH, WIDTH, "adaLN_modulation.1"),
    }


def _side(side: str) -> Shapes:
    return {
        **linear(6 * WIDTH, WIDTH, f"{side}_mod.linear"),
        **linear(3 * WIDTH, WIDTH, f"{side}_attn_qkv"),
        **norm(128, f"{side}_attn_q_norm", f"{side}_attn_k_norm"),
        **linear(WIDTH, WIDTH, f"{side}_attn_proj"),
        **linear(MLP, WIDTH, f"{side}_mlp.fc1"),
        **linear(WIDTH, MLP, f"{side}_mlp.fc2"),
    }


def _single() -> Shapes:
    return {
        **linear(3 * WIDTH, WIDTH, "modulation.linear"),
        **linear(3 * WIDTH + MLP, WIDTH, "linear1"),
        **linear(WIDTH, WIDTH + MLP, "linear2"),
        **norm(128, "q_norm", "k_norm"),
    }


COMFY = {  # what HunyuanVideo.process_unet_state_dict replaces in a name
    "txt_in.t_embedder.mlp.0": "txt_in.t_embedder.in_layer",
    "txt_in.t_embedder.mlp.2": "txt_in.t_embedder.out_layer",
    "txt_in.c_embedder.linear_1": "txt_in.c_embedder.in_layer",
    "txt_in.c_embedder.linear_2": "txt_in.c_embedder.out_layer",
    "_mod.linear": "_mod.lin",
    "_attn_qkv": "_attn.qkv",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "_attn_proj": "_attn.proj",
    ".modulation.linear": ".modulation.lin",
    "_in.mlp.2": "_in.out_layer",
    "_in.mlp.0": "_in.in_layer",
}


def comfy(layer: str, param: str) -> str | None:
    """Keys with the names of ComfyUI's tree."""
    for theirs, own in COMFY.items():
        layer = layer.replace(theirs, own)
    return dotted("diffusion_model.", KOHYA_PARAMS)(layer, param)


def text_model() -> nn.Module:
    """hunyuanvideo-community/HunyuanVideo, text_encoder/config.json."""
    return llama(128320, head=False)


def omi() -> dict[str, tuple[str, ...]]:
    """Blocks by OMI's names: the parts of fused layers by number, and the first layer of a feed-forward as `fc0`."""
    found = {}
    for i in range(2):
        own, theirs = f"double_blocks.{i}", f"transformer_blocks.{i}"
        sides = {"img": ("to_{}", "to_out.0", "ff"), "txt": ("add_{}_proj", "to_add_out", "ff_context")}
        for side, (part, out, mlp) in sides.items():
            found |= {
                f"{own}.{side}_attn_qkv.{n}": (f"{theirs}.attn.{part.format(one)}",) for n, one in enumerate("qkv")
            }
            found[f"{own}.{side}_attn_proj"] = (f"{theirs}.attn.{out}",)
            found[f"{own}.{side}_mlp.fc0"] = (f"{theirs}.{mlp}.net.0.proj",)
            found[f"{own}.{side}_mlp.fc2"] = (f"{theirs}.{mlp}.net.2",)
        own, theirs = f"single_blocks.{i}", f"single_transformer_blocks.{i}"
        parts = (*(f"attn.to_{one}" for one in "qkv"), "proj_mlp")
        found |= {f"{own}.linear1.{n}": (f"{theirs}.{part}",) for n, part in enumerate(parts)}
        found[f"{own}.linear2"] = (f"{theirs}.proj_out",)
        own, theirs = (
            f"txt_in.individual_token_refiner.blocks.{i}",
            f"context_embedder.token_refiner.refiner_blocks.{i}",
        )
        found |= {f"{own}.self_attn_qkv.{n}": (f"{theirs}.attn.to_{one}",) for n, one in enumerate("qkv")}
        found[f"{own}.mlp.fc0"] = (f"{theirs}.ff.net.0.proj",)
        found[f"{own}.mlp.fc2"] = (f"{theirs}.ff.net.2",)
    return found


METADATA = {"ss_base_model_version": "hunyuan_video"}


FAMILY = Family(
    name="hunyuan_video",
    named=("hunyuan_video", "hunyuan-video/lora", "framepack", "framepack/lora"),
    alone=(
        "single_blocks.39.linear1:3072",
        "single_transformer_blocks.38.attn.to_q:3072",
        "double_blocks.19.img_attn.qkv:3072",
        "transformer_blocks.19.ff_context.net.0.proj:3072",
        "txt_in.individual_token_refiner.blocks.0.self_attn_qkv:3072",
    ),
    build=build,
    native=native,
    convert=convert_hunyuan_video_transformer_to_diffusers,
    encoders={"text_encoder": text_model, "text_encoder_2": clip_l},
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora.py, HUNYUAN_TARGET_REPLACE_MODULES",
            kohya(),
            layers=BLOCKS,
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/hunyuan_video.py, save_adapter",
            dotted("transformer."),
            layers=BLOCKS,
        ),
        "comfy": Writer("diffusers", "Comfy-Org/ComfyUI comfy/supported_models.py, HunyuanVideo; comfy/lora.py", comfy),
        "comfy of the native names": Writer(
            "peft",
            "kohya-ss/musubi-tuner convert_lora.py, convert_to_diffusers",
            dotted("diffusion_model."),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, HunyuanVideoLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "onetrainer": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/modelSaver/hunyuanVideo/HunyuanVideoLoRASaver.py, convert_to_mixture",
            kohya("lora_transformer_"),
            "diffusers",
        ),
        "onetrainer llama": Writer(
            "kohya",
            "Nerogar/OneTrainer modules/model/HunyuanVideoModel.py, lora_text_encoders",
            kohya("lora_te1_"),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder",
            metadata=METADATA,
        ),
        "comfy llama": Writer(
            "peft",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_clip; comfy/text_encoders/llama.py",
            dotted("text_encoders.llama.transformer.model."),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder",
            metadata=METADATA,
        ),
        **encoder_writers({"clip_l": "text_encoder_2"}, {"lora_te2": "clip_l"}, METADATA, omi=True),
        "framepack": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_framepack.py, FRAMEPACK_TARGET_REPLACE_MODULES",
            kohya(),
            "diffusers",
            layers=("transformer_blocks",),
            metadata={"ss_base_model_version": "framepack"},
        ),
        **onetrainer(),
        "onetrainer comfy llama": Writer(
            "peft",
            "Nerogar/OneTrainer modules/model/HunyuanVideoModel.py, lora_text_encoders",
            dotted("text_encoders.llama.transformer."),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder",
            metadata=METADATA,
        ),
        "omi": Writer(
            "diffusers",
            "Nerogar/OneTrainer up to de1437cb, modules/util/convert/lora/convert_hunyuan_video_lora.py",
            dotted("transformer.", KOHYA_PARAMS),
            fuse=omi(),
        ),
        "omi llama": Writer(
            "diffusers",
            "Nerogar/OneTrainer up to de1437cb, modules/util/convert/lora/convert_llama.py, map_llama",
            dotted("llama.language_model.model.", KOHYA_PARAMS),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder",
            metadata=METADATA,
        ),
        "lycoris": Writer(
            "kohya",
            "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn.", ".ff"),
        ),
    },
)
