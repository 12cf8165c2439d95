"""HunyuanDiT 1.1, which has the embedding for style that 1.2 has not."""

from __future__ import annotations

from diffusers import HunyuanDiT2DModel
from torch import Tensor, nn

from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, converter, dotted, kohya, linear, norm, on_meta

WIDTH, MLP = 1408, 6144


def build(full: bool) -> nn.Module:
    """Tencent-Hunyuan/HunyuanDiT-v1.1-Diffusers, transformer/config.json."""
    return on_meta(
        HunyuanDiT2DModel,
        num_layers=40 if full else 4,
        num_attention_heads=16,
        attention_head_dim=88,
        in_channels=4,
        patch_size=2,
        sample_size=128,
        hidden_size=WIDTH,
        mlp_ratio=4.3637,
        learn_sigma=True,
        cross_attention_dim=1024,
    )


def native() -> Shapes:
    """Tencent/HunyuanDiT hydit/modules/models.py, HunyuanDiT."""
    found: Shapes = {"x_embedder.proj.weight": (WIDTH, 4, 2, 2), "x_embedder.proj.bias": (WIDTH,)}
    found |= linear(WIDTH, 256, "t_embedder.mlp.0") | linear(WIDTH, WIDTH, "t_embedder.mlp.2")
    found |= linear(4 * WIDTH, 3968, "extra_embedder.0") | linear(WIDTH, 4 * WIDTH, "extra_embedder.2")
    found |= linear(2048, 2048, *(f"pooler.{part}_proj" for part in "qkv")) | linear(1024, 2048, "pooler.c_proj")
    found |= linear(8192, 2048, "mlp_t5.0") | linear(1024, 8192, "mlp_t5.2")
    found |= linear(32, WIDTH, "final_layer.linear") | linear(2 * WIDTH, WIDTH, "final_layer.adaLN_modulation.1")
    for i in range(4):
        found |= below(f"blocks.{i}", _block(skips=i >= 3))
    return found


def _block(*, skips: bool) -> Shapes:
    found = {
        **linear(3 * WIDTH, WIDTH, "attn1.Wqkv"),
        **linear(WIDTH, WIDTH, "attn1.out_proj", "attn2.q_proj", "attn2.out_proj", "default_modulation.1"),
        **linear(2 * WIDTH, 1024, "attn2.kv_proj"),
        **linear(MLP, WIDTH, "mlp.fc1"),
        **linear(WIDTH, MLP, "mlp.fc2"),
        **norm(88, "attn1.q_norm", "attn1.k_norm", "attn2.q_norm", "attn2.k_norm"),
    }
    return found | linear(WIDTH, 2 * WIDTH, "skip_linear") | norm(2 * WIDTH, "skip_norm") if skips else found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """As huggingface/diffusers scripts/convert_hunyuandit_to_diffusers.py, which is not in the package."""
    return converter(
        {
            "blocks.N.attn1.Wqkv": [f"blocks.N.attn1.to_{part}" for part in "qkv"],
            "blocks.N.attn1.q_norm": ["blocks.N.attn1.norm_q"],
            "blocks.N.attn1.k_norm": ["blocks.N.attn1.norm_k"],
            "blocks.N.attn1.out_proj": ["blocks.N.attn1.to_out.0"],
            "blocks.N.attn2.kv_proj": [f"blocks.N.attn2.to_{part}" for part in "kv"],
            "blocks.N.attn2.q_proj": ["blocks.N.attn2.to_q"],
            "blocks.N.attn2.q_norm": ["blocks.N.attn2.norm_q"],
            "blocks.N.attn2.k_norm": ["blocks.N.attn2.norm_k"],
            "blocks.N.attn2.out_proj": ["blocks.N.attn2.to_out.0"],
            "blocks.N.default_modulation.1": ["blocks.N.norm1.linear"],
            "blocks.N.mlp.fc1": ["blocks.N.ff.net.0.proj"],
            "blocks.N.mlp.fc2": ["blocks.N.ff.net.2"],
            "pooler.k_proj": ["time_extra_emb.pooler.k_proj"],
            "pooler.q_proj": ["time_extra_emb.pooler.q_proj"],
            "pooler.v_proj": ["time_extra_emb.pooler.v_proj"],
            "pooler.c_proj": ["time_extra_emb.pooler.c_proj"],
            "t_embedder.mlp.0": ["time_extra_emb.timestep_embedder.linear_1"],
            "t_embedder.mlp.2": ["time_extra_emb.timestep_embedder.linear_2"],
            "x_embedder.proj": ["pos_embed.proj"],
            "mlp_t5.0": ["text_embedder.linear_1"],
            "mlp_t5.2": ["text_embedder.linear_2"],
            "extra_embedder.0": ["time_extra_emb.extra_embedder.linear_1"],
            "extra_embedder.2": ["time_extra_emb.extra_embedder.linear_2"],
            "final_layer.linear": ["proj_out"],
        },
        checkpoint,
        swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
    )


FAMILY = Family(
    name="hunyuan_dit",
    # no trainer is known to write it: it follows the spelling of the others
    named=("hunyuan-dit",),
    alone=("blocks.0.attn1.Wqkv:1408", "blocks.0.attn1.to_q:1408"),
    build=build,
    native=native,
    convert=convert,
    writers={
        "Tencent": Writer(
            "peft",
            "Tencent/HunyuanDiT lora/train_lora.sh; Comfy-Org/ComfyUI comfy/lora.py, HunyuanDiT",
            dotted("base_model.model."),
            layers=("attn1.Wqkv", "attn1.out_proj", "attn2.q_proj", "attn2.kv_proj", "attn2.out_proj"),
        ),
        "kohya": Writer("kohya", "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet", kohya(), layers=("blocks.",)),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "lycoris": Writer(
            "kohya",
            "KohakuBlueleaf/LyCORIS lycoris/wrapper.py, LORA_PREFIX",
            kohya("lycoris_"),
            "diffusers",
            layers=(".attn1.", ".attn2.", ".ff."),
        ),
    },
)
