"""More adapters than fit: who stays on the device, who streams, and that nobody can tell by the numbers."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, FileError, Stack
from lib_lora.execution.hooks import slot_of
from lib_lora.placement.arena import Arena, Piece
from lib_lora.placement.budget import Account, Budget
from lib_lora.placement.resident import Resident
from tests.fakes.accelerator import OutOfMemoryError, device, short_of_memory
from tests.fakes.files import pair, save
from tests.fakes.models import tiny_unet
from tests.fakes.offloading import Expected, assert_same
from tests.fakes.schemes import CPU, SCHEMES, call


def residents(module: nn.Module) -> dict[str, Resident]:
    """Return the executor of each layer."""
    slots = {path: slot_of(layer) for path, layer in module.named_modules()}
    return {
        path: slot.executor for path, slot in slots.items() if slot is not None and isinstance(slot.executor, Resident)
    }


def streaming(module: nn.Module) -> set[str]:
    return {path for path, way in residents(module).items() if way.account.streams}


def placed_bytes(module: nn.Module) -> int:
    """Bytes of what lies on the accelerator, counted tensor by tensor."""
    placements = [way._placed for way in residents(module).values() if way._placed is not None]
    tensors = [tensor for one in placements for _, tensor in one.content.tensors()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.device.type == "lazy")


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(all bytes on the device, bytes of this layer) after each placement."""
    noted: list[tuple[int, int]] = []
    charge = Budget.charge

    def noting(self: Budget, share: Account, where: torch.device, nbytes: int) -> bool:
        fits = charge(self, share, where, nbytes)
        if where.type != "cpu":
            noted.append((self.usage()[0][where], nbytes))
        return fits

    monkeypatch.setattr(Budget, "charge", noting)
    return noted


@contextmanager
def on(accelerator: torch.device, *modules: nn.Module) -> Iterator[None]:
    for module in modules:
        module.to(accelerator)
    yield
    for module in modules:
        module.to(CPU)


def whole(expected: Expected, accelerator: torch.device) -> int:
    """Bytes of all factors of the file."""
    unet = tiny_unet(0).to(accelerator)
    engine = Engine({"unet": unet})
    engine.activate(expected.stack)
    [nbytes] = engine.memory().placed.values()
    assert nbytes == placed_bytes(unet)
    engine.close()
    return nbytes


class TestHalfOfTheFactors:
    """A budget that half of the factors of a UNet fit into."""

    @pytest.mark.parametrize("order", ["there when activated", "moved later"])
    def test_peak_numbers_and_who_streams(
        self, order: str, expected: Expected, accelerator: torch.device, peaks: list[tuple[int, int]]
    ) -> None:
        budget = whole(expected, accelerator) // 2
        peaks.clear()
        unet = tiny_unet(0)
        engine = Engine({"unet": unet}, device_budget=budget)
        if order == "moved later":
            engine.activate(expected.stack)
        with on(accelerator, unet):
            engine.activate(expected.stack)
            streams = []
            for step in range(4):
                peaks.append((0, 0))
                assert_same(call(unet, expected.inputs, accelerator), expected.full)
                streams.append(streaming(unet))
                assert engine.memory().placed[str(accelerator)] == placed_bytes(unet) <= budget
                if step:
                    placements = peaks[::-1].index((0, 0))
                    assert placements == len(streams[-1]), "only those that stream are placed again"
            assert streams[1] == streams[2] == streams[3], "as many as fit stay, whatever the order of the calls"
            assert 0 < len(streams[3]) < len(residents(unet)) * 3 // 4
            assert engine.memory().streaming == len(streams[3])
            assert max(total for total, _ in peaks) <= budget + max(nbytes for _, nbytes in peaks)
            engine.set_multiplier(0, 0.5)
            assert_same(call(unet, expected.inputs, accelerator), expected.half)
            engine.deactivate()
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            assert engine.memory().placed == {}

    def test_a_larger_budget_is_used_up(self, expected: Expected, accelerator: torch.device) -> None:
        nbytes, unet = whole(expected, accelerator), tiny_unet(0)
        engine = Engine({"unet": unet}, device_budget=nbytes)
        engine.activate(expected.stack)
        with on(accelerator, unet):
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
            assert engine.memory().placed == {str(accelerator): nbytes}
            assert engine.memory().streaming == 0

    def test_layers_that_fit_are_not_watched(
        self, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet}, device_budget=1 << 30)
        engine.activate(expected.stack)
        for name in ("room", "charge", "free"):
            monkeypatch.delattr(Budget, name)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)

    def test_the_cpu_has_no_budget(self, expected: Expected) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet}, device_budget=0)
        engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs), expected.full)
        assert not streaming(unet)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_budget_at_all_under_any_scheme(scheme: str, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet}, device_budget=0)
    with SCHEMES[scheme](unet, accelerator):
        engine.activate(expected.stack)
        for _ in range(2):
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
        engine.set_multiplier(0, 0.5)
        assert_same(call(unet, expected.inputs, accelerator), expected.half)
        assert engine.memory().placed.get(str(accelerator), 0) == 0
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)


