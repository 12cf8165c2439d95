"""Wan's other models: VACE, Animate, the small ones and the 5B have the names of the large one, and more layers."""

from __future__ import annotations

import diffusers
import pytest
import torch
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from torch import Tensor, nn

from lib_lora import load_network
from lib_lora.naming.index import LayerIndex
from lib_lora.naming.places import Place
from tests.conftest import TORCH
from tests.fakes.files import pair, save
from tests.families.base import Shapes, below, linear, norm, on_meta
from tests.families.wan import WIDTH, block

if TORCH < (2, 4):
    pytest.skip("torch before 2.4 has no norm that Wan has", allow_module_level=True)

ADAPTER = below(
    "face_adapter.fuser_blocks.0",
    linear(WIDTH, WIDTH, "linear1_q", "linear2")
    | linear(2 * WIDTH, WIDTH, "linear1_kv")
    | norm(128, "q_norm", "k_norm"),
)
VACE = below("vace_blocks.0", block() | linear(WIDTH, WIDTH, "before_proj", "after_proj"))
MODELS: dict[str, tuple[nn.Module, Shapes]] = {
    "vace": (on_meta(diffusers.WanVACETransformer3DModel, num_layers=1, vace_layers=[0]), VACE),
    "animate": (on_meta(diffusers.WanAnimateTransformer3DModel, num_layers=5), ADAPTER),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_that_others_have_not_are_where_the_converter_puts_them(name):
    model, native = MODELS[name]
    index = LayerIndex("transformer", model)
    numbered = {
        key: (torch.arange(shape[0], dtype=torch.float64) + 1e6 * i).view(-1, *(1,) * (len(shape) - 1)).expand(shape)
        for i, (key, shape) in enumerate(native.items())
        if "_img" not in key  # VACE has no layers for pictures
    }
    converted = convert_wan_transformer_to_diffusers(dict(numbered))
    for key in numbered:
        layer, _, param = key.rpartition(".")
        if param != "weight":
            continue
        place = index.find(layer)
        assert place is not None, layer
        assert torch.equal(rows(place, converted), first(numbered[key])), layer


def first(weight: Tensor) -> Tensor:
    return weight.reshape(weight.shape[0], -1)[:, 0]


def rows(place: Place, converted: dict[str, Tensor]) -> Tensor:
    parts = [first(converted[f"{one.path}.weight"])[one.slice] for one in place.windows]
    return torch.cat(parts)


@pytest.mark.parametrize(("width", "mlp", "heads"), [(1536, 8960, 12), (3072, 14336, 24), (5120, 13824, 40)])
def test_every_size_is_known(width, mlp, heads, tmp_path):
    """1.3B, 5B and 14B, from text: no layers for pictures."""
    model = on_meta(
        diffusers.WanTransformer3DModel, num_layers=1, num_attention_heads=heads, attention_head_dim=128, ffn_dim=mlp
    )
    made = pair("lora_unet_blocks_0_self_attn_q", (width, width), 2) | pair("lora_unet_blocks_0_ffn_0", (mlp, width), 2)
    network = load_network(save(tmp_path / "a.safetensors", made), {"transformer": model})
    assert (network.report.unused, network.report.architecture) == ((), "wan")


def test_a_file_for_pictures_on_a_model_for_text_says_what_does_not_fit(tmp_path):
    model = on_meta(diffusers.WanTransformer3DModel, num_layers=1)
    made = pair("diffusion_model.blocks.0.cross_attn.k", (WIDTH, WIDTH), 2)
    made |= pair("diffusion_model.blocks.0.cross_attn.k_img", (WIDTH, WIDTH), 2)
    report = load_network(save(tmp_path / "a.safetensors", made), {"transformer": model}).report
    image = "Wan 2.1 for image to video"
    assert {reason: len(keys) for reason, keys in report.reasons().items()} == {
        f"of a layer that only {image} has; load {image}, or use a file for the loaded model": 2
    }
    assert report.hit == 1
