"""Class patches: inert without a slot, undone exactly, at peace with patches and hooks of others."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from torch import nn

from lib_lora import Engine, Entry, Stack, install, uninstall
from lib_lora.execution import hooks
from tests.fakes.files import pair, save
from tests.fakes.schemes import manual_cast


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    uninstall()
    yield
    uninstall()


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "a.safetensors", pair("lora_unet_0", (6, 4), 2))


def net(layer: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    return nn.Sequential(layer(4, 6)).requires_grad_(False)


def snapshot() -> dict[type[nn.Module], dict[str, object]]:
    return {cls: dict(cls.__dict__) for cls in (*hooks.CLASSES, nn.Module)}


def test_install_is_idempotent_and_undone_exactly():
    before = snapshot()
    install()
    once = snapshot()
    install()
    assert snapshot() == once
    assert "_apply" in nn.Linear.__dict__
    uninstall()
    assert snapshot() == before
    assert "_apply" not in nn.Linear.__dict__


def test_signature_of_the_patched_forward_is_the_original_one():
    before = inspect.signature(nn.Linear.forward)
    install()
    assert inspect.signature(nn.Linear.forward) == before


def test_layers_without_a_slot_compute_the_same_bits():
    model, x = net(), torch.randn(3, 4)
    want = model(x)
    install()
    assert torch.equal(model(x), want)


def test_nothing_of_ours_shows_in_the_module(path):
    model = net()
    before = [list(model.state_dict()), list(model.named_modules()), list(model.named_buffers())]
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert [list(model.state_dict()), list(model.named_modules()), list(model.named_buffers())] == before
    assert len(list(model.parameters())) == 2


def test_uninstall_takes_active_adapters_away(path):
    model, x = net(), torch.randn(3, 4)
    plain = model(x)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    captured = model[0].forward
    uninstall()
    assert torch.equal(model(x), plain)
    assert torch.equal(captured(x), plain), "a bound method captured meanwhile is inert"
    assert hooks.SLOT not in model[0].__dict__
    install()
    engine.activate(Stack([Entry(path)]))
    assert not torch.equal(model(x), plain), "and the engine can go on afterwards"


def test_a_patch_of_others_on_top_is_respected_and_outlives_ours(path):
    model, x = net(), torch.randn(3, 4)
    plain = model(x)
    engine = Engine({"unet": model})
    ours, original = nn.Linear.forward, nn.Linear.forward.__wrapped__
    calls = []

    def theirs(self, x):
        calls.append(self)
        return ours(self, x)

    nn.Linear.forward = theirs
    try:
        engine.activate(Stack([Entry(path)]))
        assert nn.Linear.forward is theirs, "no second patch of ours is put on top"
        calls.clear()
        assert not torch.equal(model(x), plain)
        assert len(calls) == 1
        uninstall()
        assert nn.Linear.forward is theirs
        assert torch.equal(model(x), plain)
    finally:
        nn.Linear.forward = original


@pytest.mark.parametrize("layer", [nn.Embedding, nn.Linear, nn.LayerNorm], ids=lambda cls: cls.__name__)
def test_what_others_put_on_every_module_counts_for_patched_classes(monkeypatch, layer):
    """A1111 replaces the loading of `nn.Module`, to give tensors on meta their memory while it loads a model."""
    install()
    load, moves = nn.Module._load_from_state_dict, []

    def loading(module, state, prefix, *args):
        for name, one in module._parameters.items():
            if one is not None and one.is_meta:
                module._parameters[name] = nn.Parameter(torch.zeros_like(one, device="cpu"))
        load(module, state, prefix, *args)

    apply = nn.Module._apply
    monkeypatch.setattr(nn.Module, "_load_from_state_dict", loading)
    monkeypatch.setattr(nn.Module, "_apply", lambda module, *args: moves.append(module) or apply(module, *args))
    sizes = (4,) if layer is nn.LayerNorm else (4, 6)
    weights = layer(*sizes).state_dict()
    with torch.device("meta"):
        made = nn.Sequential(layer(*sizes))
    made.load_state_dict({f"0.{name}": value for name, value in weights.items()})
    assert all(torch.equal(made[0].state_dict()[name], value) for name, value in weights.items())
    made.double()
    assert made[0] in moves


def test_a_patch_undone_by_others_is_installed_again_and_said_once(path, caplog):
    model, x = net(), torch.randn(3, 4)
    original = nn.Linear.forward
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    adapted = model(x)
    nn.Linear.forward = original  # as A1111's patches.undo does
    with caplog.at_level(logging.WARNING):
        engine.activate(Stack([Entry(path)]))
        engine.activate(Stack([Entry(path)]))
    assert torch.equal(model(x), adapted)
    assert [record.message for record in caplog.records] == [
        "Linear.forward was put back by another extension; patched again"
    ]


def test_no_chain_of_wrappers_adds_a_delta_twice(path):
    """Somebody keeps our first patch, undoes it, we patch again, and their wrapper still calls the first."""
    model, x = net(), torch.randn(3, 4)
    original = nn.Linear.forward
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    adapted = model(x)
    first = nn.Linear.forward

    def stubborn(self, x):
        if not hasattr(self, "in_features"):
            raise AttributeError("an empty layer")  # so that probing it fails
        return first(self, x)

    nn.Linear.forward = stubborn
    try:
        engine.activate(Stack([Entry(path)]))
        assert torch.equal(model(x), adapted)
    finally:
        uninstall()
        nn.Linear.forward = original


class Subclass(nn.Linear):
    """A class with a forward of its own that calls its parent's, as quantization libraries have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Forgelike(nn.Module):
    """Linear by what it has, not by class."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inside, out
        self.weight = nn.Parameter(torch.randn(out, inside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x))


@pytest.mark.parametrize("cls", [Subclass, Forgelike])
def test_classes_a_host_brings_are_patched_when_first_used_and_act_once(tmp_path, cls):
    model, x = net(cls), torch.randn(3, 4)
    tensors = pair("lora_unet_0", (6, 4), 2)
    before = dict(cls.__dict__)
    plain = model(x)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    delta = x @ (tensors["lora_unet_0.lora_up.weight"] @ tensors["lora_unet_0.lora_down.weight"]).T
    assert (model(x) - plain - delta).abs().max() < 1e-5
    uninstall()
    assert dict(cls.__dict__) == before


def test_a_forward_captured_by_accelerate_before_the_patch_is_reached(path):
    model, x = net(), torch.randn(3, 4)
    plain = model(x)
    add_hook_to_module(model[0], ModelHook())
    captured = model[0]._old_forward
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    adapted = model(x)
    assert not torch.equal(adapted, plain)
    remove_hook_from_module(model[0])
    assert torch.equal(model(x), adapted)
    engine.deactivate()
    assert torch.equal(model(x), plain)
    add_hook_to_module(model[0], ModelHook())
    uninstall()
    assert torch.equal(model(x), plain)
    assert captured.__func__ is nn.Linear.forward


def test_uninstall_gives_a_hook_back_what_it_had_captured(path):
    model = net()
    add_hook_to_module(model[0], ModelHook())
    captured = model[0]._old_forward
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert model[0]._old_forward is not captured
    uninstall()
    assert model[0]._old_forward == captured, "the same function of the same layer"


def test_dropping_the_engine_takes_its_adapters_away(path):
    model, x = net(), torch.randn(3, 4)
    plain = model(x)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert not torch.equal(model(x), plain)
    del engine
    assert torch.equal(model(x), plain)


def test_activation_inside_a_context_that_swaps_forwards_piles_nothing_up(path, caplog):
    """A1111 activates inside its autocast, which on some cards is a cast around every class forward."""
    model, x = net(), torch.randn(3, 4)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    adapted, ours = model(x), nn.Linear.forward
    for multiplier in (0.5, 1.0):
        with manual_cast(torch.float64), caplog.at_level(logging.WARNING):
            engine.activate(Stack([Entry(path, multiplier)]))
            inside = model(x)
        assert nn.Linear.forward is ours
        engine.activate(Stack([Entry(path, multiplier)]))
        assert (model(x) - inside).abs().max() < 1e-5
    assert torch.equal(model(x), adapted)
    assert not caplog.records, "the patch was in force all the time"


def test_patching_again_and_again_piles_nothing_up(path):
    """Whoever puts back what it once saw, ours or the original, the chain stays as long as it was."""
    model, x = net(), torch.randn(3, 4)
    engine = Engine({"unet": model})
    seen = [nn.Linear.forward.__wrapped__]
    engine.activate(Stack([Entry(path)]))
    adapted = model(x)
    try:
        for turn in range(6):
            seen.append(nn.Linear.forward)
            other = seen[-1] if turn % 2 else seen[0]
            nn.Linear.forward = lambda self, x, other=other: other(self.nothing, x)  # cannot be probed
            engine.activate(Stack([Entry(path)]))
            nn.Linear.forward = seen[turn // 2]
            engine.activate(Stack([Entry(path)]))
            assert torch.equal(model(x), adapted)
            depth, function = 0, nn.Linear.forward
            while function is not None:
                depth, function = depth + 1, getattr(function, "__wrapped__", None)
            assert depth == 2, "ours over torch's own"
    finally:
        uninstall()
        nn.Linear.forward = seen[0]


class HostLinear(nn.Module):
    """A layer of a host that is none of torch's, as Forge's."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inside, out
        self.weight, self.bias = nn.Parameter(torch.randn(out, inside)), None

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class Derived(HostLinear):
    """Has its forward from the other."""


