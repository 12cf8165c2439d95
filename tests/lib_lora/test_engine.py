"""Stacks come into force whole or not at all, and leave nothing behind."""

from __future__ import annotations

import gc
import math
import os
import pickle
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lib_lora
from lib_lora import (
    ActivationError,
    ComponentError,
    Engine,
    Entry,
    FileError,
    LoraError,
    NoMatchError,
    Stack,
    StackError,
    load_network,
    model_blocks,
    model_family,
)
from lib_lora.execution.hooks import HookedLayers
from lib_lora.execution.low_rank import LowRankExecutor
from lib_lora.files.file import AdapterFile
from tests.fakes.files import pair, save


class Net(nn.Module):
    """Two linear layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


@pytest.fixture
def net():
    return Net().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(3, 8)


@pytest.fixture
def both(tmp_path):
    return save(
        tmp_path / "both.safetensors", pair("lora_unet_a", (12, 8), 4) | pair("lora_unet_b", (8, 12), 4, seed=1)
    )


@pytest.fixture
def only_a(tmp_path):
    return save(tmp_path / "only_a.safetensors", pair("lora_unet_a", (12, 8), 2, seed=2))


def test_public_names_are_there_once():
    assert len(set(lib_lora.__all__)) == len(lib_lora.__all__)
    assert all(hasattr(lib_lora, name) for name in lib_lora.__all__)


def test_embeddings_are_those_of_the_entries_in_force(net, both, tmp_path):
    vectors = torch.randn(2, 8)
    own = pair("lora_unet_a", (12, 8), 2) | {"bundle_emb.mychar.clip_l": vectors}
    engine = Engine({"unet": net})
    assert engine.embeddings == ()
    engine.activate(Stack([Entry(both), Entry(save(tmp_path / "char.safetensors", own))]))
    first, second = engine.embeddings
    assert first == {}
    assert torch.equal(second["mychar"]["clip_l"], vectors)
    engine.deactivate()
    assert engine.embeddings == ()


def test_activation_replaces_what_was_active(net, x, both, only_a):
    engine = Engine({"unet": net})
    plain = net(x)
    engine.activate(Stack([Entry(both, 0.5)]))
    first = net(x)
    engine.activate(Stack([Entry(only_a)]))
    second = net(x)
    assert "_remora_slot" not in net.b.__dict__, "a layer that lost its adapters is as it was"
    engine.activate(Stack([Entry(both, 0.5)]))
    assert torch.equal(net(x), first)
    assert not torch.equal(first, second)
    engine.activate(Stack())
    assert torch.equal(net(x), plain)
    assert len(engine.stack) == 0


def test_report_says_what_was_hit(net, both, only_a):
    report = Engine({"unet": net}).activate(Stack([Entry(both), Entry(only_a)]))
    assert [(entry.name, entry.hit, entry.layers) for entry in report.entries] == [("both", 2, 2), ("only_a", 1, 1)]
    assert report.summary().count("\n") == 1


def test_a_strength_change_equals_a_fresh_activation_and_touches_no_layer(net, x, both, only_a):
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both, 1.0), Entry(only_a, -0.5)]))
    net(x)
    ways = [net.a._remora_slot.executor, net.b._remora_slot.executor]
    placed = [way._placed for way in ways]
    engine.set_multiplier(0, 1.1)
    changed = net(x)
    assert [net.a._remora_slot.executor, net.b._remora_slot.executor] == ways
    assert all(way._placed is before for way, before in zip(ways, placed, strict=True))
    assert engine.stack.entries[0].multiplier == 1.1
    fresh = Engine({"unet": net})
    engine.close()
    fresh.activate(Stack([Entry(both, 1.1), Entry(only_a, -0.5)]))
    assert torch.equal(net(x), changed)


def test_the_same_files_again_only_write_numbers(net, x, both):
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both, 1.0)]))
    way = net.a._remora_slot.executor
    engine.activate(Stack([Entry(both, 0.3)]))
    assert net.a._remora_slot.executor is way
    changed = net(x)
    engine.deactivate()
    engine.activate(Stack([Entry(both, 0.3)]))
    assert torch.equal(net(x), changed)


def test_components_have_strengths_of_their_own(tmp_path, x):
    unet, one, two = (Net().requires_grad_(False) for _ in range(3))
    tensors = {}
    for prefix in ("lora_unet", "lora_te1", "lora_te2"):
        tensors |= pair(f"{prefix}_a", (12, 8), 4)
    path = save(tmp_path / "a.safetensors", tensors)
    components = {"unet": unet, "text_encoder": one, "text_encoder_2": two}
    plain = {name: net(x) for name, net in components.items()}
    engine = Engine(components)

    def moved() -> dict[str, float]:
        return {name: float((net(x) - plain[name]).norm()) for name, net in components.items()}

    engine.activate(Stack([Entry(path)]))
    full = moved()
    for multiplier, shares in (
        ({"unet": 1.0, "text_encoder": 0.5}, (1, 0.5, 0.5)),
        ({"unet": 0.0, "text_encoder": 0.5, "text_encoder_2": 2}, (0, 0.5, 2)),
        ({"unet": 1.0}, (1, 0, 0)),
        (-1.0, (1, 1, 1)),
    ):
        engine.set_multiplier(0, multiplier)
        for (name, share), want in zip(moved().items(), shares, strict=True):
            assert share == pytest.approx(want * full[name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1", None, True, {"unet": math.nan}])
def test_a_strength_that_is_no_finite_number_is_refused(net, both, bad):
    with pytest.raises(StackError, match="both: multiplier"):
        Entry(both, bad)
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both)]))
    with pytest.raises(StackError, match="finite number"):
        engine.set_multiplier(0, bad)
    assert engine.stack.entries[0].multiplier == 1.0


@pytest.mark.parametrize("rank", [0, -1, 1.5, True])
def test_a_rank_below_one_is_refused(both, rank):
    with pytest.raises(StackError, match="whole number"):
        Entry(both, rank=rank)


def test_names_of_no_component_are_refused(net, both):
    engine = Engine({"unet": net})
    with pytest.raises(StackError, match="no component 'unte'; there are unet"):
        engine.activate(Stack([Entry(both, {"unte": 1.0})]))
    engine.activate(Stack([Entry(both, {"unet": 1.0, "text_encoder": 1.0, "text_encoder_2": 1.0, "transformer": 1.0})]))


@pytest.mark.parametrize("index", [-1, 1, 7])
def test_an_entry_that_is_not_there(net, both, index):
    engine = Engine({"unet": net})
    with pytest.raises(StackError, match="no entry 0"):
        engine.set_multiplier(0, 1.0)
    engine.activate(Stack([Entry(both)]))
    with pytest.raises(StackError, match=f"no entry {index}; the active stack has 1"):
        engine.set_multiplier(index, 1.0)


def test_a_failed_activation_leaves_what_was_and_names_the_entry(net, x, both, only_a, tmp_path):
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both, 0.7)]))
    before = net(x)
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense")
    (tmp_path / "other.safetensors").write_bytes(save(tmp_path / "o", pair("lora_unet_zzz", (12, 8), 4)).read_bytes())
    for name, cause in {"broken": FileError, "missing": FileError, "other": NoMatchError}.items():
        with pytest.raises(ActivationError, match=rf"entry 2 \({name}\) was not applied") as caught:
            engine.activate(Stack([Entry(only_a), Entry(tmp_path / f"{name}.safetensors")]))
        assert {i: type(error) for i, error in caught.value.causes.items()} == {1: cause}
        assert caught.value.__cause__ is caught.value.causes[1]
        assert torch.equal(net(x), before)
        assert engine.stack == Stack([Entry(both, 0.7)])
    bad = [tmp_path / "missing.safetensors", tmp_path / "other.safetensors"]
    with pytest.raises(ActivationError, match=r"entry 1 \(missing\) was .+; entry 3 \(other\) was") as caught:
        engine.activate(Stack([Entry(bad[0]), Entry(only_a), Entry(bad[1])]))
    assert list(caught.value.causes) == [0, 2]


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", ["place", "attach"])
def test_a_failure_in_the_middle_of_publishing_is_rolled_back(net, x, both, only_a, monkeypatch, error, at):
    engine = Engine({"unet": net})
    plain = net(x)
    engine.activate(Stack([Entry(only_a, 0.7)]))
    before = net(x)
    calls = []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == (2 if at == "place" else 1):  # only one of the two layers has no slot yet
            raise error("in the middle")
        return original(*args, **kwargs)

    target = (LowRankExecutor, "_place") if at == "place" else (HookedLayers, "_attach")
    original = getattr(*target)
    with monkeypatch.context() as context:
        context.setattr(*target, failing)
        with pytest.raises(error, match="in the middle"):
            engine.activate(Stack([Entry(both)]))
    assert torch.equal(net(x), before)
    assert "_remora_slot" not in net.b.__dict__
    assert engine.stack == Stack([Entry(only_a, 0.7)])
    engine.set_multiplier(0, 0.8)
    assert not torch.equal(net(x), before)
    engine.deactivate()
    assert torch.equal(net(x), plain)


def test_an_error_in_the_forward_leaves_no_trace(net, x, both):
    engine = Engine({"unet": net})
    plain = net(x)
    engine.activate(Stack([Entry(both)]))
    adapted = net(x)
    with pytest.raises(RuntimeError):
        net(torch.randn(3, 9))
    assert torch.equal(net(x), adapted)
    engine.deactivate()
    assert torch.equal(net(x), plain)


def test_two_engines_on_one_layer_are_refused_until_the_first_is_done(net, x, both):
    first, second = Engine({"unet": net}), Engine({"unet": net})
    plain = net(x)
    first.activate(Stack([Entry(both)]))
    adapted = net(x)
    with pytest.raises(ComponentError, match="another Engine"):
        second.activate(Stack([Entry(both, 2.0)]))
    assert torch.equal(net(x), adapted)
    first.deactivate()
    second.activate(Stack([Entry(both)]))
    assert torch.equal(net(x), adapted)
    first.deactivate()
    assert torch.equal(net(x), adapted), "an engine takes off only what is its own"
    second.deactivate()
    assert torch.equal(net(x), plain)


def test_a_file_changed_on_disk_is_read_again(net, x, both, only_a):
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both)]))
    before = net(x)
    shutil.copy(only_a, both)
    os.utime(both, ns=(1, 1))
    engine.activate(Stack([Entry(both)]))
    changed = net(x)
    assert not torch.equal(changed, before)
    engine.activate(Stack([Entry(only_a)]))
    assert torch.equal(net(x), changed)


def test_a_file_truncated_while_active_is_an_error_and_no_crash(net, x, both):
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both)]))
    adapted = net(x)
    os.truncate(both, 100)
    assert torch.equal(net(x), adapted), "what was placed needs the file no more"
    net.double()
    with pytest.raises(FileError, match="changed on disk"):
        net(x.double())


def test_a_file_is_opened_once(net, both, only_a, monkeypatch):
    opened = []
    original = AdapterFile.open.__func__
    monkeypatch.setattr(
        AdapterFile, "open", classmethod(lambda cls, path: (opened.append(path), original(cls, path))[1])
    )
    engine = Engine({"unet": net})
    for _ in range(3):
        engine.activate(Stack([Entry(both), Entry(both, 0.5)]))
        engine.activate(Stack([Entry(only_a)]))
        engine.deactivate()
    assert opened == [both, only_a]


def test_another_model_is_served_after_the_switch_and_the_old_one_is_freed(both, x):
    old, new = (Net().requires_grad_(False) for _ in range(2))
    engine = Engine({"unet": old})
    plain = new(x)
    engine.activate(Stack([Entry(both)]))
    watched = weakref.ref(old)
    engine.components = {"unet": new}
    del old
    gc.collect()
    assert watched() is None
    engine.activate(Stack([Entry(both)]))
    assert not torch.equal(new(x), plain)


def test_an_engine_does_not_keep_its_model_alive(both):
    net = Net()
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both)]))
    watched = weakref.ref(net)
    del net
    gc.collect()
    assert watched() is None
    with pytest.raises(ComponentError, match="component unet was unloaded"):
        engine.activate(Stack([Entry(both)]))


def test_a_layer_with_two_names_is_one_layer(tmp_path, x):
    net = Net()
    net.b = net.a = nn.Linear(8, 8)
    net.requires_grad_(False)
    plain = net(x)
    one = save(tmp_path / "a.safetensors", pair("lora_unet_a", (8, 8), 4))
    two = save(tmp_path / "b.safetensors", pair("lora_unet_b", (8, 8), 4))
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(one, 0.5), Entry(two, 0.5)]))
    together = net(x)
    engine.activate(Stack([Entry(one, 1.0)]))
    assert (net(x) - together).abs().max() < 1e-5
    assert not torch.equal(together, plain)


def test_layers_replaced_after_activation_are_served_at_the_next(net, x, both):
    """As SD.Next's quantization does: a new object in the old one's place."""
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(both)]))
    adapted = net(x)
    replacement = nn.Linear(8, 12)
    replacement.load_state_dict(net.a.state_dict())
    net.a = replacement.requires_grad_(False)
    engine.activate(Stack([Entry(both)]))
    assert torch.equal(net(x), adapted)


@given(st.lists(st.tuples(st.booleans(), st.floats(-4, 4)), max_size=4))
def test_any_stack_equals_the_sum_of_its_dense_deltas(entries):
    net, x = SHARED
    engine = Engine({"unet": net})
    plain = net(x)
    engine.activate(Stack(Entry(PATHS[which], multiplier) for which, multiplier in entries))
    got = net(x)
    engine.close()
    assert torch.equal(net(x), plain)
    a, b = net.a.weight.double(), net.b.weight.double()
    for which, multiplier in entries:
        network = lib_lora.load_network(PATHS[which], {"unet": net})
        a = a + multiplier * network.delta_weight("unet", "a", torch.float64)
        if which:
            b = b + multiplier * network.delta_weight("unet", "b", torch.float64)
    want = nn.functional.linear(nn.functional.linear(x, a, net.a.bias), b, net.b.bias)
    assert (got - want).abs().max() <= 1e-12 * max(1.0, float(want.abs().max()))


@pytest.fixture(autouse=True, scope="module")
def _shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    PATHS[False] = save(folder / "0.safetensors", pair("lora_unet_a", (12, 8), 2, seed=2))
    tensors = pair("lora_unet_a", (12, 8), 4) | pair("lora_unet_b", (8, 12), 4, seed=1)
    PATHS[True] = save(folder / "1.safetensors", tensors)


PATHS: dict[bool, object] = {}
SHARED = (Net().double().requires_grad_(False), torch.randn(3, 8, dtype=torch.float64))


# what is written first ------------------------------------------------------------------------------------------------


class Pipe:
    """A pipeline as diffusers': its parts by name, modules and others."""

    def __init__(self) -> None:
        self.components = {"tokenizer": object(), "text_encoder": Net(), "transformer": Net(), "safety_checker": None}


