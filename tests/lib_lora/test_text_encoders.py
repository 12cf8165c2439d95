"""Language models as text encoders: one layer under the names of every program, in every model that has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from lib_lora import load_network
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.index import LayerIndex
from tests.fakes.files import adapters_of, pair, save

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}


def on_meta(name: str, config: Any) -> nn.Module:
    with torch.device("meta"):
        return getattr(transformers, name)(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: on_meta("LlamaModel", transformers.LlamaConfig(**SIZES)),
    "Llama with its head": lambda: on_meta("LlamaForCausalLM", transformers.LlamaConfig(**SIZES)),
    "Gemma 2": lambda: on_meta("Gemma2Model", transformers.Gemma2Config(**SIZES, head_dim=8)),
    "Qwen 3": lambda: on_meta("Qwen3ForCausalLM", transformers.Qwen3Config(**SIZES, head_dim=8)),
    "Qwen 2.5 VL": lambda: on_meta(
        "Qwen2_5_VLForConditionalGeneration",
        transformers.Qwen2_5_VLConfig(text_config=dict(SIZES), vision_config=dict(VISION)),
    ),
    # as ComfyUI and transformers up to 4.51 have it
    "checkpoint of Qwen 2.5 VL": lambda: skeleton(
        {"model.layers.1.self_attn.q_proj.weight": (16, 16), "visual.blocks.0.attn.qkv.weight": (48, 16)}
    ),
    "language model below another": lambda: skeleton(
        {"language_model.model.layers.1.self_attn.q_proj.weight": (16, 16)}
    ),
}
LAYER = "layers.1.self_attn.q_proj"
KEYS = {
    "sd-scripts": f"lora_te_{LAYER.replace('.', '_')}",
    "sd-scripts, with its head": f"lora_te1_model_{LAYER.replace('.', '_')}",
    "ComfyUI, Qwen 2.5 VL": f"text_encoders.qwen25_7b.transformer.model.{LAYER}",
    "ComfyUI, Llama": f"text_encoders.llama.transformer.model.{LAYER}",
    "diffusers": f"text_encoder.{LAYER}",
    "diffusers, with its head": f"text_encoder.model.{LAYER}",
    "diffusers, with vision": f"text_encoder.model.language_model.{LAYER}",
    "older, with vision": f"text_encoder.language_model.model.{LAYER}",
    "PEFT": f"base_model.model.{LAYER}",
    "PEFT, with its head": f"base_model.model.model.{LAYER}",
    "PEFT, with vision": f"base_model.model.model.language_model.{LAYER}",
    "LyCORIS": f"lycoris_model_{LAYER.replace('.', '_')}",
}


@lru_cache
def model(name: str) -> nn.Module:
    return MODELS[name]()


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_is_found_under_every_name(name, tmp_path):
    encoder = model(name)
    for spelling, key in KEYS.items():
        path = save(tmp_path / f"{spelling}.safetensors", pair(key, (16, 16), 2))
        network = load_network(path, {"text_encoder": encoder})
        assert network.report.unused == (), spelling
        (layer,) = adapters_of(network)["text_encoder"]
        assert layer.endswith(LAYER), spelling


@pytest.mark.parametrize("name", ["Qwen 2.5 VL", "checkpoint of Qwen 2.5 VL"])
def test_what_sees_is_found_in_both_trees(name):
    index = LayerIndex("text_encoder", model(name))
    for prefix in ("visual", "model.visual"):
        place = index.find(f"{prefix}.blocks.0.attn.qkv")
        assert place is not None
        assert place.shape == (48, 16)


def test_names_of_text_encoders_are_no_names_of_a_denoiser():
    """Lumina 2's transformer has `layers`, too."""
    denoiser = skeleton({"layers.1.attention.out.weight": (16, 16)})
    assert LayerIndex("transformer", denoiser).find("model.layers.1.attention.out") is None


UMT5 = {  # wan/modules/t5.py -> transformers; of its two first linear layers, `gate` is the one with the activation
    "token_embedding": "shared",
    "blocks.1.attn.q": "encoder.block.1.layer.0.SelfAttention.q",
    "blocks.1.attn.k": "encoder.block.1.layer.0.SelfAttention.k",
    "blocks.1.attn.v": "encoder.block.1.layer.0.SelfAttention.v",
    "blocks.1.attn.o": "encoder.block.1.layer.0.SelfAttention.o",
    "blocks.1.pos_embedding.embedding": "encoder.block.1.layer.0.SelfAttention.relative_attention_bias",
    "blocks.1.norm1": "encoder.block.1.layer.0.layer_norm",
    "blocks.1.ffn.gate.0": "encoder.block.1.layer.1.DenseReluDense.wi_0",
    "blocks.1.ffn.fc1": "encoder.block.1.layer.1.DenseReluDense.wi_1",
    "blocks.1.ffn.fc2": "encoder.block.1.layer.1.DenseReluDense.wo",
    "blocks.1.norm2": "encoder.block.1.layer.1.layer_norm",
    "norm": "encoder.final_layer_norm",
}


@pytest.mark.parametrize("native", UMT5)
def test_umt5_has_the_names_of_wan(native):
    config = transformers.UMT5Config(
        d_model=16, d_ff=32, d_kv=8, num_heads=2, num_layers=2, vocab_size=10, feed_forward_proj="gated-gelu"
    )
    index = LayerIndex("text_encoder", on_meta("UMT5EncoderModel", config))
    place = index.find(native)
    assert place is not None
    assert place == index.find(UMT5[native])
    assert place == index.find(native.replace(".", "_"), flattened=True)
    shape = index.find(UMT5[native]).shape
    wan = LayerIndex("text_encoder", skeleton({f"{native}.weight": shape}))
    assert wan.find(UMT5[native]) is not None


def test_the_gate_is_the_first_of_transformers_layers():
    """What the table says of `wi_0` is so in transformers' own forward."""
    config = transformers.UMT5Config(d_model=4, d_ff=4, feed_forward_proj="gated-gelu", dropout_rate=0.0)
    module = transformers.models.umt5.modeling_umt5.UMT5DenseGatedActDense(config).double()
    with torch.no_grad():
        for layer, weight in ((module.wi_0, 2.0), (module.wi_1, 3.0), (module.wo, 1.0)):
            layer.weight.copy_(weight * torch.eye(4))
        x = torch.linspace(-1, 1, 4, dtype=torch.float64)
        expected = nn.functional.gelu(2 * x, approximate="tanh") * 3 * x
        assert (module(x) - expected).abs().max() < 1e-12


def test_t5_is_found_under_the_names_of_every_program(tmp_path):
    config = transformers.T5Config(
        d_model=16, d_ff=32, d_kv=8, num_heads=2, num_layers=1, vocab_size=10, feed_forward_proj="gated-gelu"
    )
    components = {"text_encoder_3": on_meta("T5EncoderModel", config)}
    layer = "encoder.block.0.layer.0.SelfAttention.q"
    flat = layer.replace(".", "_")
    for prefix in ("lora_te_", "lora_te3_", "text_encoder_3.", "text_encoders.t5xxl.transformer.", "base_model.model."):
        made = pair(prefix + (flat if prefix.startswith("lora") else layer), (16, 16), 2)
        report = load_network(save(tmp_path / "a.safetensors", made), components).report
        assert (report.hit, report.unused) == (1, ()), prefix
