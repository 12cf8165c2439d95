"""The same schemes on real hardware, streams included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor

from lib_lora import Engine
from lib_lora.placement.storage import Storage
from tests.fakes.models import (
    tiny_pipeline,
    tiny_unet,
)
from tests.fakes.offloading import (
    ORDERS,
    PIPELINE_MODES,
    Expected,
    assert_same,
    cast_layerwise,
    fingerprint,
    picture,
    ways,
)
from tests.fakes.schemes import (
    SCHEMES,
    STREAMING,
    call,
    sequential_offload,
)


@pytest.mark.gpu
class TestCuda:
    """The same on hardware, streams included: the CPU's numbers within rounding, and no bit of the base changed."""

    BOUND = 1e-4  # relative; other kernels, the same precision

    @pytest.fixture(autouse=True)
    def _full_precision(self) -> Iterator[None]:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield

    @pytest.fixture
    def cuda(self) -> torch.device:
        return torch.device("cuda", 0)

    def near(self, got: Tensor, want: Tensor) -> bool:
        return bool((got - want).abs().max() <= self.BOUND * want.abs().max())

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("scheme", [*SCHEMES, *STREAMING])
    def test_scheme(self, scheme: str, order: str, expected: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0)
        before = fingerprint(unet)
        engine = Engine({"unet": unet})
        base = call(tiny_unet(0).to(cuda), expected.inputs, cuda)
        with ExitStack() as hooks:
            if order == "adapters first":
                engine.activate(expected.stack)
            hooks.enter_context({**SCHEMES, **STREAMING}[scheme](unet, cuda))
            engine.activate(expected.stack)
            for _ in range(2):  # with streams, the first call only learns the order of the layers
                assert self.near(call(unet, expected.inputs, cuda), expected.full)
            engine.set_multiplier(0, 0.5)
            assert self.near(call(unet, expected.inputs, cuda), expected.half)
            engine.deactivate()
            assert_same(call(unet, expected.inputs, cuda), base)
        assert self.near(call(unet, expected.inputs), expected.base)
        assert fingerprint(unet) == before

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_dtype_of_the_model(self, dtype: torch.dtype, expected: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0).to(cuda, dtype)
        inputs = {
            name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in expected.inputs.items()
        }
        base = call(unet, inputs, cuda)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        full = call(unet, inputs, cuda)
        assert (full.float() - expected.full).norm() < 0.05 * expected.full.norm()
        assert {way.device for way in ways(unet).values()} == {cuda}
        engine.deactivate()
        assert_same(call(unet, inputs, cuda), base)

    def test_layerwise_casting(self, cast: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(cast.stack)
        cast_layerwise(unet)
        with SCHEMES["group-leaf"](unet, cuda):
            assert self.near(call(unet, cast.inputs, cuda), cast.full)
            engine.deactivate()
            assert self.near(call(unet, cast.inputs, cuda), cast.base)

    @pytest.mark.parametrize("mode", PIPELINE_MODES)
    def test_whole_pipeline(
        self, mode: str, expected: Expected, pictures: tuple[Tensor, Tensor], cuda: torch.device
    ) -> None:
        pipe = tiny_pipeline(0)
        engine = Engine({"unet": pipe.unet, "text_encoder": pipe.text_encoder})
        PIPELINE_MODES[mode](pipe, cuda)
        base = picture(pipe, cuda)
        assert (base - pictures[0]).abs().max() < 1e-3
        engine.activate(expected.stack)
        assert (picture(pipe, cuda, engine) - pictures[1]).abs().max() < 1e-3
        engine.deactivate()
        assert_same(picture(pipe, cuda), base)

    def test_memory_is_given_back(self, expected: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        with sequential_offload(unet, cuda):
            call(unet, expected.inputs, cuda)
            before = torch.cuda.memory_allocated(cuda)
            engine.activate(expected.stack)
            for _ in range(3):
                call(unet, expected.inputs, cuda)
            rank_vectors = 1 << 16  # bytes; strengths stay on the device
            assert torch.cuda.memory_allocated(cuda) <= before + rank_vectors

    @pytest.mark.parametrize("storage", ["file", "bfloat16", "float8"])
    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_streaming_changes_no_bit(
        self, share: float, storage: Storage, expected: Expected, cuda: torch.device
    ) -> None:
        unet = tiny_unet(0).to(cuda)
        engine = Engine({"unet": unet}, storage=storage)
        engine.activate(expected.stack)
        want = call(unet, expected.inputs, cuda)
        [placed] = engine.memory().placed.values()
        engine.close()
        before = torch.cuda.memory_allocated(cuda)
        engine = Engine({"unet": unet}, storage=storage, device_budget=int(share * placed))
        engine.activate(expected.stack)
        inputs = {
            name: value.to(cuda) if isinstance(value, Tensor) else value for name, value in expected.inputs.items()
        }
        pictures = [
            unet(**inputs)[0] for _ in range(20)
        ]  # queued as fast as the host can: nothing waits for the device
        assert all(torch.equal(picture.cpu(), want) for picture in pictures)
        report = engine.memory()
        assert report.streaming > 0
        assert report.placed.get(str(cuda), 0) <= share * placed
        assert all(way._host_copy.flat.is_pinned() for way in ways(unet).values() if way._host_copy)
        engine.deactivate()
        del pictures, inputs
        assert torch.cuda.memory_allocated(cuda) <= before