WRITE = r"; write Stack\(\[Entry\('lora\.safetensors', 0\.8\)\]\)$"
PARTS = r"takes the model's torch modules by name, not 'tokenizer': object, 'safety_checker': NoneType; write "
LIST = "Stack takes a list of entries, not "
FILE = "Entry takes the path of a file, not "
FIRST: dict[str, tuple[Callable[[Path], object], str]] = {
    "Stack of paths": (lambda path: Stack([path]), f"{LIST}\\[\\w+Path.*{WRITE}"),  # type: ignore[list-item]
    "Stack of names": (lambda path: Stack(["a.safetensors"]), f"{LIST}\\['a.safetensors'\\]{WRITE}"),  # type: ignore[list-item]
    "Stack of tuples": (lambda path: Stack([(path, 0.8)]), f"{LIST}\\[\\(.*{WRITE}"),  # type: ignore[list-item]
    "Stack of None": (lambda path: Stack([Entry(path), None]), f"{LIST}\\[Entry.*{WRITE}"),  # type: ignore[list-item]
    "Stack of a mapping": (lambda path: Stack({path: 0.8}), f"{LIST}\\{{.*{WRITE}"),  # type: ignore[arg-type]
    "Stack(entry)": (lambda path: Stack(Entry(path)), f"{LIST}Entry.*{WRITE}"),  # type: ignore[arg-type]
    "Stack(path)": (lambda path: Stack(path), f"{LIST}\\w+Path.*{WRITE}"),  # type: ignore[arg-type]
    "Stack(name)": (lambda path: Stack(str(path)), f"{LIST}'/.*{WRITE}"),
    "Stack(None)": (lambda path: Stack(None), f"{LIST}None{WRITE}"),  # type: ignore[arg-type]
    "Entry(None)": (lambda path: Entry(None), f"{FILE}None{WRITE}"),  # type: ignore[arg-type]
    "Entry(tensors)": (lambda path: Entry({}), f"{FILE}{{}}{WRITE}"),  # type: ignore[arg-type]
    "load_network(model)": (
        lambda path: load_network(path, Net()),  # type: ignore[arg-type]
        r"takes the model's torch modules by name, not a Net; write load_network\(path, \{'unet': pipe\.unet\}\)$",
    ),
    "model_family(model)": (
        lambda path: model_family(Net()),  # type: ignore[arg-type]
        r"takes the model's torch modules by name, not a Net; write model_family\(\{'unet': pipe\.unet\}\)$",
    ),
    "model_blocks(pipe)": (
        lambda path: model_blocks(Pipe()),  # type: ignore[arg-type]
        r"by name, not a Pipe; write model_blocks\(\{'unet': pipe\.unet\}\)$",
    ),
    "Engine(number)": (
        lambda path: Engine({0: Net()}),  # type: ignore[dict-item]
        r"by name, not 0: Net; write Engine\(\{'unet': pipe\.unet\}\) or Engine\.for_pipeline\(pipe\)$",
    ),
    "Engine(parts)": (
        lambda path: Engine(Pipe().components),  # type: ignore[arg-type]
        PARTS + r"Engine\(\{'unet': pipe\.unet\}\) or Engine\.for_pipeline\(pipe\)$",
    ),
    "load_network(parts)": (
        lambda path: load_network(path, Pipe().components),  # type: ignore[arg-type]
        PARTS + r"load_network\(path, \{'unet': pipe\.unet\}\)$",
    ),
}


@pytest.mark.parametrize("what", FIRST)
def test_what_is_written_wrong_is_told_in_one_sentence(what, both):
    wrong, text = FIRST[what]
    with pytest.raises(LoraError, match=text):
        wrong(both)


def test_errors_reach_another_process(net, both):
    """A process pool ends if an error cannot be unpickled."""
    with pytest.raises(ActivationError) as caught:
        Engine({"unet": net}).activate(Stack([Entry(both), Entry("absent.safetensors")]))
    for error in (caught.value, caught.value.causes[1], StackError("no entry", 3), ComponentError("gone")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again).keys()) == (type(error), str(error), vars(error).keys())


def test_a_stack_that_cannot_come_back_after_a_block_is_told(net, x, both, only_a):
    engine, plain = Engine({"unet": net}), net(x)
    engine.activate(Stack([Entry(both)]))
    with pytest.raises(ActivationError, match=r"entry 1 \(both\)"), engine.active(Stack([Entry(only_a)])):
        both.unlink()
    assert len(engine.stack) == 0
    assert torch.equal(net(x), plain), "nor does the stack of the block outlast it"
