"""The transformer of Cosmos-Predict2, which is Anima's, too."""

from __future__ import annotations

from diffusers import CosmosTransformer3DModel
from torch import nn

from .base import Shapes, below, linear, norm, on_meta

TEXT, LOW = 1024, 256


def transformer(heads: int, blocks: int) -> nn.Module:
    """nvidia/Cosmos-Predict2-2B-Text2Image, transformer/config.json: no learned positions, scales for the rope."""
    return on_meta(
        CosmosTransformer3DModel,
        num_attention_heads=heads,
        num_layers=blocks,
        text_embed_dim=TEXT,
        adaln_lora_dim=LOW,
        extra_pos_embed_type=None,
    )


def dit(width: int) -> Shapes:
    """tdrussell/diffusion-pipe models/cosmos_predict2_modeling.py, which is NVIDIA's MiniTrainDIT; two blocks."""
    found = linear(width, 68, "x_embedder.proj.1", bias=False)
    found |= linear(width, width, "t_embedder.1.linear_1", bias=False)
    found |= linear(3 * width, width, "t_embedder.1.linear_2", bias=False) | norm(width, "t_embedding_norm")
    found |= linear(LOW, width, "final_layer.adaln_modulation.1", bias=False)
    found |= linear(2 * width, LOW, "final_layer.adaln_modulation.2", bias=False)
    found |= linear(64, width, "final_layer.linear", bias=False)
    for i in range(2):
        found |= below(f"blocks.{i}", _block(width))
    return found


def _block(width: int) -> Shapes:
    found = linear(4 * width, width, "mlp.layer1", bias=False) | linear(width, 4 * width, "mlp.layer2", bias=False)
    for part, context in (("self_attn", width), ("cross_attn", TEXT)):
        found |= linear(width, width, f"{part}.q_proj", f"{part}.output_proj", bias=False)
        found |= linear(width, context, f"{part}.k_proj", f"{part}.v_proj", bias=False)
        found |= norm(128, f"{part}.q_norm", f"{part}.k_norm")
    for part in ("self_attn", "cross_attn", "mlp"):
        found |= linear(LOW, width, f"adaln_modulation_{part}.1", bias=False)
        found |= linear(3 * width, LOW, f"adaln_modulation_{part}.2", bias=False)
    return found
