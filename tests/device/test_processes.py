"""Threads, copies and files of models on a device, and models on two devices."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.hooks import slot_of
from tests.fakes.net import exactly, net, net_inputs, net_lora
from tests.fakes.offloading import assert_same, fingerprint
from tests.fakes.schemes import CPU, call, dispatched

pytestmark = pytest.mark.device

BOUND = 1e-5  # of the largest value


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_lora(tmp_path_factory.mktemp("processes") / "lora.safetensors")


def near(got: Tensor, want: Tensor) -> bool:
    return bool((got.double() - want).abs().max() < BOUND * want.abs().max())


def test_two_engines_in_two_threads_never_meet(file: Path, device: torch.device) -> None:
    models, inputs, strengths = [net().to(device) for _ in range(2)], net_inputs(), (1.0, -0.5)
    wanted = [exactly(file, strength) for strength in strengths]
    wrong: list[object] = []

    @torch.no_grad()
    def generate(number: int) -> None:
        engine = Engine({"unet": models[number]})
        try:
            for _ in range(3):
                engine.activate(Stack([Entry(file, strengths[number])]))
                wrong.extend(number for _ in range(2) if not near(call(models[number], inputs, device), wanted[number]))
                engine.deactivate()
        except Exception as error:  # noqa: BLE001  # a thread must not lose it
            wrong.append(error)

    threads = [threading.Thread(target=generate, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_strength_is_written_while_another_thread_computes(file: Path, device: torch.device) -> None:
    """Calls stay finite while the strength changes; the next one is exact."""
    model, inputs = net().to(device), net_inputs()
    base, engine = call(model, inputs, device), Engine({"unet": model})
    engine.activate(Stack([Entry(file, 0.0)]))
    ended = threading.Event()

    def write() -> None:
        turn = 0
        while not ended.is_set():
            engine.set_multiplier(0, (turn % 3) / 2)
            turn += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        pictures = [call(model, inputs, device) for _ in range(5)]
    finally:
        ended.set()
        writer.join()
    assert all(torch.isfinite(one).all() for one in pictures)
    engine.set_multiplier(0, 1.0)
    assert near(call(model, inputs, device), exactly(file, 1.0))
    engine.deactivate()
    assert_same(call(model, inputs, device), base)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_that_goes_to_the_cpu_has_nothing_of_ours(how: str, file: Path, device: torch.device) -> None:
    model, inputs = net().to(device), net_inputs()
    base, engine = call(model, inputs, device), Engine({"unet": model})
    engine.activate(Stack([Entry(file, 1.0)]))
    full = call(model, inputs, device)
    if how == "deepcopy":
        copied: nn.Module = copy.deepcopy(model)
    elif how == "pickle":
        copied = pickle.loads(pickle.dumps(model))
    else:
        torch.save(model, stream := io.BytesIO())
        copied = torch.load(io.BytesIO(stream.getvalue()), map_location=CPU, weights_only=False)
    assert all(slot_of(layer) is None for layer in copied.modules())
    assert near(call(copied.to(CPU), inputs), exactly(file, 0.0))
    assert_same(call(copied.to(device), inputs, device), base)
    assert_same(call(model, inputs, device), full)
    own = Engine({"unet": copied})
    own.activate(Stack([Entry(file, 1.0)]))
    assert_same(call(copied, inputs, device), full)


def test_two_components_on_two_devices_change_places(file: Path, device: torch.device) -> None:
    here, there, inputs = net(), net().to(device), net_inputs()
    engine = Engine({"unet": here, "transformer": there})
    engine.activate(Stack([Entry(file, {"unet": 1.0, "transformer": 1.0})]))
    want = exactly(file, 1.0)
    assert near(call(here, inputs), want)
    here.to(device)
    there.to(CPU)
    assert near(call(here, inputs, device), want)
    base = exactly(file, 0.0)
    engine.deactivate()
    assert near(call(here, inputs, device), base)
    assert near(call(there, inputs), base)


@pytest.mark.parametrize("first", ["cpu", "device"])
def test_one_component_over_two_devices(first: str, file: Path, device: torch.device) -> None:
    """accelerate's hooks carry the inputs; where there are two of the kind, both are used."""
    module = getattr(torch, device.type)
    other = torch.device(device.type, 1) if getattr(module, "device_count", lambda: 1)() > 1 else CPU
    main, rest = (other, device) if first == "cpu" else (device, other)
    model, inputs = net(), net_inputs()
    before, engine = fingerprint(model), Engine({"unet": model})
    with dispatched(model, main, rest):
        base = call(model, inputs, main)
        engine.activate(Stack([Entry(file, 1.0)]))
        for strength in (1.0, 1.1, 0.0, 1.0):
            engine.set_multiplier(0, strength)
            assert near(call(model, inputs, main), exactly(file, strength))
        assert (
            len({slot.executor.account.device for slot in map(slot_of, model.modules()) if slot and slot.executor}) == 2
        )
        engine.deactivate()
        assert_same(call(model, inputs, main), base)
    assert fingerprint(model) == before


BAKED = """
import sys
import torch
if sys.argv[1] == "vulkan":
    import torchvulkan
from pathlib import Path
from tests.fakes.baking import SDNextNative
from tests.fakes.net import net, net_inputs
from tests.fakes.schemes import CPU, call, dispatched

torch.set_grad_enabled(False)
model, file, device = net(), Path(sys.argv[2]), torch.device(sys.argv[1], 0)
host = SDNextNative(model, device, fuse=False)
host.activate({file: 1.0})
with dispatched(model, CPU, device):
    call(model, net_inputs())
    print("1.0")
    host.activate({file: 1.1})
    try:
        call(model, net_inputs())
        print("1.1")
    except RuntimeError as error:
        print(error)
"""


def test_a_baked_lora_does_not_survive_a_strength_over_two_devices(file: Path, device: torch.device) -> None:
    """1.0, then 1.1: the new weights are where the first block is, and inputs are where the others were."""
    command = [sys.executable, "-c", BAKED, device.type, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    first, *then = done.stdout.splitlines()
    assert first == "1.0", done.stderr
    assert "same device" in then[0] or "should be the same" in then[0] if then else done.returncode < 0
