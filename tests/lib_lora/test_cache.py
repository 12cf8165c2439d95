"""How many files stay open after use."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from lib_lora import ActivationError, Engine, Entry, Reading, Stack
from tests.fakes.files import pair, save

SIZE = (8 * 4 + 8 * 4) * 4  # bytes of the tensors of each file


@pytest.fixture
def files(tmp_path):
    return [save(tmp_path / f"{i}.safetensors", pair("lora_unet_0", (8, 8), 4, seed=i)) for i in range(6)]


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)


def kept(engine):
    return [int(path.stem) for path, *_ in engine._cache._networks]


def test_bytes_are_limited_and_the_least_recently_used_goes(files, model):
    engine = Engine({"unet": model}, cache_bytes=3 * SIZE + SIZE // 2)
    for i in (0, 1, 2, 0, 3):
        engine.activate(Stack([Entry(files[i])]))
    assert kept(engine) == [2, 0, 3]
    assert engine._cache.nbytes == 3 * SIZE


def test_count_is_limited(files, model):
    engine = Engine({"unet": model}, cache_size=2)
    for file in files:
        engine.activate(Stack([Entry(file)]))
    assert kept(engine) == [4, 5]


def test_what_is_in_force_is_never_dropped(files, model):
    engine = Engine({"unet": model}, cache_size=1, cache_bytes=SIZE)
    stack = Stack([Entry(file) for file in files[:4]])
    engine.activate(stack)
    plan = engine._plan
    assert kept(engine) == [0, 1, 2, 3]
    engine.activate(Stack([Entry(file, 0.5) for file in files[:4]]))
    assert engine._plan is plan, "served by the same networks, so only strengths were written"
    with pytest.raises(ActivationError):
        engine.activate(Stack([Entry(files[4]), Entry(files[0].with_name("missing.safetensors"))]))
    assert kept(engine) == [0, 1, 2, 3]
    engine.deactivate()
    engine.activate(Stack([Entry(files[5])]))
    assert kept(engine) == [5]


def test_a_dropped_file_is_closed(files, model):
    engine = Engine({"unet": model}, cache_bytes=0)
    engine.activate(Stack([Entry(files[0])]))
    mapped = weakref.ref(engine._plan.key.networks[0].file)
    engine.activate(Stack([Entry(files[1])]))
    gc.collect()
    assert mapped() is None
    engine.deactivate()
    assert kept(engine) == []


def test_a_file_that_is_read_in_another_way_acts_so_at_once_and_is_opened_once(tmp_path):
    tensors = pair("lora_unet_0", (8, 8), 4, alpha=4)
    path = save(tmp_path / "0.safetensors", tensors, {"ss_network_args": '{"algo": "dylora", "block_size": 2}'})
    model = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    engine, x = Engine({"unet": model}), torch.randn(3, 8)
    base, outputs = model(x), []
    for dylora in (False, True, False):
        engine.activate(Stack([Entry(path)], reading=Reading(dylora_as_trained=dylora)))
        outputs.append(model(x) - base)
    assert torch.equal(outputs[0], outputs[2])
    assert (outputs[1] - 2 * outputs[0]).abs().max() <= 1e-5 * outputs[1].abs().max()
    assert kept(engine) == [0, 0]
    assert engine._cache.nbytes == engine._plan.key.networks[0].file.nbytes
