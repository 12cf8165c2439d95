"""The simulated accelerator does what a real one does: moves, refuses, computes the same numbers, and goes away."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.fakes.accelerator import COUNT, SimulatedTensor, device, simulated
from tests.fakes.models import exact_arithmetic, tiny_text_encoder, tiny_unet, unet_inputs
from tests.fakes.schemes import call


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with simulated(), torch.no_grad():
        yield device()


def test_moves_keep_the_values_and_the_parameter(gpu: torch.device) -> None:
    layer = nn.Linear(3, 2)
    weight, values = layer.weight, layer.weight.detach().clone()
    for target in (gpu, device(1), torch.device("cpu"), gpu):
        layer.to(target)
        assert layer.weight is weight  # as on hardware, where `.to()` sets `.data`
        assert isinstance(weight, nn.Parameter)
        assert weight.device == layer.bias.device == target
        assert torch.equal(weight.cpu(), values)
    layer.half()
    assert weight.dtype == torch.float16
    assert torch.equal(weight.cpu(), values.half())
    layer.to("meta")
    assert weight.device.type == "meta"
    assert layer.to_empty(device=gpu).weight.device == gpu


def test_results_are_where_the_operands_are(gpu: torch.device) -> None:
    x = torch.ones(2, 2, device=device(1))
    results = (x + 1, x @ x, x.sum(), x.narrow(0, 0, 1), torch.zeros_like(x), x.new_empty(3), x.bfloat16())
    assert {result.device for result in results} == {device(1)}
    assert torch.tensor([1.0], device=gpu).device == torch.arange(3, device=gpu).device == gpu
    assert (x + 1).sum().item() == 8
    assert x.to("cpu").device.type == "cpu"
    assert torch.zeros(2, device="lazy").device == gpu


def test_writes_show_through_views(gpu: torch.device) -> None:
    x = torch.zeros(3, 3, device=gpu)
    x.narrow(0, 1, 1).fill_(2)
    x.t()[0].add_(torch.ones(3, device=gpu))
    x[2, 2] = 5
    x[0].copy_(torch.full((3,), 7.0))
    assert x.tolist() == [[7, 7, 7], [3, 2, 2], [1, 0, 5]]


def test_data_can_be_swapped_between_devices(gpu: torch.device) -> None:
    parameter = nn.Parameter(torch.arange(3.0), requires_grad=False)
    host = parameter.data
    for source in (host.to(gpu), host, host.to(device(1)), host.to(gpu, torch.float16), host):
        parameter.data = source
        assert parameter.device == source.device
        assert parameter.dtype == source.dtype
        assert parameter.tolist() == [0, 1, 2]


def test_copies_are_independent(gpu: torch.device) -> None:
    layer = nn.Linear(2, 2, device=gpu)
    twin = copy.deepcopy(layer)
    twin.weight.zero_()
    assert layer.weight.abs().sum().item() > 0
    assert twin.weight.device == gpu


def test_mixed_devices_are_refused(gpu: torch.device) -> None:
    here, there, cpu = torch.ones(4, 4, device=gpu), torch.ones(4, 4, device=device(1)), torch.ones(4, 4)
    message = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"
    with pytest.raises(RuntimeError, match=message.format("lazy:0", "cpu")):
        here @ cpu
    with pytest.raises(RuntimeError, match=message.format("lazy:0", "lazy:1")):
        here + there
    with pytest.raises(RuntimeError, match=message.format("cpu", "lazy:0")):
        nn.Linear(4, 4)(here)
    with pytest.raises(RuntimeError, match=message.format("lazy:1", "cpu")):
        there.add_(cpu)
    with pytest.raises(RuntimeError, match=message.format("cpu", "lazy:0")):
        cpu + torch.tensor(1.0, device=gpu)  # a scalar is free only on the CPU
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device=device(COUNT))
    assert (here * torch.tensor(2.0)).device == gpu
    assert here[torch.tensor([0, 1])].shape == (2, 4)


@pytest.mark.parametrize(
    ("dtype", "theirs", "ours"),
    [
        (torch.float32, "torch.lazy.FloatTensor", "torch.FloatTensor"),
        (torch.bfloat16, "LazyBFloat16Type", "CPUBFloat16Type"),
    ],
)
def test_convolution_has_its_own_words(dtype: torch.dtype, theirs: str, ours: str, gpu: torch.device) -> None:
    layer, x = nn.Conv2d(1, 1, 1, dtype=dtype), torch.ones(1, 1, 1, 1, dtype=dtype)
    with pytest.raises(RuntimeError, match=rf"^Input type \({theirs}\) and weight type \({ours}\) should be the same$"):
        layer(x.to(gpu))
    layer.weight.data = layer.weight.data.to(gpu)
    with pytest.raises(RuntimeError, match=rf"^Input type \({theirs}\) and bias type \({ours}\) should be the same$"):
        layer(x.to(gpu))
    with pytest.raises(
        RuntimeError, match=rf"^Input type \({ours}\) and weight type \({theirs}\) should be the same or"
    ):
        layer(x)


def test_whole_models_give_the_bits_of_the_cpu() -> None:
    unet, encoder, inputs = tiny_unet(0), tiny_text_encoder(0), unet_inputs(0)
    ids = torch.tensor([[98, 1, 2, 99]])
    with exact_arithmetic():
        image, text = call(unet, inputs), encoder(ids)[0]
        with simulated():
            assert torch.equal(call(unet.to(device()), inputs, device()), image)
            assert torch.equal(encoder.to(device(1))(ids.to(device(1)))[0].cpu(), text)
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                call(unet, inputs)


def globals_of_torch() -> tuple[object, ...]:
    swapping = getattr(torch.__future__, "get_swap_module_params_on_conversion", bool)()  # since torch 2.3
    return swapping, set(vars(torch.Tensor)), set(sys.modules), hasattr(torch, "lazy")


def failing() -> None:
    with simulated():
        assert torch.get_device_module("lazy").device_count() == COUNT
        assert isinstance(torch.ones(1, device="lazy"), SimulatedTensor)
        raise ZeroDivisionError


def test_nothing_is_left_behind() -> None:
    before = globals_of_torch()
    with pytest.raises(ZeroDivisionError):
        failing()
    assert globals_of_torch() == before
    with pytest.raises(NotImplementedError):
        torch.ones(1, device="lazy")