class TestHomes:
    """Copies in memory of layers that stream."""

    def streamed(self, expected: Expected, accelerator: torch.device) -> tuple[Engine, nn.Module]:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet}, device_budget=0)
        engine.activate(expected.stack)
        for _ in range(2):
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
        return engine, unet

    def test_they_are_counted_until_nothing_is_in_force(self, expected: Expected, accelerator: torch.device) -> None:
        engine, unet = self.streamed(expected, accelerator)
        pieces = [way._piece for way in residents(unet).values()]
        assert engine.memory().host_copies == sum(piece.nbytes for piece in pieces if piece) > 0
        engine.deactivate()
        assert engine.memory().host_copies == 0

    def test_with_them_files_are_not_read_again(
        self, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, unet = self.streamed(expected, accelerator)
        monkeypatch.setattr(
            "lib_lora.files.file.AdapterFile.verify", lambda self: (_ for _ in ()).throw(FileError(self.path, ""))
        )
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
        engine.set_multiplier(0, 0.5)
        assert_same(call(unet, expected.inputs, accelerator), expected.half)

    def test_another_dtype_is_another_copy(self, expected: Expected, accelerator: torch.device) -> None:
        _, unet = self.streamed(expected, accelerator)
        layer = unet.mid_block.attentions[0].proj_in
        x = torch.randn(1, *layer.weight.shape[1:2], 1, 1, device=accelerator)
        want = layer(x)
        layer.to(torch.bfloat16)
        assert layer(x.to(torch.bfloat16)).dtype == torch.bfloat16
        layer.to(torch.float32)
        layer.weight.data = tiny_unet(0).to(accelerator).mid_block.attentions[0].proj_in.weight.data
        layer.bias.data = tiny_unet(0).to(accelerator).mid_block.attentions[0].proj_in.bias.data
        assert torch.equal(layer(x), want)


class Mixed(nn.Module):
    """One layer of each way, and of each part beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dora, self.full, self.bias = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.grouped, self.norm = nn.Conv1d(8, 8, 1, groups=2), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.bias(self.full(self.dora(x))))
        output: Tensor = self.grouped(x[..., None])[..., 0]
        return output


def mixed_file(path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    tensors = pair("lora_unet_dora", (8, 8), 2) | pair("lora_unet_grouped", (8, 4, 1), 2)
    tensors |= pair("lora_unet_bias", (8, 8), 2) | {"lora_unet_bias.lora_up.bias": randn(8)}
    tensors |= {"lora_unet_dora.dora_scale": 1 + randn(1, 8), "lora_unet_full.diff": randn(8, 8)}
    return save(path, tensors | {"lora_unet_norm.w_norm": randn(8), "lora_unet_norm.b_norm": randn(8)})


@pytest.mark.parametrize("storage", ["file", "bfloat16", "float8"])
def test_every_part_streams(storage: str, tmp_path: Path, accelerator: torch.device) -> None:
    model = Mixed().requires_grad_(False).to(accelerator)
    x = torch.randn(3, 8).to(accelerator)
    stack = Stack([Entry(mixed_file(tmp_path / "a.safetensors"), 0.7)])
    base, engine = model(x), Engine({"unet": model}, storage=storage)
    assert engine.activate(stack).entries[0].hit == 5
    want = model(x)
    assert engine.memory().placed == {str(accelerator): placed_bytes(model)}
    engine.close()
    engine = Engine({"unet": model}, storage=storage, device_budget=0)
    engine.activate(stack)
    for _ in range(3):
        assert torch.equal(model(x), want)
        assert placed_bytes(model) == 0
    assert streaming(model) == {"dora", "full", "bias", "grouped", "norm"}
    assert engine.memory().host_copies > 0
    engine.deactivate()
    assert torch.equal(model(x), base)


class TestReleased:
    """What is no more is not counted."""

    def test_dead_models(self, expected: Expected, accelerator: torch.device) -> None:
        unet, other = tiny_unet(0).to(accelerator), tiny_unet(1).to(accelerator)
        engine = Engine({"unet": unet}, device_budget=whole(expected, accelerator) // 2)
        engine.activate(expected.stack)
        call(unet, expected.inputs, accelerator)
        assert engine.memory().placed
        assert engine.memory().host_copies
        del unet
        gc.collect()
        memory = engine.memory()
        assert (memory.placed, memory.host_copies, memory.streaming) == ({}, 0, 0)
        engine.components = {"unet": other}
        engine.activate(expected.stack)
        assert engine.memory().placed == {str(accelerator): placed_bytes(other)}

    def test_layers_that_left_the_device(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        unet.to(device(1))
        assert engine.memory().placed == {str(device(1)): placed_bytes(unet)}
        unet.to(CPU)
        assert engine.memory().placed == {}

    def test_a_call_that_failed(self, tmp_path: Path, accelerator: torch.device) -> None:
        model = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False).to(accelerator)
        file = save(tmp_path / "a.safetensors", pair("lora_unet_0", (8, 8), 4))
        engine = Engine({"unet": model}, device_budget=0)
        engine.activate(Stack([Entry(file)]))
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 8).to(accelerator).double())
        assert engine.memory().placed == {}


class TestFreeMemory:
    """Without a budget, adapters leave 1 GiB of a device's free memory to others."""

    def test_what_is_free_is_the_limit_when_a_stack_comes_into_force(
        self, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        every = engine.memory().placed[str(accelerator)]
        for share in (0.5, 0.0, 1.0):
            engine.deactivate()

            def free(*_: object, at_first: float = share * every) -> tuple[int, int]:
                return (1 << 30) + int(at_first) - engine.memory().placed.get(str(accelerator), 0), 1 << 34

            monkeypatch.setattr("torch.lazy.mem_get_info", free)
            engine.activate(expected.stack)
            for _ in range(2):
                assert_same(call(unet, expected.inputs, accelerator), expected.full)
                assert engine.memory().placed.get(str(accelerator), 0) <= share * every
            assert (engine.memory().streaming > 0) == (share < 1)

    def test_a_stack_that_is_not_in_force_makes_room(
        self, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine, other = Engine({"unet": unet}), Stack([Entry(expected.file, 1.0, rank=2)])
        engine.activate(other)
        engine.activate(expected.stack)
        engine.activate(other)
        placed = engine._budget.usage()[0][accelerator]
        assert placed > placed_bytes(unet), "both are there"
        monkeypatch.setattr("torch.lazy.mem_get_info", lambda *_: (1 << 30, 1 << 34))
        engine._budget.reset()
        engine.activate(expected.stack)
        call(unet, expected.inputs, accelerator)
        assert engine._budget.usage()[0].get(accelerator, 0) == placed_bytes(unet)


class TestOutOfMemory:
    """Running out of memory while adapters are placed."""

    @pytest.mark.parametrize("at", [1, 2])
    def test_others_stream_from_then_on(
        self, at: int, expected: Expected, accelerator: torch.device, caplog: pytest.LogCaptureFixture
    ) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        with short_of_memory(at, 60), caplog.at_level(logging.WARNING, "lib_lora"):
            engine.activate(expected.stack)
            for _ in range(3):
                assert_same(call(unet, expected.inputs, accelerator), expected.full)
        assert [record.getMessage() for record in caplog.records] == [caplog.records[0].getMessage()]
        assert f"{accelerator} is out of memory" in caplog.text
        assert streaming(unet)
        assert engine.memory().placed.get(str(accelerator), 0) == placed_bytes(unet)
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)

    @pytest.mark.parametrize(
        "text",
        [
            "MPS backend out of memory (MPS allocated: 18.05 GB, other allocations: 1.02 GB, max allowed: 18.13 GB).",
            "Could not allocate tensor with 52428800 bytes. There is not enough GPU video memory available!",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ],
    )
    def test_a_layer_that_runs_out_of_it_is_computed_again_with_fewer_adapters_there(
        self, text: str, tmp_path: Path, accelerator: torch.device
    ) -> None:
        class Large(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                if engine.memory().placed.get(str(accelerator), 0) > 100:
                    raise RuntimeError(text)
                return super().forward(x)

        model = nn.Sequential(*(Large(8, 8) for _ in range(4))).requires_grad_(False).to(accelerator)
        tensors = {}
        for i in range(4):
            tensors |= pair(f"lora_unet_{i}", (8, 8), 4, seed=i)
        stack, x = Stack([Entry(save(tmp_path / "a.safetensors", tensors))]), torch.randn(2, 8).to(accelerator)
        engine = Engine({"unet": model}, device_budget=0)
        engine.activate(stack)
        full = model(x).cpu()
        engine.close()
        engine = Engine({"unet": model})
        engine.activate(stack)
        assert_same(model(x).cpu(), full)
        assert_same(model(x).cpu(), full)
        assert engine.memory().streaming > 0

    def test_an_activation_needs_no_memory_of_the_device(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        other = Stack([Entry(expected.file, 1.0, rank=2)])
        with short_of_memory(*range(1, 1000)):
            engine.activate(other)
        assert engine.stack == other
        assert engine.memory().placed == {}
        engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)
        assert engine.memory().placed == {}

    def test_twice_in_a_row_is_raised_and_changes_nothing(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet}, device_budget=0)
        engine.activate(expected.stack)
        with short_of_memory(*range(1, 1000)), pytest.raises(OutOfMemoryError):
            call(unet, expected.inputs, accelerator)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)
        assert engine.memory().placed == {}

    def test_another_model_starts_anew(self, expected: Expected, accelerator: torch.device) -> None:
        unet, other = tiny_unet(0).to(accelerator), tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        with short_of_memory(1):
            engine.activate(expected.stack)
        assert streaming(unet) or not placed_bytes(unet)
        engine.components = {"unet": other}
        engine.activate(expected.stack)
        call(other, expected.inputs, accelerator)
        assert not streaming(other)

    def test_the_devices_cache_is_emptied(
        self, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        emptied = []
        monkeypatch.setattr("torch.lazy.empty_cache", lambda: emptied.append(True))
        unet = tiny_unet(0).to(accelerator)
        with short_of_memory(1):
            Engine({"unet": unet}).activate(expected.stack)
        assert emptied == [True]


@torch.no_grad()
def test_a_dense_layer_in_half_precision_goes_to_the_arena_once(
    tmp_path: Path, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors are in the file's dtype, whatever dtype the layer and its calls have."""
    added, add = list[object](), Arena.add

    def noting(self: Arena, *args: Any) -> Piece[Any]:
        added.append(args[0])
        return add(self, *args)

    monkeypatch.setattr(Arena, "add", noting)
    layer = nn.Linear(8, 8).half().requires_grad_(False).to(accelerator)
    tensors = {f"lora_unet_0.hada_{name}": torch.randn(8, 8) for name in ("w1_a", "w1_b", "w2_a", "w2_b")}
    model = nn.Sequential(layer)
    engine = Engine({"unet": model}, device_budget=0)
    engine.activate(Stack([Entry(save(tmp_path / "loha.safetensors", tensors))]))
    x = torch.randn(4, 8).half().to(accelerator)
    outputs = [model(x).to(CPU) for _ in range(2)]
    assert torch.equal(*outputs)
    assert residents(model)["0"].name == "dense"
    assert len(added) == 1
