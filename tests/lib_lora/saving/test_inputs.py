"""The error of a file by what its layers make of their inputs: of all inputs, against a run of the layers in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lib_lora import ArgumentError, ComponentError, InputSamples, convert_file, load_network
from tests.fakes.files import pair, save

SHAPES = {"a": (48, 24), "b": (16, 48), "c": (24, 8, 3, 3), "d": (8, 4, 3, 3)}


class Net(nn.Module):
    """Linear layers, a convolution with all that one may have, and one of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(24, 48), nn.Linear(48, 16)
        self.c = nn.Conv2d(8, 24, 3, stride=2, padding=(2, 1), dilation=(1, 2), padding_mode="reflect")
        self.d, self.e = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        """Call all but the last layer."""
        return self.b(torch.relu(self.a(x))).sum() + self.c(self.d(picture)).sum()


@pytest.fixture
def net():
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return Net().requires_grad_(False)


@pytest.fixture
def lora(tmp_path):
    tensors = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        tensors |= pair(f"lora_unet_{name}", shape, 8, alpha=8, seed=i)
    return save(tmp_path / "style.safetensors", tensors | pair("lora_unet_e", (24, 24), 8, alpha=8))


def calls(net):
    """Yield calls whose inputs lie mostly along a few directions, so that a weighted error is another one."""
    generator = torch.Generator().manual_seed(3)
    scale = torch.logspace(0, -2, 24)
    for _ in range(40):
        x = torch.randn(2, 5, 24, generator=generator) * scale
        yield x, torch.randn(2, 8, 9, 7, generator=generator) * torch.logspace(0, -2, 8).view(-1, 1, 1)


def test_the_error_of_outputs_is_told_for_each_layer_and_in_all(net, lora, tmp_path):
    before = torch.random.get_rng_state()
    with InputSamples({"unet": net}, count=150) as inputs:
        for args in calls(net):
            net(*args)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not any(layer._forward_pre_hooks for layer in net.modules())
    saved = convert_file(lora, tmp_path / "small.safetensors", rank=3, inputs=inputs, components={"unet": net})
    whole, small = (load_network(path, {"unet": net}) for path in (lora, saved.path))
    found = {layer.name: layer for layer in saved.layers}
    assert found["d"].output_error is None, "inputs of groups are other ones"
    assert found["e"].output_error is None, "was not called"
    given = {name: [] for name in "abc"}
    hooks = [
        net.get_submodule(name).register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0]))
        for name, kept in given.items()
    ]
    for args in calls(net):
        net(*args)
    for hook in hooks:  # the calls below are no inputs
        hook.remove()
    for name, kept in given.items():
        layer = net.get_submodule(name).double()
        layer.bias.zero_()
        sizes = []
        for network in (whole, small):
            delta = network.delta_weight("unet", name, torch.float64)
            layer.weight.copy_(delta - sizes[0][0] if sizes else delta)
            sizes.append((delta, torch.cat([layer(x.double()).flatten() for x in kept]).norm()))
        error = float(sizes[1][1] / sizes[0][1])
        assert found[name].output_error == pytest.approx(error, rel=0.15), name
        assert abs(found[name].error - error) > 0.01, "another one than of the numbers"
    assert min(found[one].output_error for one in "abc") < saved.output_error
    assert saved.output_error < max(found[one].output_error for one in "abc")
    assert f"error of the outputs for the inputs of the layers: {saved.output_error:.2e}" in saved.summary()
    told = []
    for number, options in enumerate([{"rank": 3}, {"size": 6000}, {"kind": "lokr", "factor": 4, "rank": 2}, {}]):
        path = tmp_path / f"{number}.safetensors"
        chosen = {**options, "inputs": inputs, "components": {"unet": net}}
        preview = convert_file(lora, path, preview=True, progress=lambda *done: told.append(done), **chosen)
        assert told[-1] == (5, 5), "all layers are gone through to the end"
        kept = convert_file(lora, path, **chosen)
        pairs = [(one.output_error, other.output_error) for one, other in zip(preview.layers, kept.layers, strict=True)]
        assert [one is None for one, _ in pairs] == [other is None for _, other in pairs]
        for one, other in [(preview.output_error, kept.output_error), *[one for one in pairs if one[0] is not None]]:
            assert one == pytest.approx(other, rel=1e-4, abs=1e-6), "but for rounding"
        assert (preview.output_error > 0.01) == bool(options)


def test_the_same_inputs_are_kept_for_a_seed_and_never_more_than_wanted(net):
    found = []
    for seed in (0, 0, 1):
        with InputSamples({"unet": net}, count=10, seed=seed) as inputs:
            for args in calls(net):
                net(*args)
        found.append(inputs.of("unet", "a"))
    assert found[0].shape == (24, 10)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert inputs.of("unet", "e") is None


def test_wrong_arguments(net, lora, tmp_path):
    with pytest.raises(ComponentError, match="write InputSamples"):
        InputSamples(net)
    with pytest.raises(ArgumentError, match="count"):
        InputSamples({"unet": net}, count="all")
    with pytest.raises(ArgumentError, match="inputs must be InputSamples, or None"):
        convert_file(lora, tmp_path / "a.safetensors", inputs=[1])
