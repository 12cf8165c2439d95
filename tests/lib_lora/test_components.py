"""Which component a key is for, where a model has two that do the same."""

from __future__ import annotations

import re
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lib_lora import load_network
from lib_lora.files.components import EXPERTS, REFERENCE, candidates, role
from lib_lora.naming.architectures.wan import experts_named
from tests.covering import some_of
from tests.fakes.files import adapters_of, pair, save

HIGH, LOW = (("transformer",), ("transformer_2",))
NAMES = {
    "style_high_noise": HIGH,
    "style_low_noise_000001500": LOW,
    "Wan22-I2V-HighNoise": HIGH,
    "wan2.2_t2v_lownoise_v1": LOW,
    "noise-low-style": LOW,
    "Wan22_A14B_T2V_HIGH_Lightning_4steps_lora_250928_rank128_fp16": HIGH,
    "Wan2.2-Lightning_I2V-A14B-4steps-lora_LOW_fp16": LOW,
    "lightning LOW 4 steps high_noise": HIGH,
    "HIGH_lowVRAM": HIGH,
    "angle HIGH": HIGH,
    "mychar": (),
    "low_angle": (),
    "low light portrait": (),
    "high-resolution": (),
    "highway": (),
    "high_heels": (),
    "wan21_high_ponytail": (),
    "high_school_uniform": (),
    "high_motion": (),
    "HIGH_SCHOOL": (),
    "low_cut_top": (),
    "thigh-high_boots": (),
    "high5": (),
    "mychar-low-v2": LOW,
    "mychar_wan22_high_e40": HIGH,
    "Char_high": HIGH,
    "slow_noise": (),
    "HIGH+LOW": EXPERTS,
    "style_low_high_noise": EXPERTS,
}


def test_the_name_of_a_file_tells_which_expert_it_is_for():
    assert {name: experts_named(name) for name in NAMES} == NAMES


@given(st.text(max_size=60))
def test_any_name_speaks_of_experts_or_of_none(name):
    assert set(experts_named(name)) <= set(EXPERTS)


PARTS = [
    *"x_-. ",
    "__",
    "high",
    "low",
    "shigh",
    "2high",
    "v1",
    "1.0",
    "1",
    "e10",
    "fp16",
    "r32",
    "lora",
    "14b",
    "3steps",
]
BEHIND = (
    r"v?\d[\d.]*|e(?:poch)?\d+|(?:\d+)?steps?\d*|fp\d+|bf16|r(?:ank)?\d+|lora|[ti]2v|wan\d*|a?14b|final|last|comfy|pro"
)


@given(st.lists(st.sampled_from(PARTS), max_size=9).map("".join))
def test_the_last_word_counts_whatever_versions_are_behind_it(name):
    """As one regular expression says it, which takes for ever where it does not match."""
    want = set(re.findall(rf"(?<![a-z])(high|low)(?=(?:[\W_]+(?:high|low|{BEHIND}))*[\W_]*$)", name))
    assert experts_named(name) == tuple(one for one, word in zip(EXPERTS, ("high", "low"), strict=True) if word in want)


@pytest.mark.parametrize("end", ["x", "", "noise"])
@pytest.mark.parametrize(
    "many",
    [
        "high" + "_1.1" * 22,
        "high_" * 4000,
        "high" + "_" * 20_000,
        "1" * 20_000,
        "1." * 9000,
        "high noise",
        "noise_" * 4000,
    ],
)
def test_no_name_of_a_file_takes_long(many, end):
    began = time.process_time()
    experts_named(many + end)
    assert time.process_time() - began < 0.5, "seconds"


@given(
    st.lists(
        st.sampled_from(["unet", "prior", "decoder", *EXPERTS, REFERENCE, "text_encoder", "text_encoder_2"]),
        unique=True,
    )
)
def test_only_components_of_the_same_role_are_candidates(present):
    for wanted in (None, "denoiser", "prior", *EXPERTS, "text_encoder", "text_encoder_2", "vae"):
        found = [name for tier in candidates(wanted, present) for name in tier]
        assert len(set(found)) == len(found)
        assert set(found) <= set(present)
        assert wanted is None or {role(name) for name in found} <= {role(wanted)}


WIDTH = 8


def experts() -> dict[str, nn.Module]:
    """Two models of one tree under Wan's own names, on meta."""
    with torch.device("meta"):
        return {name: nn.ModuleDict({"blocks": nn.ModuleList([Block()])}) for name in EXPERTS}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict({part: nn.Linear(WIDTH, WIDTH) for part in "qkvo"})


def keys(prefix: str, part: str = "q") -> dict[str, torch.Tensor]:
    name = f"blocks.0.self_attn.{part}"
    return pair(prefix + (name.replace(".", "_") if "lora_unet" in prefix else name), (WIDTH, WIDTH), 2)


