"""HunyuanVideo 1.5."""

from __future__ import annotations

from diffusers import HunyuanVideo15Transformer3DModel
from torch import Tensor, nn

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, converter, dotted, kohya, linear, norm, on_meta
from .hunyuan_video import COMFY

WIDTH, MLP = 2048, 8192
BLOCKS = ("double_blocks",)
SIDES = {  # what diffusers calls q, k and v of each side, their norms, what follows, the feed-forward, the modulation
    "img": ("to_{}", "norm_{}", "to_out.0", "", "norm1"),
    "txt": ("add_{}_proj", "norm_added_{}", "to_add_out", "_context", "norm1_context"),
}


def build(full: bool) -> nn.Module:
    """hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v, transformer/config.json."""
    return on_meta(HunyuanVideo15Transformer3DModel, num_layers=54 if full else 2)


def native() -> Shapes:
    """Tencent-Hunyuan/HunyuanVideo-1.5 hyvideo/models/transformers/hunyuanvideo_1_5_transformer.py."""
    found: Shapes = {"img_in.proj.weight": (WIDTH, 65, 1, 1, 1)}
    found |= linear(WIDTH, 3584, "txt_in.input_embedder", "txt_in.c_embedder.linear_1")
    found |= linear(WIDTH, 256, "txt_in.t_embedder.mlp.0", "time_in.mlp.0")
    found |= linear(WIDTH, WIDTH, "txt_in.t_embedder.mlp.2", "time_in.mlp.2", "txt_in.c_embedder.linear_2")
    found |= norm(1472, "byt5_in.layernorm") | linear(WIDTH, 1472, "byt5_in.fc1")
    found |= linear(WIDTH, WIDTH, "byt5_in.fc2", "byt5_in.fc3")
    found |= norm(1152, "vision_in.proj.0") | norm(WIDTH, "vision_in.proj.4")
    found |= linear(1152, 1152, "vision_in.proj.1") | linear(WIDTH, 1152, "vision_in.proj.3")
    found |= linear(32, WIDTH, "final_layer.linear") | linear(2 * WIDTH, WIDTH, "final_layer.adaLN_modulation.1")
    for i in range(2):
        found |= below(f"txt_in.individual_token_refiner.blocks.{i}", _refiner())
        for side in ("img", "txt"):
            found |= below(f"double_blocks.{i}", _side(side))
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
        **linear(WIDTH, WIDTH, *(f"{side}_attn_{part}" for part in ("q", "k", "v", "proj"))),
        **norm(128, f"{side}_attn_q_norm", f"{side}_attn_k_norm"),
        **linear(MLP, WIDTH, f"{side}_mlp.fc1"),
        **linear(WIDTH, MLP, f"{side}_mlp.fc2"),
    }


