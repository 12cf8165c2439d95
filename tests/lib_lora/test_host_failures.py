"""What baking does to users, reproduced, and the same history with adapters that write nothing.

Each class is one complaint. Its first test has the host's way fail, on the simulated accelerator where a device is
part of the story, so that the second, where ours passes, is known to go through the same trouble.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.fakes.accelerator import device, simulated
from tests.fakes.baking import A1111Lazy, SDNextNative, glora_delta, layers_of
from tests.fakes.models import dense_deltas, exact_arithmetic, kohya_lora, merged, tiny_unet, unet_inputs
from tests.fakes.schemes import CPU, SCHEMES, call, dispatched, manual_cast

INPUTS = unet_inputs(0)


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    with exact_arithmetic():
        yield


@pytest.fixture
def accelerator() -> Iterator[torch.device]:
    with simulated():
        yield device()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kohya_lora(tmp_path_factory.mktemp("failures") / "lora.safetensors", {"unet": tiny_unet(0)}, conv=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failures") / "other.safetensors"
    return kohya_lora(path, {"unet": tiny_unet(0)}, seed=1, conv=True)


def weights(unet: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().to(CPU, copy=True) for name, tensor in unet.state_dict().items()}


def fingerprint(unet: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in weights(unet).items():
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def drift(unet: nn.Module, before: dict[str, Tensor]) -> float:
    """Measure how far the weights are from what they were, relative to their norm."""
    now = weights(unet)
    change = sum(float((now[name].double() - tensor.double()).square().sum()) for name, tensor in before.items())
    return float((change / sum(float(tensor.double().square().sum()) for tensor in before.values())) ** 0.5)


def low_precision(inputs: dict[str, object], dtype: torch.dtype) -> dict[str, object]:
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


class TestWeightChangeUnderOffload:
    """1.0, then 1.1: "Input type (CUDABFloat16Type) and weight type (CPUBFloat16Type) should be the same".

    https://github.com/vladmandic/sdnext/issues/3860. The component is asked for one device, but has several: its
    first blocks do not fit and run on the CPU. What was baked before the model was dealt out moved along with it;
    what is baked afterwards does not.
    """

    @pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "backup"])
    def test_baked(self, fuse: bool, file: Path, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(torch.bfloat16)
        inputs = low_precision(INPUTS, torch.bfloat16)
        host = SDNextNative(unet, accelerator, fuse=fuse)
        host.activate({file: 1.0})
        with dispatched(unet, CPU, accelerator):
            call(unet, inputs)
            host.activate({file: 1.1})
            with pytest.raises(
                RuntimeError, match=r"Input type \(LazyBFloat16Type\) and weight type \(CPUBFloat16Type\) should be"
            ):
                call(unet, inputs)

    def test_baked_over_two_devices(self, file: Path, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        host = SDNextNative(unet, accelerator, fuse=False)
        host.activate({file: 1.0})
        with dispatched(unet, accelerator, device(1)):
            call(unet, INPUTS, accelerator)
            host.activate({file: 1.1})
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                call(unet, INPUTS, accelerator)

    @pytest.mark.parametrize("second", ["cpu", "other"])
    def test_live(self, second: str, file: Path, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(torch.bfloat16)
        inputs = low_precision(INPUTS, torch.bfloat16)
        before, base = fingerprint(unet), call(unet, inputs)
        engine = Engine({"unet": unet})
        engine.activate(Stack([Entry(file, multiplier=1.1)]))
        want = call(unet, inputs)
        engine.activate(Stack([Entry(file, multiplier=1.0)]))
        devices = (CPU, accelerator) if second == "cpu" else (accelerator, device(1))
        with dispatched(unet, *devices):
            assert not torch.equal(call(unet, inputs, devices[0]), want)
            engine.set_multiplier(0, 1.1)
            assert torch.equal(call(unet, inputs, devices[0]), want)
            engine.deactivate()
            assert torch.equal(call(unet, inputs, devices[0]), base)
        assert fingerprint(unet) == before


def convolutions() -> nn.Sequential:
    """Make a component that begins with a convolution, so that torch speaks of its bias first."""
    layers = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 3, padding=1))
    return layers.requires_grad_(False).to(torch.bfloat16)


class TestBiasLeftBehind:
    """1.0, then 1.1: "Input type (CUDABFloat16Type) and bias type (CPUBFloat16Type) should be the same".

    https://github.com/vladmandic/sdnext/issues/3614. Baked on the compute device while the model rests on the CPU:
    weights are there then, biases are not, and the hook that would fetch the model looks at its first parameter only.
    """

    def test_baked(self, tmp_path: Path, accelerator: torch.device) -> None:
        model = convolutions()
        file = kohya_lora(tmp_path / "conv.safetensors", {"unet": model}, conv=True)
        x = torch.randn(1, 4, 8, 8, dtype=torch.bfloat16, device=accelerator)
        host = SDNextNative(model, accelerator, fuse=False, where=lambda _: accelerator)
        with SCHEMES["model"](model, accelerator):
            model(x)
            model.to(CPU)  # as the next component's hook does
            host.activate({file: 1.1})
            with pytest.raises(
                RuntimeError, match=r"Input type \(LazyBFloat16Type\) and bias type \(CPUBFloat16Type\) should be"
            ):
                model(x)

    def test_baked_whole_unet(self, file: Path, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        host = SDNextNative(unet, accelerator, where=lambda _: accelerator)
        with SCHEMES["model"](unet, accelerator):
            host.activate({file: 1.1})
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                call(unet, INPUTS, accelerator)

    def test_live(self, tmp_path: Path, accelerator: torch.device) -> None:
        model = convolutions()
        file = kohya_lora(tmp_path / "conv.safetensors", {"unet": model}, conv=True)
        x = torch.randn(1, 4, 8, 8, dtype=torch.bfloat16, device=accelerator)
        before, base = fingerprint(model), model(x.to(CPU))
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(file, multiplier=1.1)]))
        want = model(x.to(CPU))
        engine.deactivate()
        with SCHEMES["model"](model, accelerator):
            assert torch.equal(model(x).to(CPU), base)
            model.to(CPU)
            engine.activate(Stack([Entry(file, multiplier=1.1)]))
            assert torch.equal(model(x).to(CPU), want)
            engine.deactivate()
            assert torch.equal(model(x).to(CPU), base)
        assert fingerprint(model) == before


class TestFactorsOfAnotherDtype:
    """A bf16 weight times an fp32 factor: "expected m1 and m2 to have the same dtype"."""

    def test_baked(self, accelerator: torch.device) -> None:
        weight = torch.randn(16, 16, device=accelerator, dtype=torch.bfloat16)
        factors = (torch.randn(4, 16), torch.randn(16, 4), torch.randn(4, 16), torch.randn(16, 4))
        with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != "):
            glora_delta(weight, factors)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_live(self, dtype: torch.dtype, file: Path, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(accelerator, dtype)
        inputs = low_precision(INPUTS, dtype)
        base = call(unet, inputs, accelerator)
        engine = Engine({"unet": unet})
        engine.activate(Stack([Entry(file)]))  # its factors are fp32
        got = call(unet, inputs, accelerator)
        assert got.dtype == dtype
        exact = call(merged(unet.to(CPU), dense_deltas(file, {"unet": unet})["unet"], 1.0), in_fp64(inputs))
        baked_once = tiny_unet(0).to(dtype)
        baked_once.load_state_dict(merged(baked_once, dense_deltas(file, {"unet": unet})["unet"], 1.0).state_dict())
        # no worse than twice a weight that was baked in fp64 and rounded once
        assert error(got, exact) <= 2 * error(call(baked_once, inputs), exact)
        engine.deactivate()
        assert torch.equal(call(unet.to(accelerator), inputs, accelerator), base)


def in_fp64(inputs: dict[str, object]) -> dict[str, object]:
    return low_precision(inputs, torch.float64)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


class TestChangedStrengthHasNoEffect:
    """SD.Next, default settings: 1.0, 0.2, off. The second changes nothing and the third ruins the model.

    What it subtracts is the network with the strength it has now, because the one it remembers is the same object.
    """

    def test_baked(self, file: Path) -> None:
        unet = tiny_unet(0)
        before = weights(unet)
        host = SDNextNative(unet)
        host.activate({file: 1.0})
        full = weights(unet)
        host.activate({file: 0.2})
        assert drift(unet, full) < 1e-6  # still at 1.0
        host.activate({})
        deltas = dense_deltas(file, {"unet": unet})["unet"]
        for path, delta in deltas.items():  # four fifths of the network stay in the weights
            left = weights(unet)[f"{path}.weight"].double() - before[f"{path}.weight"].double()
            assert (left - 0.8 * delta).norm() <= 1e-5 * before[f"{path}.weight"].norm()
        assert drift(unet, before) > 0.01

    def test_live(self, file: Path) -> None:
        unet = tiny_unet(0)
        before, base = fingerprint(unet), call(unet, INPUTS)
        deltas = dense_deltas(file, {"unet": unet})["unet"]
        engine = Engine({"unet": unet})
        for strength in (1.0, 0.2):
            engine.activate(Stack([Entry(file, multiplier=strength)]))
            assert error(call(unet, INPUTS), call(merged(unet, deltas, strength), in_fp64(INPUTS))) < 1e-5
        engine.activate(Stack())
        assert torch.equal(call(unet, INPUTS), base)
        assert fingerprint(unet) == before


class TestDriftAfterRemoval:
    """Fuse mode adds and subtracts: what rounding took on the way is gone, and more of it each time."""

    SWITCHES = 10

    def test_baked_in_fp32(self, file: Path) -> None:
        unet = tiny_unet(0)
        before, base = weights(unet), call(unet, INPUTS)
        host = SDNextNative(unet, limit=0)
        host.activate({file: 1.0})
        host.activate({})
        assert 0 < drift(unet, before) < 1e-6
        assert not torch.equal(call(unet, INPUTS), base)

    def test_baked_in_bf16(self, file: Path, other: Path) -> None:
        unet = tiny_unet(0).to(torch.bfloat16)
        before, inputs = weights(unet), low_precision(INPUTS, torch.bfloat16)
        base = call(unet, inputs)
        host = SDNextNative(unet, limit=0)
        drifts = []
        for i in range(self.SWITCHES):
            host.activate({(file, other)[i % 2]: 1.0 + i / 10})
            host.activate({})
            drifts.append(drift(unet, before))
        assert drifts[0] > 5e-4
        assert drifts[-1] > 2 * drifts[0]
        assert error(call(unet, inputs), base.double()) > 1e-3

    def test_baked_with_backups(self, file: Path) -> None:
        unet = tiny_unet(0).to(torch.bfloat16)
        before = fingerprint(unet)
        host = SDNextNative(unet, fuse=False)
        host.activate({file: 1.0})
        host.activate({})
        assert fingerprint(unet) == before  # exact, at the price of the touched weights once more
        touched = sum(layer.weight.numel() for _, layer in layers_of(unet))
        assert sum(tensor.numel() for tensor in host.backups.values()) == touched

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_live(self, dtype: torch.dtype, file: Path, other: Path) -> None:
        unet = tiny_unet(0).to(dtype)
        before, inputs = fingerprint(unet), low_precision(INPUTS, dtype)
        base = call(unet, inputs)
        engine = Engine({"unet": unet})
        for i in range(self.SWITCHES):
            engine.activate(Stack([Entry((file, other)[i % 2], multiplier=1.0 + i / 10)]))
            call(unet, inputs)
            engine.activate(Stack())
        assert torch.equal(call(unet, inputs), base)
        assert fingerprint(unet) == before


def stored_in_fp8() -> tuple[nn.Module, nn.Module]:
    """Make a UNet as A1111's fp8 option stores it, and one with the same weights in fp64."""
    unet = tiny_unet(0)
    for _, layer in layers_of(unet):
        layer.to(torch.float8_e4m3fn)
    exact = tiny_unet(0).double()
    exact.load_state_dict({name: tensor.double() for name, tensor in unet.state_dict().items()})
    return unet, exact


