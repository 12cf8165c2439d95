"""Keys are taken apart as their trainers spell them, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_lora import formats
from lib_lora.formats.base import KeyFormat, ParsedKey
from lib_lora.network import _formats, _parse
from lib_lora.registry import discover

UNET = "down_blocks.0.attentions.1.transformer_blocks.0.attn2.to_k"
TEXT = "text_model.encoder.layers.3.self_attn.q_proj"
FLAT = UNET.replace(".", "_")
DOWN, UP = "lora_down.weight", "lora_up.weight"

KEYS = {
    f"lora_unet_{FLAT}.lora_down.weight": ("kohya", "unet", FLAT, DOWN),
    f"lora_unet_{FLAT}.lora_mid.weight": ("kohya", "unet", FLAT, "lora_mid.weight"),
    f"lora_unet_{FLAT}.lora_A.weight": ("kohya", "unet", FLAT, DOWN),
    f"lora_unet_{FLAT}.dora_scale": ("kohya", "unet", FLAT, "dora_scale"),
    "lora_unet_input_blocks_1_1_proj_in.alpha": ("kohya", "unet", "input_blocks_1_1_proj_in", "alpha"),
    "lora_te_text_model_x.alpha": ("kohya", "text_encoder", "text_model_x", "alpha"),
    "lora_te1_text_model_x.alpha": ("kohya", "text_encoder", "text_model_x", "alpha"),
    "lora_te2_text_model_x.lora_up.weight": ("kohya", "text_encoder_2", "text_model_x", UP),
    f"lycoris_{FLAT}.lora_up.weight": ("lycoris", None, FLAT, UP),
    f"lycoris_{FLAT}.hada_w1_a": ("lycoris", None, FLAT, "hada_w1_a"),
    f"unet.{UNET}.lora.down.weight": ("diffusers", "unet", UNET, DOWN),
    f"{UNET}.lora.up.weight": ("diffusers", None, UNET, UP),
    f"unet.{UNET}.lora_linear_layer.up.weight": ("diffusers", "unet", UNET, UP),
    f"text_encoder_2.{TEXT}.lora_linear_layer.down.weight": ("diffusers", "text_encoder_2", TEXT, DOWN),
    f"unet.{UNET}.alpha": ("diffusers", "unet", UNET, "alpha"),
    "unet.mid_block.attn1.processor.to_out_lora.up.weight": ("diffusers", "unet", "mid_block.attn1.to_out.0", UP),
    "mid_block.attn1.processor.to_q_lora.down.weight": ("diffusers", None, "mid_block.attn1.to_q", DOWN),
    f"base_model.model.{TEXT}.lora_A.weight": ("peft", None, TEXT, DOWN),
    f"base_model.model.{TEXT}.lora_B.default.weight": ("peft", None, TEXT, UP),
    f"base_model.model.unet.{UNET}.lora_B.bias": ("peft", "unet", UNET, "lora_up.bias"),
    f"text_encoder.{TEXT}.lora_B.weight": ("peft", "text_encoder", TEXT, UP),
    f"unet.{UNET}.lora_magnitude_vector": ("peft", "unet", UNET, "lora_magnitude_vector"),
}
STRANGERS = [
    "model.diffusion_model.input_blocks.0.0.weight",
    "unet:0:up",
    "text_encoder:47:down",
    "emb_params",
    "down_blocks.0.resnets.0.conv1.weight",
    "transformer.double_blocks.0.img_attn.qkv.weight",
    "",
    "lora_unet_",
    ".lora_down.weight",
]


@pytest.mark.parametrize("key", KEYS)
def test_known_spellings(key):
    name, component, module, param = KEYS[key]
    spelled, parsed = _parse(key)
    assert parsed is not None
    assert (spelled, parsed.component, parsed.module, parsed.param) == (name, component, module, param)
    assert parsed.flattened == (name in ("kohya", "lycoris"))


@pytest.mark.parametrize("key", STRANGERS)
def test_other_keys_are_nobodys(key):
    assert _parse(key) == ("", None)


def test_named_adapters_are_told_apart():
    assert _parse(f"base_model.model.{TEXT}.lora_A.style.weight")[1] == ParsedKey(
        None, TEXT, DOWN, flattened=False, adapter="style"
    )


@pytest.mark.parametrize("one", _formats(), ids=lambda one: one.name)
def test_each_format_claims_its_own_example_first(one):
    assert _parse(one.example)[0] == one.name


def test_all_formats_are_found_by_themselves():
    assert set(discover(formats, KeyFormat)) == {"kohya", "lycoris", "diffusers", "peft"}


@given(st.text(max_size=120))
def test_any_text_is_parsed_or_nobodys(key):
    _, parsed = _parse(key)
    assert parsed is None or (parsed.module and parsed.param)


NAMES = st.from_regex(r"[a-z_]{1,8}[0-9]?(\.[a-z_0-9]{1,6}){0,4}", fullmatch=True)


@given(NAMES, st.sampled_from([DOWN, UP, "alpha", "lora_mid.weight"]))
def test_kohya_keys_come_apart_where_they_were_joined(module, param):
    flat = module.replace(".", "_")
    parsed = _parse(f"lora_unet_{flat}.{param}")[1]
    assert parsed == ParsedKey("unet", flat, param, flattened=True)


@given(NAMES.filter(lambda name: not name.startswith(("unet.", "text_encoder."))), st.sampled_from("AB"))
def test_peft_keys_come_apart_where_they_were_joined(module, side):
    parsed = _parse(f"base_model.model.unet.{module}.lora_{side}.weight")[1]
    assert parsed == ParsedKey("unet", module, DOWN if side == "A" else UP, flattened=False)
