"""Text encoders that families share, and how trainers call their layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    T5Config,
    T5EncoderModel,
)

from .base import KOHYA_PARAMS, Writer, dotted, kohya, on_meta

Key = Callable[[str, str], str | None]

CLIP_LAYERS = tuple(f"layers.{i}.{part}" for i in (0, 11) for part in ("self_attn", "mlp"))  # enough of all of them
T5_LAYERS = ("block.0.", "block.23.")


def clip_l() -> nn.Module:
    """openai/clip-vit-large-patch14."""
    return on_meta(
        CLIPTextModel, config=CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12)
    )


def clip_l_projected() -> nn.Module:
    """Return the encoder with its projection, as Stable Diffusion 3 has it."""
    config = CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12, projection_dim=768)
    return on_meta(CLIPTextModelWithProjection, config=config)


def clip_g() -> nn.Module:
    """laion/CLIP-ViT-bigG-14-laion2B-39B-b160k."""
    config = CLIPTextConfig(
        hidden_size=1280,
        intermediate_size=5120,
        num_hidden_layers=32,
        num_attention_heads=20,
        projection_dim=1280,
    )
    return on_meta(CLIPTextModelWithProjection, config=config)


def t5() -> nn.Module:
    """google/t5-v1_1-xxl, its encoder."""
    config = T5Config(
        d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu", vocab_size=32128
    )
    return on_meta(T5EncoderModel, config=config)


def llama(vocabulary: int, *, head: bool) -> nn.Module:
    """meta-llama/Llama-3.1-8B, with a layer or two of its 32."""
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_hidden_layers=2,
        vocab_size=vocabulary,
    )
    return on_meta(LlamaForCausalLM if head else LlamaModel, config=config)


LLM_LAYERS = ("self_attn.", "mlp.")


def nested(key: Key) -> Key:
    """Keys of a CLIP model in the tree that trainers see: transformers had `text_model` around it up to 5.5."""

    def below(layer: str, param: str) -> str | None:
        return key(layer if layer.startswith("text_model.") else f"text_model.{layer}", param)

    return below


def encoder_writers(
    numbers: dict[str, str], kohya_names: dict[str, str], metadata: dict[str, str], omi: bool = False
) -> dict[str, Writer]:
    """How trainers write the text encoders of a family.

    Args:
        numbers: model, as in `clip_l`, -> diffusers' component.
        kohya_names: prefix of sd-scripts and OneTrainer -> model.
        metadata: by which the family is known, as text encoders alone do not tell.
        omi: whether OMI has the family.
    """
    found = {}

    def add(name: str, how: str, source: str, model: str, key: Key) -> None:
        clip = model.startswith("clip")
        layers = CLIP_LAYERS if clip else T5_LAYERS
        found[name] = Writer(
            how,
            source,
            nested(key) if clip else key,
            "diffusers",
            layers,
            component=numbers[model],
            metadata=metadata,
        )

    for prefix, model in kohya_names.items():
        source = "kohya-ss/sd-scripts networks/lora_flux.py and lora_sd3.py, LORA_PREFIX_TEXT_ENCODER_…"
        source += "; Nerogar/OneTrainer modules/model, lora_text_encoders"
        add(f"{prefix}-{model}", "kohya", source, model, kohya(f"{prefix}_"))
    for model in numbers:
        source = "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_clip; OneTrainer's COMFY format"
        name = "t5xxl" if model == "t5" else model
        key = dotted(f"text_encoders.{name}.transformer.")
        add(f"comfy-{model}", "peft", source, model, key)
        if omi:
            source = "OMI, as in invoke-ai/InvokeAI model_manager/omi/vendor/convert/lora"
            add(f"omi-{model}", "diffusers", source, model, dotted(f"{model}.", KOHYA_PARAMS))
    return found
