"""ACE-Step 1.5."""

from __future__ import annotations

from diffusers import AceStepTransformer1DModel
from torch import Tensor, nn

from .base import Family, Shapes, Writer, below, converter, dotted, kohya, linear, norm, on_meta

WIDTH, KEYS, MLP = 2048, 1024, 6144
KINDS = ("self_attn", "cross_attn")


def build(full: bool) -> nn.Module:
    """ACE-Step/acestep-v15-turbo-diffusers, transformer/config.json."""
    return on_meta(AceStepTransformer1DModel, num_hidden_layers=24 if full else 2)


def native() -> Shapes:
    """Return ace-step/ACE-Step-1.5's decoder, by huggingface/diffusers scripts/convert_ace_step_to_diffusers.py."""
    found: Shapes = {"proj_in.1.weight": (WIDTH, 192, 2), "proj_in.1.bias": (WIDTH,)}
    found |= linear(WIDTH, WIDTH, "condition_embedder")
    for one in ("time_embed", "time_embed_r"):
        found |= linear(WIDTH, 256, f"{one}.linear_1") | linear(WIDTH, WIDTH, f"{one}.linear_2")
        found |= linear(6 * WIDTH, WIDTH, f"{one}.time_proj")
    for i in range(2):
        layer = linear(MLP, WIDTH, "mlp.gate_proj", "mlp.up_proj", bias=False)
        layer |= linear(WIDTH, MLP, "mlp.down_proj", bias=False)
        for kind in KINDS:
            layer |= linear(WIDTH, WIDTH, f"{kind}.q_proj", f"{kind}.o_proj", bias=False)
            layer |= linear(KEYS, WIDTH, f"{kind}.k_proj", f"{kind}.v_proj", bias=False)
            layer |= norm(128, f"{kind}.q_norm", f"{kind}.k_norm")
        found |= below(f"layers.{i}", layer)
    return found


def convert(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """huggingface/diffusers scripts/convert_ace_step_to_diffusers.py, _rename_attn_keys."""
    names = {"proj_in.1": ["proj_in_conv"]}
    for i in range(2):
        for kind in (f"layers.{i}.{kind}" for kind in KINDS):
            names |= {f"{kind}.{part}_proj": [f"{kind}.to_{part}"] for part in "qkv"}
            names |= {f"{kind}.o_proj": [f"{kind}.to_out.0"]}
            names |= {f"{kind}.{part}_norm": [f"{kind}.norm_{part}"] for part in "qk"}
    return converter(names, checkpoint)


FAMILY = Family(
    name="ace_step",
    named=("ace_step", "ace-step-1.5/lora"),
    alone=("layers.0.cross_attn.q_proj:2048", "layers.0.self_attn.to_q:2048", "layers.23.cross_attn.to_k:2048"),
    build=build,
    native=native,
    convert=convert,
    writers={
        "ace-step": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_conversion_utils.py, _convert_non_diffusers_ace_step_lora_to_diffusers",
            dotted("base_model.model."),
            layers=("self_attn.", "cross_attn."),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, AceStepLoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "kohya": Writer(
            "kohya",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            kohya("lora_unet_decoder_"),
            layers=("layers.",),
        ),
    },
)