def _converted() -> dict[str, list[str]]:
    """Of huggingface/diffusers scripts/convert_hunyuan_video1_5_to_diffusers.py, which is not in the package."""
    names = {
        "time_in.mlp.0": ["time_embed.timestep_embedder.linear_1"],
        "time_in.mlp.2": ["time_embed.timestep_embedder.linear_2"],
        "txt_in.t_embedder.mlp.0": ["context_embedder.time_text_embed.timestep_embedder.linear_1"],
        "txt_in.t_embedder.mlp.2": ["context_embedder.time_text_embed.timestep_embedder.linear_2"],
        "txt_in.c_embedder.linear_1": ["context_embedder.time_text_embed.text_embedder.linear_1"],
        "txt_in.c_embedder.linear_2": ["context_embedder.time_text_embed.text_embedder.linear_2"],
        "txt_in.input_embedder": ["context_embedder.proj_in"],
        "byt5_in.layernorm": ["context_embedder_2.norm"],
        "byt5_in.fc1": ["context_embedder_2.linear_1"],
        "byt5_in.fc2": ["context_embedder_2.linear_2"],
        "byt5_in.fc3": ["context_embedder_2.linear_3"],
        "vision_in.proj.0": ["image_embedder.norm_in"],
        "vision_in.proj.1": ["image_embedder.linear_1"],
        "vision_in.proj.3": ["image_embedder.linear_2"],
        "vision_in.proj.4": ["image_embedder.norm_out"],
        "img_in.proj": ["x_embedder.proj"],
        "final_layer.linear": ["proj_out"],
    }
    refiner = "context_embedder.token_refiner.refiner_blocks.N"
    for native, parts in {
        "norm1": ["norm1"],
        "norm2": ["norm2"],
        "self_attn_qkv": ["attn.to_q", "attn.to_k", "attn.to_v"],
        "self_attn_proj": ["attn.to_out.0"],
        "mlp.fc1": ["ff.net.0.proj"],
        "mlp.fc2": ["ff.net.2"],
        "adaLN_modulation.1": ["norm_out.linear"],
    }.items():
        names[f"txt_in.individual_token_refiner.blocks.N.{native}"] = [f"{refiner}.{part}" for part in parts]
    for side, (proj, qk_norm, out, context, modulation) in SIDES.items():
        block, own = f"double_blocks.N.{side}", "transformer_blocks.N"
        names |= {f"{block}_attn_{part}": [f"{own}.attn.{proj.format(part)}"] for part in "qkv"}
        names |= {f"{block}_attn_{part}_norm": [f"{own}.attn.{qk_norm.format(part)}"] for part in "qk"}
        names |= {f"{block}_attn_proj": [f"{own}.attn.{out}"], f"{block}_mod.linear": [f"{own}.{modulation}.linear"]}
        names |= {
            f"{block}_mlp.fc1": [f"{own}.ff{context}.net.0.proj"],
            f"{block}_mlp.fc2": [f"{own}.ff{context}.net.2"],
        }
    return names


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    return converter(_converted(), checkpoint, swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"})


def comfy(layer: str, param: str) -> str | None:
    """Keys with the names of ComfyUI's tree, but for attention, which musubi-tuner's converter makes one layer."""
    for theirs, own in COMFY.items():
        layer = layer.replace(theirs, own)
    return kohya()(layer, param)


def _fused() -> dict[str, tuple[str, ...]]:
    return {
        f"double_blocks.{i}.{side}_attn.qkv": tuple(
            f"transformer_blocks.{i}.attn.{name.format(part)}" for part in "qkv"
        )
        for i in range(2)
        for side, (name, *_) in SIDES.items()
    }


FAMILY = Family(
    name="hunyuan_video15",
    named=("hunyuan_video_1_5", "hunyuan-video-1.5/lora", "hunyuanvideo-t2v-480p/lora"),
    build=build,
    native=native,
    convert=convert,
    writers={
        "musubi": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/lora_hv_1_5.py, HV_1_5_IMAGE_TARGET_REPLACE_MODULES",
            kohya(),
            layers=BLOCKS,
        ),
        "musubi for comfy": Writer(
            "kohya",
            "kohya-ss/musubi-tuner networks/convert_hunyuan_video_1_5_lora_to_comfy.py",
            comfy,
            layers=("_mlp.", "_mod.", "_attn_proj"),
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/supported_models.py, HunyuanVideo15; comfy/lora.py",
            dotted("diffusion_model.", KOHYA_PARAMS),
            fuse=_fused(),
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/base.py, ComfyPipeline.save_adapter",
            dotted("diffusion_model."),
            fuse=_fused(),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_base.py, LoraBaseMixin",
            dotted("transformer."),
            "diffusers",
            layers=("transformer_blocks.",),
        ),
        "lycoris": Writer(
            "kohya",
            "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX; bghira/SimpleTuner save_hooks.py, _save_lycoris",
            kohya("lycoris_"),
            "diffusers",
            layers=("transformer_blocks",),
        ),
    },
)