class TestBakedIntoLowPrecision:
    """A1111 restores exactly, but with fp8 storage the sum of weight and delta is rounded to three bits again."""

    def test_baked(self, file: Path) -> None:
        unet, exact = stored_in_fp8()
        host = A1111Lazy(unet)
        deltas = dense_deltas(file, {"unet": unet})["unet"]
        want = call(merged(exact, deltas, 0.1), in_fp64(INPUTS))
        with host.patched(), manual_cast(torch.float32):
            base = call(unet, INPUTS)
            before = fingerprint(unet)
            host.activate({file: 0.1})
            call(unet, INPUTS)  # bakes; stored after it
            assert error(call(unet, INPUTS), want) > 1e-2
            host.activate({})
            assert torch.equal(call(unet, INPUTS), base)
        assert fingerprint(unet) == before
        assert len(host.backups) == len(list(layers_of(unet)))  # the model once more, as long as it lives

    def test_live(self, file: Path) -> None:
        unet, exact = stored_in_fp8()
        deltas = dense_deltas(file, {"unet": unet})["unet"]
        want = call(merged(exact, deltas, 0.1), in_fp64(INPUTS))
        engine = Engine({"unet": unet})
        before = fingerprint(unet)
        with manual_cast(torch.float32):
            base = call(unet, INPUTS)
            engine.activate(Stack([Entry(file, multiplier=0.1)]))
            assert error(call(unet, INPUTS), want) < 1e-5
            engine.deactivate()
            assert torch.equal(call(unet, INPUTS), base)
        assert fingerprint(unet) == before
