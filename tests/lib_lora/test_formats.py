"""Keys are taken apart as their trainers spell them, and nothing else is taken for one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lib_lora.files.formats.base import BUNDLED, FILE_WIDE, ParsedKey
from lib_lora.naming.parsed import key_formats
from tests.fakes.keys import parse_key

FORMATS = key_formats()
UNET = "down_blocks.0.attentions.1.transformer_blocks.0.attn2.to_k"
TEXT = "text_model.encoder.layers.3.self_attn.q_proj"
FLAT = UNET.replace(".", "_")
DOWN, UP = "lora_down.weight", "lora_up.weight"

KEYS = {
    f"lora_unet_{FLAT}.lora_down.weight": ("kohya", "denoiser", FLAT, DOWN),
    f"lora_unet_{FLAT}.lora_mid.weight": ("kohya", "denoiser", FLAT, "lora_mid.weight"),
    f"lora_unet_{FLAT}.lora_A.weight": ("kohya", "denoiser", FLAT, DOWN),
    f"lora_unet_{FLAT}.dora_scale": ("kohya", "denoiser", FLAT, "dora_scale"),
    "lora_unet_input_blocks_1_1_proj_in.alpha": ("kohya", "denoiser", "input_blocks_1_1_proj_in", "alpha"),
    f"lora_te1.{TEXT}.lora_A.weight": ("peft", "text_encoder", TEXT, DOWN),
    f"lora_te2.{TEXT}.alpha": ("diffusers", "text_encoder_2", TEXT, "alpha"),
    "llama.model.layers.0.self_attn.q_proj.lora_up.weight": (
        "diffusers",
        "text_encoders.llama",
        "model.layers.0.self_attn.q_proj",
        UP,
    ),
    "lora_te_text_model_x.alpha": ("kohya", "text_encoder", "text_model_x", "alpha"),
    "lora_te1_text_model_x.alpha": ("kohya", "text_encoder", "text_model_x", "alpha"),
    "lora_te2_text_model_x.lora_up.weight": ("kohya", "text_encoder_2", "text_model_x", UP),
    f"lycoris_{FLAT}.lora_up.weight": ("kohya", None, FLAT, UP),
    f"lycoris_{FLAT}.hada_w1_a": ("kohya", None, FLAT, "hada_w1_a"),
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
    f"unet.{UNET}.lora_magnitude_vector.weight": ("peft", "unet", UNET, "lora_magnitude_vector"),
    f"base_model.model.{TEXT}.lora_magnitude_vector.default.weight": ("peft", None, TEXT, "lora_magnitude_vector"),
    f"transformer.{UNET}.magnitude": ("peft", "transformer", UNET, "lora_magnitude_vector"),
    f"lora_unet_{FLAT}.magnitude": ("kohya", "denoiser", FLAT, "lora_magnitude_vector"),
    f"lora_unet_{FLAT}.lora_magnitude_vector.weight": ("kohya", "denoiser", FLAT, "lora_magnitude_vector"),
    f"base_model.model.{TEXT}.lora_embedding_A": ("peft", None, TEXT, "lora_embedding_A"),
    f"base_model.model.{TEXT}.lora_embedding_B.default": ("peft", None, TEXT, "lora_embedding_B"),
    f"lora_unet_{FLAT}.lora_down": ("kohya", "denoiser", FLAT, DOWN),
    f"lycoris_{FLAT}.lora_mid": ("kohya", None, FLAT, "lora_mid.weight"),
    f"unet.{UNET}.lora_up": ("diffusers", "unet", UNET, UP),
    f"{UNET}.lora_down": ("diffusers", None, UNET, DOWN),
    f"module.base_model.model.{TEXT}.lora_A.weight": ("peft", None, TEXT, DOWN),
    f"base_model.model.module.{TEXT}.lora_A.weight": ("peft", None, TEXT, DOWN),
    f"unet.module.{UNET}.lora.up.weight": ("diffusers", "unet", UNET, UP),
    f"_orig_mod.transformer.{UNET.replace('attn2', 'attn2._orig_mod')}.lora_B.weight": (
        "peft",
        "transformer",
        UNET,
        UP,
    ),
    f"transformer._fsdp_wrapped_module.{UNET.replace('1.', '1._fsdp_wrapped_module.')}.lora_A.default.weight": (
        "peft",
        "transformer",
        UNET,
        DOWN,
    ),
    f"{UNET.replace('.attn2', '._checkpoint_wrapped_module.attn2')}.alpha": ("diffusers", None, UNET, "alpha"),
    f"lora_unet__orig_mod_{FLAT}.alpha": ("kohya", "denoiser", FLAT, "alpha"),
    "base_model.model.module.lora_A.weight": ("peft", None, "module", DOWN),
    f"base_model.model.{TEXT}.lora_A": ("peft", None, TEXT, DOWN),
    f"base_model.model.{TEXT}.lora_B.default": ("peft", None, TEXT, UP),
    f"base_model.model.{TEXT}.lora_E": ("peft", None, TEXT, "lora_E"),
    f"base_model.model.{TEXT}.ranknum.default": ("peft", None, TEXT, "ranknum"),
    "base_model.model.attn.lora_A.weight": ("peft", None, "attn", DOWN),
    "base_model.model.attn.base_layer.out_proj.lora_B.weight": ("peft", None, "attn.out_proj", UP),
    # target_parameters: another parameter of the same layer, so no alias of the layer
    "base_model.model.proj.base_layer.lora_B.weight": ("peft", None, "proj.base_layer", UP),
    f"base_model.model.{UNET}.ia3_l": ("peft", None, UNET, "ia3_l"),
    f"base_model.model.{UNET}.oft_R.weight": ("peft", None, UNET, "oft_R.weight"),
    f"base_model.model.{UNET}.oft_R.default.weight": ("peft", None, UNET, "oft_R.weight"),
    f"unet.{UNET}.oft_R.scaled_oft": ("peft", "unet", UNET, "oft_R.scaled_oft"),
    f"lora_unet_{FLAT}.oft_R.scaled_oft": ("kohya", "denoiser", FLAT, "oft_R.scaled_oft"),
    f"base_model.model.{UNET}.boft_R": ("peft", None, UNET, "boft_R"),
    f"base_model.model.{UNET}.boft_s.default": ("peft", None, UNET, "boft_s"),
    f"unet.{UNET}.hra_u": ("peft", "unet", UNET, "hra_u"),
    f"base_model.model.{UNET}.vera_lambda_b": ("peft", None, UNET, "vera_lambda_b"),
    f"base_model.model.{UNET}.vera_lambda_d": ("peft", None, UNET, "vera_lambda_d"),
    "base_model.vera_A": ("peft", None, FILE_WIDE, "vera_A"),
    "base_model.vera_B.default": ("peft", None, FILE_WIDE, "vera_B"),
    f"base_model.model.{UNET}.lokr_w1": ("peft", None, UNET, "lokr_w1"),
    f"base_model.model.unet.{UNET}.hada_t1.default": ("peft", "unet", UNET, "hada_t1"),
    f"{UNET}.lokr_w2_a.default": ("peft", None, UNET, "lokr_w2_a"),
    f"diffusion_model.{UNET}.lora_A.weight": ("peft", "diffusion_model", UNET, DOWN),
    f"diffusion_model.{UNET}.alpha": ("diffusers", "diffusion_model", UNET, "alpha"),
    f"model.diffusion_model.{UNET}.lora_A.weight": ("peft", "diffusion_model", UNET, DOWN),
    f"base_model.model.diffusion_model.{UNET}.dora_scale": ("diffusers", "diffusion_model", UNET, "dora_scale"),
    f"transformer_2.{UNET}.lora_A.weight": ("peft", "transformer_2", UNET, DOWN),
    f"diffusion_model.transformer_1.{UNET}.lora_A.weight": ("peft", "transformer", UNET, DOWN),
    f"diffusion_model.transformer_2.{UNET}.alpha": ("diffusers", "transformer_2", UNET, "alpha"),
    f"unet.base_model.model.{UNET}.lora_A.weight": ("peft", "unet", UNET, DOWN),
    f"transformer.resblocks.{TEXT}.lora_A.weight": ("peft", None, f"transformer.resblocks.{TEXT}", DOWN),
    f"transformer.{UNET}.a1.weight": ("diffusers", "transformer", UNET, "a1.weight"),
    f"diffusion_model.{UNET}.q_layer.weight": ("diffusers", "diffusion_model", UNET, "q_layer.weight"),
    "mid.attn1.processor.to_k_lora.q_layer.weight": ("diffusers", None, "mid.attn1.to_k", "q_layer.weight"),
    "mid.attn1.processor.to_out_lora.lambda_layer": ("diffusers", None, "mid.attn1.to_out.0", "lambda_layer"),
    "mid.attn1.processor.to_v_lora.base_p.weight": ("diffusers", None, "mid.attn1.to_v", "base_p"),
    "mid.attn1.processor.to_v_lora.base_lambda": ("diffusers", None, "mid.attn1.to_v", "base_lambda"),
    "lora_unet__blocks_0_self_attn_q.lora_up.weight": ("kohya", "denoiser", "blocks_0_self_attn_q", UP),
    "lora_unet__blocks_0_self_attn_q.lora_A.weight": ("kohya", "denoiser", "blocks_0_self_attn_q", DOWN),
    f"lora_unet__{FLAT}.alpha": ("kohya", "denoiser", FLAT, "alpha"),
    "lora_prior_unet_clf_1.lora_down.weight": ("kohya", "prior", "clf_1", DOWN),
    "lora_prior_te_text_model_x.lora_up.weight": ("kohya", "text_encoder", "text_model_x", UP),
    f"prior.{UNET}.lora_B.weight": ("peft", "prior", UNET, UP),
    "lora_te_encoder_block_0_layer_0_SelfAttention_q.alpha": (
        *("kohya", "text_encoder", "encoder_block_0_layer_0_SelfAttention_q", "alpha"),
    ),
    f"oft_unet_{FLAT}.oft_blocks": ("kohya_oft", "denoiser", FLAT, "oft_blocks"),
    f"oft_unet_{FLAT}.oft_blocks.2": ("kohya_oft", "denoiser", FLAT, "oft_blocks.2"),
    f"oft_unet_{FLAT}.alpha": ("kohya_oft", "denoiser", FLAT, "alpha"),
    "lora_transformer_transformer_blocks_0_attn_to_k.dora_scale": (
        "kohya",
        "denoiser",
        "transformer_blocks_0_attn_to_k",
        "dora_scale",
    ),
    f"clip_l.{TEXT}.lora_up.weight": ("diffusers", "text_encoder", TEXT, UP),
    f"clip_g.{TEXT}.oft_R.weight": ("peft", "text_encoder_2", TEXT, "oft_R.weight"),
    "t5.encoder.block.0.layer.0.SelfAttention.q.alpha": (
        "diffusers",
        "text_encoders.t5xxl",
        "encoder.block.0.layer.0.SelfAttention.q",
        "alpha",
    ),
    "double_blocks.3.processor.proj_lora2.up.weight": ("xlabs", None, "double_blocks.3.txt_attn.proj", UP),
    "diffusion_model.single_blocks.3.processor.qkv_lora.down.weight": (
        "xlabs",
        "denoiser",
        "single_blocks.3.linear1_qkv",
        DOWN,
    ),
    "single_blocks.3.norm.key_norm.scale": ("whole", None, "single_blocks.3.norm.key_norm", "set_weight"),
    "blocks.0.attn.qkv_proj.lora_A.default.weight": ("peft", None, "blocks.0.attn.qkv_proj_by_head", DOWN),
    "base_model.model.encoder.query.default_lora_latent_mapping.weight": (
        *("peft", None, "encoder.query", "lora_latent_mapping.weight"),
    ),
    "base_model.model.encoder.query_lora_latent_mapping.weight": (
        *("peft", None, "encoder.query", "lora_latent_mapping.weight"),
    ),
    "a.attn.processor.to_k_proj_lora.down.weight": ("diffusers", None, "a.attn.add_k_proj", DOWN),
    "mid.attn.processor.add_v_proj_lora.up.weight": ("diffusers", None, "mid.attn.add_v_proj", UP),
    "unet:0:up": ("cloneofsimo", "unet", "0", UP),
    "text_encoder:47:down": ("cloneofsimo", "text_encoder", "47", DOWN),
    "bundle_emb.mychar.string_to_param.*": ("bundle", None, "mychar", "bundle_emb.string_to_param.*"),
    "bundle_emb.mychar.clip_l": ("bundle", None, "mychar", "bundle_emb.clip_l"),
    "bundle_emb.mychar.clip_g": ("bundle", None, "mychar", "bundle_emb.clip_g"),
    "bundle_emb.mychar.alpha": ("bundle", None, "mychar", "bundle_emb.alpha"),
}
# LyCORIS', kohya's and ComfyUI's parameters whose name alone tells them from a checkpoint's
TENSORS = [
    *("alpha", "dora_scale", "lora_up.weight", "lora_down.weight", "lora_mid.weight", "lora_up.bias", "scalar"),
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
    *("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    *(
        "diff",
        "diff_b",
        "w_norm",
        "b_norm",
        "set_weight",
        "set_bias",
        "reshape_weight",
        "bias_indices",
        "bias_values",
        "bias_size",
    ),
    *("oft_blocks", "oft_blocks.0", "oft_blocks.13", "oft_diag", "rescale"),
    *("lambda_layer", "base_q", "base_p", "base_lambda", "bora_r_scale", "bora_c_scale"),
]
# ... and those that a checkpoint's layer may be called
LAYERS = ["a1.weight", "a2.weight", "b1.weight", "b2.weight", "bm.weight", "q_layer.weight", "p_layer.weight"]
IA3 = ["weight", "on_input"]
STRANGERS = [
    "model.diffusion_model.input_blocks.0.0.weight",
    "unet:0:alpha",
    "unet:x:up",
    "vae:0:up",
    "<s1>",
    "emb_params",
    "down_blocks.0.resnets.0.conv1.weight",
    "transformer.double_blocks.0.img_attn.qkv.weight",
    "transformer_blocks.0.attn.norm.bias",
    "decoder.block.1.a1.weight",
    "encoder.q_layer.weight",
    f"unet.{UNET}.on_input",
    f"diffusion_model.{UNET}.bias",
    f"base_model.model.{UNET}.weight",
    f"base_model.model.{UNET}.base_layer.weight",
    f"base_model.model.{UNET}.lokr_w1.weight",
    "base_model.model.norm.bias",
    "vera_A",
    "double_blocks.0.img_attn.norm.query_norm.weight",
    "single_blocks.3.modulation.scale",
    "clip_l.text_model.encoder.layers.3.self_attn.q_proj.weight",
    "bundle_emb",
    "bundle_emb.mychar",
    "",
    "lora_unet_",
    ".lora_down.weight",
]


def test_known_spellings():
    for key, (name, component, module, param) in KEYS.items():
        spelled, parsed = parse_key(key)
        assert parsed is not None, key
        assert (spelled, parsed.component, parsed.module, parsed.param) == (name, component, module, param), key
        assert parsed.flattened == (name in ("kohya", "kohya_oft")), key
        assert parsed.param.startswith(BUNDLED) == (name == "bundle"), key
        assert (parsed.module == FILE_WIDE) == (param in ("vera_A", "vera_B")), key


def test_other_keys_are_nobodys():
    """Or they are whole tensors, which are no adapters by themselves."""
    examples = {one.example for one in FORMATS.values()}
    for key in [key for key in STRANGERS if key not in examples]:
        assert_no_adapters(key)


def assert_no_adapters(key: str) -> None:
    spelled, parsed = parse_key(key)
    assert parsed is None or (FORMATS[spelled].last and parsed.param in ("set_weight", "set_bias")), key


def test_named_adapters_are_told_apart():
    assert parse_key(f"base_model.model.{TEXT}.lora_A.style.weight")[1] == ParsedKey(
        None, TEXT, DOWN, flattened=False, adapter="style"
    )


EACH = pytest.mark.parametrize("one", FORMATS.values(), ids=lambda one: one.name)
NUMBER = re.compile(r"(?<![a-z0-9])[0-9]+(?![a-z0-9])")
"""The number of a block or of a layer, which is no part of a word."""


@EACH
def test_each_format_claims_its_own_example_first(one):
    name, parsed = parse_key(one.example)
    assert (name, parsed) == (one.name, parse_key(one.example, None, one)[1])
    assert parsed is not None
    assert (bool(parsed.module), bool(parsed.param)) == (True, True)


@EACH
def test_a_format_that_shares_its_example_with_others_says_that_it_is_asked_first(one):
    later = {other.name for other in FORMATS.values() if other.last and not one.last}
    others = (
        {other.name for other in FORMATS.values() if parse_key(one.example, None, other)[1] is not None}
        - {one.name}
        - later
    )
    assert others <= asked_after(one.name), f"Add these to `before` in lib_lora/formats/{one.name}.py."


def asked_after(name: str) -> set[str]:
    """Return the formats that must be asked later than one, by its own `before` and by that of the others."""
    found: set[str] = set()
    waiting = {name}
    while waiting:
        waiting = {later for one in waiting for later in FORMATS[one].before} - found
        found |= waiting
    return found


@EACH
@given(number=st.integers(0, 999))
def test_another_number_in_an_example_is_that_number_in_its_module(one, number):
    before, after = parse_key(one.example, None, one)[1], parse_key(NUMBER.sub(str(number), one.example))
    assert after == (one.name, replace(before, module=NUMBER.sub(str(number), before.module)))


@EACH
def test_an_example_that_is_longer_or_shorter_is_another_key(one):
    for key in (f"{one.example}.something_new", f"{one.example}_new", one.example[:-1]):
        assert parse_key(key)[1] != parse_key(one.example, None, one)[1], key


@given(st.text(max_size=120))
def test_any_text_is_parsed_or_nobodys(key):
    _, parsed = parse_key(key)
    assert parsed is None or (parsed.module and parsed.param)


NAMES = st.from_regex(r"[a-z][a-z_]{0,7}[0-9]?(\.[a-z_0-9]{1,6}){0,4}", fullmatch=True)


@given(NAMES, st.sampled_from([*TENSORS, *LAYERS, *IA3, "oft_R.weight", "something_new"]))
def test_kohya_keys_come_apart_where_they_were_joined(module, param):
    flat = module.replace(".", "_")
    parsed = parse_key(f"lora_unet_{flat}.{param}")[1]
    assert parsed == ParsedKey("denoiser", flat, param, flattened=True)


@given(NAMES, st.sampled_from([*TENSORS, *LAYERS, *IA3]))
def test_videox_fun_keys_come_apart_where_they_were_joined(module, param):
    flat = module.replace(".", "_")
    assert parse_key(f"lora_unet__{flat}.{param}") == ("kohya", ParsedKey("denoiser", flat, param, flattened=True))


@given(NAMES, st.sampled_from([*TENSORS, *LAYERS, *IA3]))
def test_lycoris_keys_come_apart_where_they_were_joined(module, param):
    flat = module.replace(".", "_")
    assert parse_key(f"lycoris_{flat}.{param}")[1] == ParsedKey(None, flat, param, flattened=True)


# what stands before a dotted module, and the component it says
PREFIXES = {
    "unet.": "unet",
    "transformer.": "transformer",
    "text_encoder_2.": "text_encoder_2",
    "diffusion_model.": "diffusion_model",
    "text_encoders.clip_l.transformer.": "text_encoder",
    "text_encoders.clip_g.": "text_encoder_2",
    "text_encoders.t5xxl.transformer.": "text_encoders.t5xxl.transformer",
}
OTHERS = (
    *("unet.", "transformer.", "text_encoder", "diffusion_model."),
    *(f"{component}." for one in FORMATS.values() for component in one.components),
)
DOTTED = NAMES.filter(lambda name: not name.startswith(OTHERS))


@given(st.sampled_from(["", *PREFIXES]), DOTTED, st.sampled_from(TENSORS))
def test_dotted_keys_come_apart_where_they_were_joined(prefix, module, param):
    name, parsed = parse_key(f"{prefix}{module}.{param}")
    assert (name, parsed) == ("diffusers", ParsedKey(PREFIXES.get(prefix), module, param, flattened=False))


@given(st.sampled_from([*PREFIXES]), DOTTED, st.sampled_from(LAYERS))
def test_factors_called_like_layers_need_a_prefix(prefix, module, param):
    assert parse_key(f"{prefix}{module}.{param}")[1] == ParsedKey(PREFIXES[prefix], module, param, flattened=False)
    assert_no_adapters(f"{module}.{param}")


@given(st.sampled_from(["", "base_model.model.", *PREFIXES]), DOTTED, st.sampled_from(["weight", "bias", "on_input"]))
def test_a_plain_weight_is_nobodys(prefix, module, param):
    assume(not f".{module}.{param}".endswith(tuple(f".{layer}" for layer in LAYERS)))
    assert_no_adapters(f"{prefix}{module}.{param}")


EMBEDDING = st.from_regex(r"[a-z0-9_-]{1,12}", fullmatch=True)


@given(EMBEDDING, st.one_of(NAMES, st.just("string_to_param.*")))
def test_bundled_embeddings_are_no_layers(name, rest):
    spelled, parsed = parse_key(f"bundle_emb.{name}.{rest}")
    assert (spelled, parsed) == ("bundle", ParsedKey(None, name, f"bundle_emb.{rest}", flattened=False))


@given(DOTTED, st.sampled_from("AB"))
def test_peft_keys_come_apart_where_they_were_joined(module, side):
    parsed = parse_key(f"base_model.model.unet.{module}.lora_{side}.weight")[1]
    assert parsed == ParsedKey("unet", module, DOWN if side == "A" else UP, flattened=False)
