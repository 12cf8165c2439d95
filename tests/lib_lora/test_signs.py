"""Files that hold little tell the families of video and diffusion transformers apart as well as whole ones do."""

from __future__ import annotations

import pytest

from lib_lora.architectures.base import recognise
from lib_lora.families import known_architectures

PARTS = {
    # trainers that leave out all but attention, in each spelling: layers and their inputs
    "wan": ["blocks.7.self_attn.q:5120", "blocks.7.attn2.to_out.0:1536", "vace_blocks.0.ffn.0:3072"],
    "hunyuan_video": [
        *("single_blocks.39.linear1:3072", "single_transformer_blocks.38.attn.to_q:3072"),
        *("double_blocks.19.img_attn.qkv:3072", "transformer_blocks.19.ff_context.net.0.proj:3072"),
        "txt_in.individual_token_refiner.blocks.0.self_attn_qkv:3072",
    ],
    "ltx": ["transformer_blocks.0.attn2.to_k:2048", "transformer_blocks.0.attn2.to_k:4096"],
    "ltx2": ["transformer_blocks.0.audio_attn1.to_q:2048", "transformer_blocks.0.audio_to_video_attn.to_q:4096"],
    "lumina2": ["layers.0.attention.qkv:2304", "noise_refiner.0.attn.to_q:2304", "layers.3.feed_forward.w1:2304"],
    "hidream": ["double_stream_blocks.0.block.attn1.to_q:2560", "single_stream_blocks.0.block.ff_i.experts.0.w1:2560"],
    "auraflow": [
        *("double_layers.0.attn.w1q:3072", "joint_transformer_blocks.0.attn.to_q:3072"),
        "single_transformer_blocks.31.ff.linear_1:3072",
    ],
    "pixart": ["blocks.0.attn.qkv:1152", "transformer_blocks.0.attn1.to_q:1152", "blocks.0.cross_attn.kv_linear:1152"],
    "hunyuan_dit": ["blocks.0.attn1.Wqkv:1408", "blocks.0.attn1.to_q:1408"],
    "stable_cascade": ["down_blocks.0.2.attention.attn.to_q:2048", "up_blocks.1.47.attention.to_q:2048"],
    "kandinsky5": ["visual_transformer_blocks.0.self_attention.to_query:1792"],
}
STRANGERS = [
    "single_blocks.37.linear1:3072",  # Flux
    "single_transformer_blocks.37.attn.to_q:3072",
    "blocks.0.self_attn.q_proj:2048",  # Anima
    "transformer_blocks.0.attn1.to_q:1920",  # CogVideoX
    "layers.0.attention.qkv:3840",  # Z-Image
    "layers.0.attention.to_q:3840",
    "blocks.0.attn.qkv:1024",
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q:320",
    "transformer_blocks.59.attn.add_q_proj:3072",  # Qwen-Image
    "transformer_blocks.19.attn.to_q:3072",
]
CASES = [(name, one) for name, parts in PARTS.items() for one in parts]


def families_of(component: str, one: str, *metadata: str) -> str | None:
    module, _, width = one.rpartition(":")
    facts = [f"{component}:{module.replace('.', '_')}:{width}", *metadata]
    found = recognise(known_architectures(), facts)
    return None if found is None else found.name


@pytest.mark.parametrize("component", ["denoiser", "?"])
@pytest.mark.parametrize(("name", "one"), CASES)
def test_one_layer_is_enough(name, one, component):
    assert families_of(component, one) == name


@pytest.mark.parametrize("one", STRANGERS)
def test_layers_of_others_are_not_taken_for_ours(one):
    assert families_of("denoiser", one) not in PARTS


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("meta:ss_base_model_version:wan", "wan"),
        ("meta:modelspec_architecture:wan2.1/lora", "wan"),
        ("meta:ss_base_model_version:hunyuan_video", "hunyuan_video"),
        ("meta:modelspec_architecture:hunyuan-video/lora", "hunyuan_video"),
        ("meta:ss_base_model_version:framepack", "hunyuan_video"),
        ("meta:ss_base_model_version:ltx2", "ltx2"),
        ("meta:modelspec_architecture:lumina-2/lora", "lumina2"),
        ("meta:ss_base_model_version:hidream_i1", "hidream"),
        ("meta:ss_base_model_version:kandinsky5", "kandinsky5"),
        ("meta:modelspec_architecture:Kandinsky-5/lora", "kandinsky5"),
    ],
)
def test_metadata_of_trainers(line, name):
    found = recognise(known_architectures(), [line])
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "line", ["meta:ss_base_model_version:hunyuan_video_1_5", "meta:modelspec_architecture:hunyuan-video-1.5/lora"]
)
def test_other_versions_are_other_families(line):
    found = recognise(known_architectures(), [line])
    assert found is None or found.name != "hunyuan_video"


def test_flux_blocks_of_hunyuan_video_are_not_flux():
    """As musubi-tuner trains them: all names that are flattened are Flux's, but there are more blocks."""
    lines = [f"denoiser:double_blocks_{i}_img_attn_qkv:3072" for i in range(20)]
    lines += [f"denoiser:single_blocks_{i}_linear1:3072" for i in range(40)]
    lines += [f"denoiser:single_blocks_{i}_linear2:15360" for i in range(40)]
    found = recognise(known_architectures(), lines)
    assert found is not None
    assert found.name == "hunyuan_video"
