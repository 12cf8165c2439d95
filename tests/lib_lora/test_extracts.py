"""Differences of two checkpoints, as ComfyUI extracts them: matrices as LoRA, biases and norms as they are.

So are CausVid, self-forcing and the like for Wan: LoRA keys with `diff_b` beside them, and `diff` for everything small.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lib_lora import load_network
from lib_lora.naming.network import Network
from tests.fakes.files import adapters_of, pair, save
from tests.families.hunyuan_video import build as hunyuan_video
from tests.families.wan import WIDTH
from tests.families.wan import build as wan

PREFIX = "diffusion_model."
NORMS = {  # Wan's own names -> diffusers'
    "blocks.1.norm3": "blocks.1.norm2",
    "blocks.1.self_attn.norm_q": "blocks.1.attn1.norm_q",
    "blocks.1.self_attn.norm_k": "blocks.1.attn1.norm_k",
    "blocks.1.cross_attn.norm_q": "blocks.1.attn2.norm_q",
    "blocks.1.cross_attn.norm_k": "blocks.1.attn2.norm_k",
    "blocks.1.cross_attn.norm_k_img": "blocks.1.attn2.norm_added_k",
    "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
}
LINEARS = {
    "blocks.1.self_attn.q": "blocks.1.attn1.to_q",
    "blocks.1.cross_attn.v_img": "blocks.1.attn2.add_v_proj",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
}
PARAMETERS = ("blocks.1.modulation.diff", "head.modulation.diff")
"""What is no layer, in any tree."""


def number(name: str, *shape: int) -> Tensor:
    return torch.full(shape, float(len(name)))  # another for each, as far as it matters


@pytest.fixture
def extract(tmp_path: Path) -> Path:
    made = {f"{PREFIX}{norm}.diff": number(norm, WIDTH) for norm in NORMS}
    made |= {f"{PREFIX}{norm}.diff_b": -number(norm, WIDTH) for norm in ("blocks.1.norm3", "img_emb.proj.4")}
    for linear in LINEARS:
        made |= pair(PREFIX + linear, (WIDTH, WIDTH), 2)
        made[f"{PREFIX}{linear}.diff_b"] = number(linear, WIDTH)
    made |= {f"{PREFIX}head.head.diff": number("head", 64, WIDTH), f"{PREFIX}head.head.diff_b": number("head", 64)}
    made[f"{PREFIX}patch_embedding.diff"] = number("patch", WIDTH, 36, 1, 2, 2)
    made |= {PREFIX + name: torch.ones(1, 6, WIDTH) for name in PARAMETERS}
    return save(tmp_path / "extract.safetensors", made)


@pytest.fixture
def network(extract: Path) -> Network:
    return load_network(extract, {"transformer": wan(False)})


def test_every_key_of_a_layer_is_used(network):
    assert network.report.reasons() == {
        "no module of that name in transformer": [PREFIX + name for name in sorted(PARAMETERS)]
    }
    assert network.report.hit == len(NORMS) + len(LINEARS) + 2
    assert network.report.architecture == "wan"


@pytest.mark.parametrize("norm", NORMS)
def test_norms_get_their_difference(network, norm):
    adapter = adapters_of(network)["transformer"][NORMS[norm]]
    assert torch.equal(network.delta_weight("transformer", norm), number(norm, WIDTH))
    if adapter.has_bias:
        assert torch.equal(adapter.delta_bias(), -number(norm, WIDTH))
    assert adapter.has_bias == (norm in ("blocks.1.norm3", "img_emb.proj.4"))


@pytest.mark.parametrize("linear", LINEARS)
def test_biases_get_theirs_beside_a_lora(network, linear):
    adapter = adapters_of(network)["transformer"][LINEARS[linear]]
    assert adapter.rank == 2
    assert torch.equal(adapter.delta_bias(), number(linear, WIDTH))


def test_an_extract_of_a_model_with_more_inputs_leaves_those_out(tmp_path):
    """The layer that takes more than this model has to give is reported, the others act."""
    made = pair(f"{PREFIX}blocks.0.cross_attn.k_img", (WIDTH, WIDTH), 2)
    made |= pair(f"{PREFIX}blocks.0.cross_attn.k", (WIDTH, WIDTH), 2)
    made[f"{PREFIX}patch_embedding.diff"] = torch.zeros(WIDTH, 48, 1, 2, 2)
    report = load_network(save(tmp_path / "a.safetensors", made), {"transformer": wan(False)}).report
    (reason,) = report.reasons()
    assert reason.startswith(
        "made for Wan Fun Control, which has 48 inputs in patch_embedding where the loaded model has "
    )
    assert report.hit == 2


@pytest.mark.parametrize("biased", [False, True])
def test_shift_and_scale_change_places_in_the_outputs_alone(tmp_path, biased):
    """HunyuanVideo's last modulation: diffusers' converter of LoRA swaps and cuts the factor of the inputs as well."""
    layer, bias = f"{PREFIX}final_layer.adaLN_modulation.1", torch.arange(6144.0)
    made = pair(layer, (6144, 3072), 2) | ({f"{layer}.diff_b": bias} if biased else {})
    network = load_network(save(tmp_path / "a.safetensors", made), {"transformer": hunyuan_video(False)})
    assert network.report.unused == ()
    adapter = adapters_of(network)["transformer"]["norm_out.linear"]
    if biased:
        assert torch.equal(adapter.delta_bias(), swapped(bias))
    else:
        assert torch.equal(adapter.factors().down, made[f"{layer}.lora_down.weight"])
        assert torch.equal(adapter.factors().up, swapped(made[f"{layer}.lora_up.weight"]))


def swapped(tensor: Tensor) -> Tensor:
    return torch.cat(tensor.chunk(2)[::-1])