def test_classes_of_a_host_are_patched_at_installation_where_they_define_their_forward():
    before = dict(HostLinear.__dict__), dict(Derived.__dict__)
    install([HostLinear, Derived])
    assert HostLinear.forward is not before[0]["forward"]
    assert dict(Derived.__dict__) == before[1]
    once = dict(HostLinear.__dict__)
    install([HostLinear])
    assert dict(HostLinear.__dict__) == once
    uninstall()
    assert (dict(HostLinear.__dict__), dict(Derived.__dict__)) == before


def test_a_layer_whose_class_is_known_before_it_is_compiled_is_served(path):
    """A forward that is captured before the patch, here by a wrapper, would never come to it."""
    install([HostLinear])
    layer, x = HostLinear(4, 6), torch.randn(3, 4)
    captured = layer.forward
    plain = captured(x)
    model = nn.Sequential(layer)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert not torch.equal(captured(x), plain)


def with_another_forward(cls):
    """As HiDiffusion gives a block another class, and back: the same object, the same weights."""

    class Changed(cls):
        _parent = cls

        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias) * 1.0

    return Changed


@pytest.mark.parametrize("again", ["activated", "reattached"])
def test_a_layer_of_another_class_is_served_again(path, again):
    """T21: HiDiffusion and LoRA in one picture; the layer that has another class keeps its adapter."""
    model, x = net(), torch.randn(3, 4)
    engine = Engine({"unet": model})
    plain = model(x)

    def once_more():
        engine.activate(Stack([Entry(path)])) if again == "activated" else engine.reattach()
        return model(x)

    engine.activate(Stack([Entry(path)]))
    want = model(x)
    model[0].__class__ = with_another_forward(nn.Linear)
    assert torch.equal(model(x), want)  # the call notices it
    assert torch.equal(once_more(), want)
    model[0].__class__ = type(model[0])._parent
    assert torch.equal(once_more(), want)
    engine.deactivate()
    assert torch.equal(model(x), plain)


def test_reattaching_what_is_in_force_changes_nothing(path):
    model = net()
    engine = Engine({"unet": model})
    engine.reattach()
    engine.activate(Stack([Entry(path)]))
    slot = hooks.slot_of(model[0])
    engine.reattach()
    assert hooks.slot_of(model[0]) is slot


def test_a_class_has_a_forward_at_every_moment(path):
    """While the last engine goes, another thread may call a layer of the class."""
    deleted: list[str] = []

    class Noting(type):
        def __delattr__(cls, name: str) -> None:
            deleted.append(name)
            super().__delattr__(name)

    class Own(nn.Linear, metaclass=Noting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    forward = Own.forward
    model = net(Own)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert Own.forward is not forward
    engine.close()
    del engine
    uninstall()
    assert Own.forward is forward
    assert deleted
    assert "forward" not in deleted
