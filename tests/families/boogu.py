"""Boogu Image. All programs have the names of its own code; diffusers has no class of it."""

from __future__ import annotations

from torch import nn

from lib_lora.inspection.skeleton import skeleton

from .base import Family, Shapes, Writer, below, dotted, linear
from .omnigen2 import TIME, around, block

WIDTH, KEYS, MLP = 3360, 840, 13568


def double() -> Shapes:
    """BooguImageDoubleStreamTransformerBlock: the layers of the joint attention belong to its processor."""
    found = linear(
        WIDTH, WIDTH, "img_self_attn.to_q", "img_self_attn.to_out.0", "img_instruct_attn.to_out.0", bias=False
    )
    found |= linear(KEYS, WIDTH, "img_self_attn.to_k", "img_self_attn.to_v", bias=False)
    for side in ("img", "instruct"):
        own = f"img_instruct_attn.processor.{side}"
        found |= linear(WIDTH, WIDTH, f"{own}_to_q", f"{own}_out", bias=False)
        found |= linear(KEYS, WIDTH, f"{own}_to_k", f"{own}_to_v", bias=False)
        found |= linear(MLP, WIDTH, f"{side}_feed_forward.linear_1", f"{side}_feed_forward.linear_3", bias=False)
        found |= linear(WIDTH, MLP, f"{side}_feed_forward.linear_2", bias=False)
    norms = ("img_norm1", "img_norm2", "img_norm3", "instruct_norm1", "instruct_norm2")
    return found | linear(4 * WIDTH, TIME, *(f"{one}.linear" for one in norms))


def build(full: bool) -> nn.Module:
    """boogu-project/Boogu-Image boogu/models/transformers/transformer_boogu.py, with ai-toolkit's sizes."""
    found = around(WIDTH, 4096)
    for i in range(8 if full else 2):
        found |= below(f"double_stream_layers.{i}", double())
    for i in range(32 if full else 2):
        found |= below(f"single_stream_layers.{i}", block(WIDTH, KEYS, MLP, modulated=True))
    for stack in ("noise_refiner", "ref_image_refiner", "context_refiner"):
        for i in range(2):
            found |= below(f"{stack}.{i}", block(WIDTH, KEYS, MLP, modulated=stack != "context_refiner"))
    return skeleton(found)


FAMILY = Family(
    name="boogu",
    named=("boogu_image.0.1", "boogu-image/lora"),
    alone=(
        "double_stream_layers.0.img_instruct_attn.processor.img_to_q:3360",
        "single_stream_layers.31.attn.to_q:3360",
        "noise_refiner.0.attn.to_q:3360",
    ),
    build=build,
    writers={
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit extensions_built_in/diffusion_models/boogu_image/boogu_image.py, "
            "convert_lora_weights_before_save",
            dotted("diffusion_model."),
            "diffusers",
            metadata={"ss_base_model_version": "boogu_image.0.1"},
        ),
        "boogu": Writer(
            "peft",
            "boogu-project/Boogu-Image boogu/pipelines/lora_pipeline.py, save_lora_weights",
            dotted("transformer."),
            "diffusers",
            layers=("_layers.",),
        ),
    },
)
