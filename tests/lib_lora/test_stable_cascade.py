"""Stable Cascade has two denoisers, and an attention that its own code has as torch's."""

from __future__ import annotations

import pytest
from torch import nn

from lib_lora import inspect_file, load_network
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.index import LayerIndex
from tests.fakes.files import adapters_of, pair, save

BLOCK = "down_blocks.0.2.attention"


def diffusers(width: int) -> nn.Module:
    return skeleton({f"{BLOCK}.{name}.weight": (width, width) for name in ("to_q", "to_k", "to_v", "to_out.0")})


def test_torchs_attention_has_the_names_of_diffusers():
    native = skeleton({f"{BLOCK}.attn.in_proj_weight": (24, 8), f"{BLOCK}.attn.out_proj.weight": (8, 8)})
    index = LayerIndex("prior", native)
    for i, part in enumerate("qkv"):
        for name in (f"{BLOCK}.to_{part}", f"{BLOCK}.attn.to_{part}"):
            place = index.find(name)
            assert place is not None, name
            (window,) = place.windows
            assert (window.param, window.rows) == ("in_proj_weight", (8 * i, 8 * i + 8))
    for name in (f"{BLOCK}.to_out.0", f"{BLOCK}.attn.out_proj"):
        place = index.find(name)
        assert place is not None
        assert [one.param for one in place.windows] == ["out_proj.weight"]


@pytest.mark.parametrize(
    "layer",
    ["0.2.attention.attn.to_q", "0.2.kv_mapper.1", "0.1.channelwise.0", "0.1.mapper_sca", "0.0.depthwise"],
)
def test_one_layer_tells_the_family_for_sure(layer, tmp_path):
    """Stable Diffusion's blocks have a name between their number and the layer's."""
    path = save(tmp_path / "a.safetensors", pair(f"prior.down_blocks.{layer}", (8, 8), 2))
    family = inspect_file(path).family
    assert family is not None
    assert (family.name, family.sure) == ("stable_cascade", True)


@pytest.mark.parametrize("key", [f"lora_prior_unet_{BLOCK.replace('.', '_')}_attn_to_q", f"prior.{BLOCK}.to_q"])
def test_a_file_for_the_prior_changes_no_decoder(key, tmp_path):
    path = save(tmp_path / "a.safetensors", pair(key, (8, 8), 2))
    network = load_network(path, {"decoder": diffusers(8), "prior": diffusers(8)})
    assert {name: set(layers) for name, layers in adapters_of(network).items()} == {"prior": {f"{BLOCK}.to_q"}}


def test_without_a_prior_the_reason_says_so(tmp_path):
    path = save(tmp_path / "a.safetensors", pair(f"prior.{BLOCK}.to_q", (8, 8), 2))
    report = load_network(path, {"unet": skeleton({"conv_in.weight": (4, 4, 3, 3)})}).report
    assert list(report.reasons()) == ["component prior is absent in this model"]
