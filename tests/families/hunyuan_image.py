"""HunyuanImage 2.1."""

from __future__ import annotations

from diffusers import HunyuanImageTransformer2DModel
from torch import Tensor, nn

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, converter, dotted, kohya, linear, norm, on_meta
from .hunyuan_video import COMFY

WIDTH, MLP, TEXT, BYT5 = 3584, 14336, 3584, 1472
SIDES = {
    "img": ("to_{}", "norm_", "to_out.0", "ff", "norm1"),
    "txt": ("add_{}_proj", "norm_added_", "to_add_out", "ff_context", "norm1_context"),
}


def build(full: bool) -> nn.Module:
    """hunyuanvideo-community/HunyuanImage-2.1-Diffusers, transformer/config.json."""
    return on_meta(
        HunyuanImageTransformer2DModel,
        num_layers=20 if full else 2,
        num_single_layers=40 if full else 2,
        num_refiner_layers=2,
        text_embed_2_dim=BYT5,
        guidance_embeds=True,
        use_meanflow=True,
    )


def native() -> Shapes:
    """Tencent-Hunyuan/HunyuanImage-2.1 hyimage/models/hunyuan/modules/hunyuanimage_dit.py."""
    found: Shapes = {"img_in.proj.weight": (WIDTH, 64, 1, 1)}
    found |= linear(WIDTH, TEXT, "txt_in.input_embedder", "txt_in.c_embedder.linear_1")
    found |= linear(
        WIDTH, 256, *(f"{one}.mlp.0" for one in ("txt_in.t_embedder", "time_in", "time_r_in", "guidance_in"))
    )
    found |= linear(
        WIDTH, WIDTH, *(f"{one}.mlp.2" for one in ("txt_in.t_embedder", "time_in", "time_r_in", "guidance_in"))
    )
    found |= linear(WIDTH, WIDTH, "txt_in.c_embedder.linear_2")
    found |= norm(BYT5, "byt5_in.layernorm") | linear(2048, BYT5, "byt5_in.fc1") | linear(2048, 2048, "byt5_in.fc2")
    found |= linear(WIDTH, 2048, "byt5_in.fc3")
    found |= linear(64, WIDTH, "final_layer.linear") | linear(2 * WIDTH, WIDTH, "final_layer.adaLN_modulation.1")
    for i in range(2):
        refiner = {
            **norm(WIDTH, "norm1", "norm2"),
            **linear(3 * WIDTH, WIDTH, "self_attn_qkv"),
            **linear(WIDTH, WIDTH, "self_attn_proj"),
            **linear(MLP, WIDTH, "mlp.fc1"),
            **linear(WIDTH, MLP, "mlp.fc2"),
            **linear(2 * WIDTH, WIDTH, "adaLN_modulation.1"),
        }
        found |= below(f"txt_in.individual_token_refiner.blocks.{i}", refiner)
        for side in SIDES:
            double = {
                **linear(6 * WIDTH, WIDTH, f"{side}_mod.linear"),
                **linear(WIDTH, WIDTH, *(f"{side}_attn_{part}" for part in "qkv"), f"{side}_attn_proj"),
                **norm(128, f"{side}_attn_q_norm", f"{side}_attn_k_norm"),
                **linear(MLP, WIDTH, f"{side}_mlp.fc1"),
                **linear(WIDTH, MLP, f"{side}_mlp.fc2"),
            }
            found |= below(f"double_blocks.{i}", double)
        single = {
            **linear(3 * WIDTH, WIDTH, "modulation.linear"),
            **linear(WIDTH, WIDTH, *(f"linear1_{part}" for part in "qkv")),
            **linear(MLP, WIDTH, "linear1_mlp"),
            **linear(WIDTH, WIDTH + MLP, "linear2.fc"),
            **norm(128, "q_norm", "k_norm"),
        }
        found |= below(f"single_blocks.{i}", single)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """huggingface/diffusers scripts/convert_hunyuan_image_to_diffusers.py."""
    own, refiner = "txt_in.individual_token_refiner.blocks.N", "context_embedder.token_refiner.refiner_blocks.N"
    names = {
        "img_in.proj": ["x_embedder.proj"],
        "txt_in.input_embedder": ["context_embedder.proj_in"],
        "final_layer.linear": ["proj_out"],
        "byt5_in.layernorm": ["context_embedder_2.norm"],
        **{f"byt5_in.fc{i}": [f"context_embedder_2.linear_{i}"] for i in (1, 2, 3)},
        **{
            f"txt_in.c_embedder.linear_{i}": [f"context_embedder.time_text_embed.text_embedder.linear_{i}"]
            for i in (1, 2)
        },
        f"{own}.self_attn_qkv": [f"{refiner}.attn.to_{part}" for part in "qkv"],
        f"{own}.self_attn_proj": [f"{refiner}.attn.to_out.0"],
        f"{own}.mlp.fc1": [f"{refiner}.ff.net.0.proj"],
        f"{own}.mlp.fc2": [f"{refiner}.ff.net.2"],
        f"{own}.adaLN_modulation.1": [f"{refiner}.norm_out.linear"],
        **{f"{own}.norm{i}": [f"{refiner}.norm{i}"] for i in (1, 2)},
        "single_blocks.N.modulation.linear": ["single_transformer_blocks.N.norm.linear"],
        **{f"single_blocks.N.linear1_{part}": [f"single_transformer_blocks.N.attn.to_{part}"] for part in "qkv"},
        **{f"single_blocks.N.{part}_norm": [f"single_transformer_blocks.N.attn.norm_{part}"] for part in "qk"},
        "single_blocks.N.linear1_mlp": ["single_transformer_blocks.N.proj_mlp"],
        "single_blocks.N.linear2.fc": ["single_transformer_blocks.N.proj_out"],
    }
    for native_name, theirs in {
        "txt_in.t_embedder": "context_embedder.time_text_embed.timestep_embedder",
        "time_in": "time_guidance_embed.timestep_embedder",
        "time_r_in": "time_guidance_embed.timestep_embedder_r",
        "guidance_in": "time_guidance_embed.guidance_embedder",
    }.items():
        names |= {f"{native_name}.mlp.0": [f"{theirs}.linear_1"], f"{native_name}.mlp.2": [f"{theirs}.linear_2"]}
    for side, (part, normed, out, mlp, mod) in SIDES.items():
        block = "transformer_blocks.N"
        names |= {f"double_blocks.N.{side}_attn_{one}": [f"{block}.attn.{part.format(one)}"] for one in "qkv"}
        names |= {f"double_blocks.N.{side}_attn_{one}_norm": [f"{block}.attn.{normed}{one}"] for one in "qk"}
        names[f"double_blocks.N.{side}_attn_proj"] = [f"{block}.attn.{out}"]
        names[f"double_blocks.N.{side}_mlp.fc1"] = [f"{block}.{mlp}.net.0.proj"]
        names[f"double_blocks.N.{side}_mlp.fc2"] = [f"{block}.{mlp}.net.2"]
        names[f"double_blocks.N.{side}_mod.linear"] = [f"{block}.{mod}.linear"]
    return converter(names, checkpoint, swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"})


def fused() -> dict[str, tuple[str, ...]]:
    """Layers that checkpoints and ComfyUI have as one, with the names of ComfyUI's tree."""
    found = {}
    for i in range(2):
        for side, (part, _, out, mlp, mod) in SIDES.items():
            own, theirs = f"double_blocks.{i}.{side}", f"transformer_blocks.{i}"
            found[f"{own}_attn_qkv"] = tuple(f"{theirs}.attn.{part.format(one)}" for one in "qkv")
            found[f"{own}_attn_proj"] = (f"{theirs}.attn.{out}",)
            found[f"{own}_mlp.fc1"] = (f"{theirs}.{mlp}.net.0.proj",)
            found[f"{own}_mod.linear"] = (f"{theirs}.{mod}.linear",)
        own, theirs = f"single_blocks.{i}", f"single_transformer_blocks.{i}"
        found[f"{own}.linear1"] = (*(f"{theirs}.attn.to_{one}" for one in "qkv"), f"{theirs}.proj_mlp")
        found[f"{own}.linear2"] = (f"{theirs}.proj_out",)
    return found


def comfy(layer: str, param: str) -> str | None:
    """Keys with the names of ComfyUI's tree."""
    for theirs, own in COMFY.items():
        layer = layer.replace(theirs, own)
    return dotted("diffusion_model.", KOHYA_PARAMS)(layer, param)


FAMILY = Family(
    name="hunyuan_image",
    named=("hunyuan-image-2.1/lora", "hunyuan_image"),
    alone=(
        "double_blocks.0.img_attn_q:3584",
        "double_blocks.0.img_attn.qkv:3584",
        "transformer_blocks.0.attn.to_q:3584",
        "single_blocks.39.linear1:3584",
        "single_transformer_blocks.0.attn.to_q:3584",
    ),
    build=build,
    native=native,
    convert=convert,
    writers={
        "kohya": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_hunyuan_image.py, HunyuanImageLoRANetwork; "
            "library/hunyuan_image_modules.py, MMDoubleStreamBlock and MMSingleStreamBlock",
            kohya(),
            fuse=fused(),
            layers=("double_blocks", "single_blocks"),
            metadata={"modelspec.architecture": "hunyuan-image-2.1/lora"},
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet; comfy/ldm/hunyuan_video/model.py",
            comfy,
            fuse=fused(),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/peft.py, save_lora_adapter",
            dotted("transformer."),
            "diffusers",
        ),
    },
)
