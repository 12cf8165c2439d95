"""Every kind on the UNet's layers: as PEFT saves it, and for a 1x1 convolution where the model has a linear layer."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import nn

from lib_lora import load_network
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.index import LayerIndex
from tests.covering import some_of
from tests.fakes.families import diffusers_unet
from tests.fakes.files import adapters_of
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import Model
from tests.fakes.ldm import UNetConfig, unet_shapes

from .test_trainer_keys import PEFT

SMALL = UNetConfig(32, (1, 2), (1, 1), 1, 64, linear=False)
LINEAR = r".*(attn1\.to_q|attn2\.to_k|to_out\.0|ff\.net\.0\.proj|ff\.net\.2|time_emb_proj|linear_1)"
BOTH = rf"{LINEAR}|.*(proj_in|proj_out|conv1|conv_shortcut|downsamplers\.0\.conv)"


@lru_cache
def trees() -> dict[str, nn.Module]:
    return {"diffusers": diffusers_unet("sd1", SMALL), "ldm": skeleton(unet_shapes(SMALL))}


@lru_cache
def indexes() -> dict[str, LayerIndex]:
    return {tree: LayerIndex("unet", module) for tree, module in trees().items()}


CASES = [case for case in PEFT if "block.fc" in PEFT[case][2]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # each about training
def test_what_peft_saves_of_a_unet_acts_on_both_trees(tmp_path, case):
    """Layer by layer, the same adapter: diffusers' names on diffusers' tree, and on that of a checkpoint."""
    peft = pytest.importorskip("peft")
    name, arguments, by_module = PEFT[case]
    arguments = {**arguments, "target_modules": BOTH if "conv" in by_module else LINEAR}
    if "feedforward_modules" in arguments:
        arguments["feedforward_modules"] = r".*(ff\.net\.\d.*|conv1)"
    unet = diffusers_unet("sd1", SMALL).to_empty(device="cpu")
    for parameter in unet.parameters():
        nn.init.normal_(parameter)
    made = peft.get_peft_model(unet, getattr(peft, name)(**arguments))
    made.save_pretrained(tmp_path)
    trained = {key.removeprefix("base_model.model.") for key in made.targeted_module_names}
    networks = {
        tree: load_network(tmp_path / "adapter_model.safetensors", {"unet": module}) for tree, module in trees().items()
    }
    if case == "vera without projection":  # which no model alone can make good
        assert all(
            not network.bindings and len(network.report.unused) == 2 * len(trained) for network in networks.values()
        )
        return
    assert len(trained) >= (20 if "conv" in by_module else 15)
    for network in networks.values():
        assert (network.report.unused, network.report.hit) == ((), len(trained))
    for layer in trained:
        first, other = (adapter_of(networks[tree], tree, layer) for tree in ("diffusers", "ldm"))
        assert first.keys() == other.keys()
        assert all(torch.equal(first[one], other[one]) for one in first), layer


def adapter_of(network, tree: str, layer: str) -> dict[str, torch.Tensor]:
    place = indexes()[tree].find(layer)
    assert place is not None, layer
    return dict(adapters_of(network)["unet"][place.name].tensors())


BOUND = 1e-6
"""Files hold fp32; the largest error over the largest value."""
EITHER = [one for one in SAMPLES if {"linear", "conv"} <= one.layers and "onetrainer" not in one.name]
"""OneTrainer's OFT turns the other way round on a convolution, and its file is the same for both."""


@some_of(("sample", "saved"), EITHER, ["linear", "conv"], strength=1)
def test_a_linear_layer_and_a_1x1_convolution_are_one(tmp_path, sample, saved):
    """SD 1's proj_in is a convolution, SD 2's is not, and trainers save either as the other."""
    shapes = {"linear": (48, 24), "conv": (48, 24, 1, 1)}
    layers: dict[str, nn.Module] = {"linear": nn.Linear(24, 48), "conv": nn.Conv2d(24, 48, 1)}
    path, tensors = sample.write(tmp_path, shapes[saved])
    model = Model(layers["conv" if saved == "linear" else "linear"].requires_grad_(False))
    network = load_network(path, {"unet": model})
    assert network.report.unused == ()
    weight = model.layer.weight.double()
    want = sample.weight(tensors, weight.reshape(shapes[saved]), 1.0).reshape(weight.shape) - weight
    got = network.delta_weight("unet", "layer", torch.float64)
    assert (got - want).abs().max() <= BOUND * want.abs().max()