@some_of(
    ("prefix", "stem", "metadata", "wanted"),
    ["", "diffusion_model.", "transformer.", "lora_unet_", "lora_unet__", "lycoris_"],
    [
        pytest.param("style_high_noise", {}, HIGH),
        pytest.param("style_low_noise", {}, LOW),
        pytest.param("style", {}, EXPERTS),
        pytest.param("renamed", {"ss_output_name": "style_low_noise"}, LOW),
        pytest.param("style_high_noise", {"ss_output_name": "style_low_noise"}, HIGH),
    ],
    strength=1,
)
def test_a_file_goes_to_the_expert_it_is_named_after(prefix, stem, metadata, wanted, tmp_path):
    """Whatever its keys call the denoiser, with the trainer's metadata and without."""
    made = keys(prefix) if prefix != "lycoris_" else pair("lycoris_blocks_0_self_attn_q", (WIDTH, WIDTH), 2)
    network = load_network(save(tmp_path / f"{stem}.safetensors", made, metadata), experts())
    assert network.report.unused == ()
    assert tuple(adapters_of(network)) == wanted
    assert (network.report.hit, network.report.changed) == (1, len(wanted))
    noise = {HIGH: "high", LOW: "low"}.get(wanted, "")
    assert network.report.noise == noise
    assert (f"1 of 1 layers, in {noise} noise only" in network.report.summary()) == bool(noise)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("transformer.", "transformer_2."),
        ("diffusion_model.", "transformer_2."),
        ("diffusion_model.transformer_1.", "diffusion_model.transformer_2."),
    ],
)
def test_keys_of_both_experts_in_one_file_keep_apart(first, second, tmp_path):
    """Also in a file whose name speaks of one of them."""
    made = {**keys(first, "q"), **keys(first, "k"), **keys(second, "q")}
    network = load_network(save(tmp_path / "style_low_noise.safetensors", made), experts())
    assert network.report.unused == ()
    found = {name: set(layers) for name, layers in adapters_of(network).items()}
    assert found == {
        "transformer": {"blocks.0.self_attn.q", "blocks.0.self_attn.k"},
        "transformer_2": {"blocks.0.self_attn.q"},
    }
    assert network.report.format == "diffusers"


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [("transformer.", "transformer"), ("diffusion_model.", "transformer"), ("transformer_ref.", "transformer_ref")],
)
def test_a_file_of_minimax_h3_is_for_one_of_its_denoisers(prefix, wanted, tmp_path):
    """Their layers have the same names; diffusers, too, gives a file that says nothing to `transformer`."""
    both = {"transformer_ref": experts()["transformer"], "transformer": experts()["transformer"]}
    path = save(tmp_path / "style.safetensors", keys(prefix))
    assert tuple(adapters_of(load_network(path, both))) == (wanted,)
    alone = load_network(path, {"transformer_ref": both["transformer_ref"]})
    assert tuple(adapters_of(alone)) == ("transformer_ref",)
    assert not adapters_of(load_network(path, {"transformer": both["transformer"]})) or prefix != "transformer_ref."


@pytest.mark.parametrize(("keys_of", "shape"), [("nowhere", (WIDTH, WIDTH)), ("q", (WIDTH, WIDTH + 1))])
def test_what_does_not_fit_the_expert_meant_is_told_of_it(keys_of, shape, tmp_path):
    """A file for low noise whose keys say `transformer`, as those of one transformer do."""
    made = pair(f"transformer.blocks.0.self_attn.{keys_of}", shape, 2)
    report = load_network(save(tmp_path / "style_low_noise.safetensors", made), experts()).report
    assert {item.cause for item in report.unused} == {"no_module" if keys_of == "nowhere" else "shape"}
    assert all("transformer_2" in item.reason + item.detail for item in report.unused)


@pytest.mark.parametrize("present", EXPERTS)
@pytest.mark.parametrize("stem", ["style_high_noise", "style"])
def test_the_only_expert_that_is_there_gets_the_file(present, stem, tmp_path):
    path = save(tmp_path / f"{stem}.safetensors", keys("diffusion_model."))
    network = load_network(path, {present: experts()[present]})
    assert tuple(adapters_of(network)) == (present,)


def test_keys_for_the_second_expert_alone_go_nowhere_else(tmp_path):
    path = save(tmp_path / "style.safetensors", {**keys("transformer_2."), **keys("transformer.", "k")})
    report = load_network(path, {"transformer": experts()["transformer"]}).report
    assert list(report.reasons()) == ["component transformer_2 is absent in this model"]
    assert report.hit == 1
