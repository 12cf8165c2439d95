"""Lumina Image 2.0."""

from __future__ import annotations

from diffusers import Lumina2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_lumina2_to_diffusers
from torch import nn
from transformers import Gemma2Config, Gemma2Model

from ._encoders import LLM_LAYERS
from ._trainers import extracted, simpletuner_comfy
from .base import KOHYA_PARAMS, Family, Shapes, Writer, below, dotted, kohya, linear, norm, on_meta

WIDTH, KEYS, MLP, TIME = 2304, 768, 9216, 1024


def build(full: bool) -> nn.Module:
    """Alpha-VLLM/Lumina-Image-2.0, transformer/config.json."""
    return on_meta(Lumina2Transformer2DModel, num_layers=26 if full else 2, cap_feat_dim=WIDTH)


def native() -> Shapes:
    """Alpha-VLLM/Lumina-Image-2.0 models/model.py, NextDiT."""
    found = linear(WIDTH, 64, "x_embedder") | linear(64, WIDTH, "final_layer.linear")
    found |= linear(TIME, 256, "t_embedder.mlp.0") | linear(TIME, TIME, "t_embedder.mlp.2")
    found |= norm(WIDTH, "cap_embedder.0") | linear(WIDTH, WIDTH, "cap_embedder.1")
    found |= linear(WIDTH, TIME, "final_layer.adaLN_modulation.1")
    for stack in ("layers", "noise_refiner", "context_refiner"):
        for i in range(2):
            found |= below(f"{stack}.{i}", _block(modulated=stack != "context_refiner"))
    return found


def _block(*, modulated: bool) -> Shapes:
    found = {
        **linear(WIDTH + 2 * KEYS, WIDTH, "attention.qkv", bias=False),
        **linear(WIDTH, WIDTH, "attention.out", bias=False),
        **norm(96, "attention.q_norm", "attention.k_norm"),
        **linear(MLP, WIDTH, "feed_forward.w1", "feed_forward.w3", bias=False),
        **linear(WIDTH, MLP, "feed_forward.w2", bias=False),
        **norm(WIDTH, "attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"),
    }
    return found | linear(4 * WIDTH, TIME, "adaLN_modulation.1") if modulated else found


def gemma() -> nn.Module:
    """google/gemma-2-2b, without its head, with two of its 26 layers."""
    config = Gemma2Config(
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=256000,
    )
    return on_meta(Gemma2Model, config=config)


FAMILY = Family(
    name="lumina2",
    named=("lumina2", "lumina-2/lora", "lumina/lora", "lumina2-2.0/lora"),
    alone=("layers.0.attention.qkv:2304", "noise_refiner.0.attn.to_q:2304", "layers.3.feed_forward.w1:2304"),
    build=build,
    native=native,
    convert=convert_lumina2_to_diffusers,
    encoders={"text_encoder": gemma},
    writers={
        "kohya": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_lumina.py, LUMINA_TARGET_REPLACE_MODULE",
            kohya(),
            layers=("layers.", "refiner.", "final_layer."),
        ),
        "kohya with split_qkv": Writer(  # which saves them as one again, so that only the metadata differs
            "kohya",
            "kohya-ss/sd-scripts networks/lora_lumina.py, LoRANetwork.state_dict",
            kohya(),
            layers=("layers.", "refiner."),
            metadata={"ss_network_args": '{"split_qkv": "True"}', "ss_base_model_version": "lumina2"},
        ),
        "diffusion-pipe": Writer(
            "peft",
            "tdrussell/diffusion-pipe models/lumina_2.py, save_adapter",
            dotted("diffusion_model."),
            layers=("layers.", "refiner."),
        ),
        "kohya text encoder": Writer(
            "kohya",
            "kohya-ss/sd-scripts networks/lora_lumina.py, TEXT_ENCODER_TARGET_REPLACE_MODULE",
            kohya("lora_te_"),
            "diffusers",
            layers=LLM_LAYERS,
            component="text_encoder",
            metadata={"modelspec.architecture": "lumina-2/lora"},
        ),
        "comfy": Writer(
            "diffusers",
            "Comfy-Org/ComfyUI comfy/lora.py, model_lora_keys_unet",
            dotted("diffusion_model.", KOHYA_PARAMS),
        ),
        "diffusers": Writer(
            "peft",
            "huggingface/diffusers loaders/lora_pipeline.py, Lumina2LoraLoaderMixin.save_lora_weights",
            dotted("transformer."),
            "diffusers",
        ),
        "simpletuner": Writer(
            "kohya",
            "bghira/SimpleTuner simpletuner/helpers/training/trainer.py over LyCORIS lycoris/wrapper.py",
            kohya("lycoris_"),
            "diffusers",
            layers=("layers.",),
        ),
        **simpletuner_comfy("transformer."),
        "ai-toolkit": Writer(
            "peft",
            "ostris/ai-toolkit toolkit/lora_special.py, LoRASpecialNetwork with is_lumina2 and peft_format",
            dotted("transformer."),
            "diffusers",
            layers=("layers.", "noise_refiner.", "context_refiner."),
        ),
        **extracted("gemma2_2b.transformer.model", "layers.0.self_attn", "layers.1.mlp"),
    },
)
