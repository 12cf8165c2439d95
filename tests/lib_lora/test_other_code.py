"""Other code in the process is left alone: wrappers, scripting, copies, gradients, threads, compiled models."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import peft
import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as old_weight_norm

from lib_lora import (
    ComponentError,
    Curve,
    Engine,
    Entry,
    PerImage,
    Region,
    Stack,
    Strength,
    install,
    load_network,
    uninstall,
)
from tests.fakes.files import pair, save

MANY = 400  # tokens, for which the LoRA is added to the weight
FUNCTIONS = {
    "a number": 0.7,
    "a schedule": Strength(Curve(((0.0, 0.2), (1000.0, 1.0)), "timestep")),
    "a region": Strength(region=Region(2, 2, bytes([255, 0, 0, 255]))),
}


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    uninstall()
    yield
    uninstall()


class Net(nn.Module):
    """A denoiser as far as a call of it tells its moment and its picture."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, sample: Tensor, timestep: Tensor | None = None) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(sample)))
        return y


def net() -> Net:
    torch.manual_seed(0)
    return Net().requires_grad_(False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = pair("lora_unet_first", (8, 8), 2) | pair("lora_unet_second", (8, 8), 2, seed=1)
    return save(tmp_path / "a.safetensors", tensors)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """Full differences, which are added to the weight for one call."""
    made = {f"diffusion_model.{name}.diff": torch.full((8, 8), 0.1) for name in ("first", "second")}
    return save(tmp_path / "dense.safetensors", made)


# wrappers of other extensions -----------------------------------------------------------------------------------------


def wrapper_of(forward: Callable[..., Tensor], change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def wrapped(self: nn.Module, x: Tensor) -> Tensor:
        return change(forward(self, x))

    return wrapped


@pytest.fixture
def class_forward() -> Iterator[None]:
    before = nn.Linear.forward
    yield
    uninstall()
    nn.Linear.forward = before


@pytest.mark.usefixtures("class_forward")
@pytest.mark.parametrize("tokens", [3, MANY])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("hooked", [False, True], ids=["", "hooked"])
def test_a_wrapper_that_copies_all_marks_keeps_what_it_does(path, tokens, when, hooked):
    """`functools.wraps` makes a wrapper look like torch's own forward, or like ours."""
    model, x = net(), torch.randn(tokens, 8)
    plain = model(x)
    if when == "after":
        engine = Engine({"unet": model})
    nn.Linear.forward = wrapper_of(nn.Linear.forward, lambda y: y + 1)
    if hooked:
        for layer in (model.first, model.second):
            add_hook_to_module(layer, ModelHook())
    want = model(x)
    assert not torch.equal(want, plain)
    if when == "before":
        engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.0)]))
    assert (model(x) - want).abs().max() < 1e-6
    engine.activate(Stack([Entry(path, 1.0)]))
    adapted = model(x)
    assert (adapted - want).abs().max() > 0.01
    first = model.first.weight + _delta(path, "first")
    second = model.second.weight + _delta(path, "second")
    hidden = torch.tanh(nn.functional.linear(x, first, model.first.bias) + 1)
    assert (adapted - (nn.functional.linear(hidden, second, model.second.bias) + 1)).abs().max() < 1e-5
    engine.deactivate()
    assert torch.equal(model(x), want)


def _delta(path: Path, name: str) -> Tensor:
    tensors = load_file(path)
    return tensors[f"lora_unet_{name}.lora_up.weight"] @ tensors[f"lora_unet_{name}.lora_down.weight"]


@pytest.mark.usefixtures("class_forward")
@pytest.mark.parametrize("tokens", [3, MANY])
def test_what_a_wrapper_caches_is_not_written_to(path, tokens):
    kept: dict[int, Tensor] = {}

    def caching(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(forward)
        def wrapped(self: nn.Module, x: Tensor) -> Tensor:
            if id(self) not in kept:
                kept[id(self)] = forward(self, x)
            return kept[id(self)]

        return wrapped

    nn.Linear.forward = caching(nn.Linear.forward)
    model, x = net(), torch.randn(tokens, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    model(x)
    before = {key: value.clone() for key, value in kept.items()}
    once, again = model(x), model(x)
    assert torch.equal(once, again)
    assert all(torch.equal(kept[key], value) for key, value in before.items())


def test_a_hook_has_again_what_it_captured_when_the_lora_is_off(path):
    model = net()
    add_hook_to_module(model.first, ModelHook())
    captured = model.first._old_forward
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    assert model.first._old_forward is not captured
    engine.deactivate()
    assert model.first._old_forward == captured


# torch.jit.script -----------------------------------------------------------------------------------------------------


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(4, 4, 1)
        self.d, self.e = nn.GroupNorm(2, 4), nn.Embedding(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        return self.d(self.c(x.unsqueeze(-1))).squeeze(-1) + self.e(torch.zeros(1, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("when", ["installed", "active", "off", "uninstalled"])
def test_modules_can_be_scripted(path, when):
    other, x = Scripted().eval(), torch.randn(3, 4)
    want, model = other(x), net()
    install()
    engine = Engine({"unet": model})
    if when != "installed":
        engine.activate(Stack([Entry(path)]))
    if when in ("off", "uninstalled"):
        engine.deactivate()
    if when == "uninstalled":
        uninstall()
    assert torch.equal(torch.jit.script(other)(x), want)


class Marked(nn.Module):
    """As a host's layer whose forward torch is to leave alone when it scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.in_features = self.out_features = 4

    @torch.jit.ignore
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight)


Marked.forward.__annotations__ = {"x": Tensor, "return": Tensor}  # torch cannot read them as text here


class AroundMarked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Marked()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_layer_that_torch_is_to_leave_alone_is_left_alone():
    model, x = AroundMarked(), torch.randn(2, 4)
    want = torch.jit.script(model)(x)
    install((Marked,))
    assert torch.equal(torch.jit.script(AroundMarked())(x), want)


def test_a_forward_can_be_pickled():
    install()
    assert pickle.loads(pickle.dumps(nn.Linear.forward)) is nn.Linear.forward


# function transforms and fake tensors ---------------------------------------------------------------------------------


def _faked(model: nn.Module, x: Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.randn(3, 8))


TRANSFORMS = {
    "vmap": lambda model, x: torch.func.vmap(model)(x),
    "grad": lambda model, x: torch.func.grad(lambda v: model(v).sum())(x),
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (x,)),
    "jacrev": lambda model, x: torch.func.jacrev(model)(x),
    "fake": _faked,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated", "ignore:There is a performance drop")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", ["path", "dense"])
def test_a_call_after_a_transform_is_as_before(kind, transform, request):
    torch.compiler.reset()  # outputs are looked at only where nothing was compiled
    model, x = net(), torch.randn(3, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(request.getfixturevalue(kind))]))
    want = model(x)
    TRANSFORMS[transform](model, x)
    assert torch.equal(model(x), want)
    assert engine.report.too_strong == {}


# copies ---------------------------------------------------------------------------------------------------------------


def _copied(model: nn.Module, how: str) -> Any:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    stream = io.BytesIO()
    torch.save(model, stream)
    return torch.load(io.BytesIO(stream.getvalue()), weights_only=False)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("strength", FUNCTIONS)
def test_a_copy_of_a_model_has_nothing_of_ours(path, how, strength):
    model = net()
    x = torch.randn(1, 4, 8, 8)
    plain = model(x, torch.tensor([500.0]))
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, FUNCTIONS[strength])]))
    model(x, torch.tensor([500.0]))
    made = _copied(model, how)
    before = model(x, torch.tensor([500.0]))
    assert torch.equal(made(x, torch.tensor([100.0])), plain), "as without LoRA"
    assert torch.equal(model(x, torch.tensor([500.0])), before), "a call of the copy moves nothing of the model"
    engine.deactivate()
    assert torch.equal(made(x), plain)
    assert torch.equal(model(x), plain)


def test_a_saved_model_is_read_where_nothing_of_ours_is_installed(path, tmp_path):
    layers = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    save(path, pair("lora_transformer_0", (8, 8), 2))
    engine = Engine({"transformer": layers})
    engine.activate(Stack([Entry(path, FUNCTIONS["a schedule"])]))
    torch.save(layers, tmp_path / "model.pt")
    code = (
        "import sys, torch; m = torch.load(sys.argv[1], weights_only=False); m(torch.zeros(1, 8)); print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "model.pt")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "lib_lora" not in run.stdout


# gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [3, MANY])
@pytest.mark.parametrize("kind", ["pair", "dense"])
@pytest.mark.parametrize("trained", [False, True], ids=["", "parameters too"])
def test_the_input_has_its_gradient(path, dense, kind, tokens, trained):
    model = net().requires_grad_(trained)
    file = path if kind == "pair" else dense
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file)]))
    x = torch.randn(tokens, 8, requires_grad=True)
    model(x).square().sum().backward()
    want = copy.deepcopy(model).requires_grad_(trained)
    with torch.no_grad():
        for name in ("first", "second"):
            delta = _delta(file, name) if kind == "pair" else torch.full((8, 8), 0.1)
            getattr(want, name).weight += delta
    other = x.detach().clone().requires_grad_()
    want(other).square().sum().backward()
    assert x.grad is not None
    assert other.grad is not None
    assert (x.grad - other.grad).abs().max() < 1e-4 * other.grad.abs().max()


# parametrizations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [old_weight_norm, parametrizations.weight_norm], ids=["old", "parametrized"])
@pytest.mark.parametrize("kind", ["pair", "dense"])
@pytest.mark.parametrize("layer", ["linear", "conv"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_layers_with_weight_norm_get_every_kind(tmp_path, norm, kind, layer):
    model = nn.Sequential(nn.Linear(8, 8) if layer == "linear" else nn.Conv2d(8, 8, 1)).requires_grad_(False)
    x = torch.randn(2, 8) if layer == "linear" else torch.randn(2, 8, 3, 3)
    shape = (8, 8) if layer == "linear" else (8, 8, 1, 1)
    norm(model[0])
    plain = model(x)
    if kind == "pair":
        tensors = pair("lora_unet_0", shape, 2)
        down, up = (tensors[f"lora_unet_0.lora_{name}.weight"].flatten(1) for name in ("down", "up"))
        delta = (up @ down).view(shape)
    else:
        delta = torch.randn(shape)
        tensors = {"diffusion_model.0.diff": delta}
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    product = nn.functional.linear if layer == "linear" else nn.functional.conv2d
    assert (model(x) - plain - product(x, delta)).abs().max() < 1e-5
    engine.deactivate()
    assert torch.equal(model(x), plain)


# threads --------------------------------------------------------------------------------------------------------------


def _in_threads(work: Callable[[int], None], count: int) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  # it is raised again below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_two_threads_with_a_strength_for_each_image_compute_as_one(path):
    """What a call sets is set for the whole model, so that calls take turns."""
    model = net()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((0.2, 1.5)))]))
    inputs = [torch.randn(rows, 4, 8) for rows in (2, 4)]
    want = [model(x) for x in inputs]
    wrong = []

    def work(number: int) -> None:
        wrong.extend(turn for turn in range(300) if not torch.equal(model(inputs[number]), want[number]))

    _in_threads(work, 2)
    assert not wrong


def test_rows_of_a_call_that_began_under_another_stack_end_no_call(path):
    model, x = net(), torch.randn(2, 4, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((0.2, 1.5)))]))
    assert engine._plan is not None
    table = engine._plan.strengths
    former = table.now.stack
    engine.set_multiplier(0, 0.7)
    want = model(x)
    table.set_call(former, rows=(0, 1))
    assert torch.equal(model.second(torch.tanh(model.first(x))), want)


class Interrupt(BaseException):
    """As hosts end a picture."""


def test_a_thread_whose_call_ended_without_its_hooks_keeps_no_other_waiting(path):
    """torch runs no hook after what is no `Exception`."""
    model = net()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((0.2, 1.5)))]))
    x = torch.randn(2, 4, 8)
    want, ended, done = model(x), threading.Event(), threading.Event()

    def interrupted() -> None:
        def interrupt(*_: object) -> None:
            raise Interrupt

        hook = model.first.register_forward_pre_hook(interrupt)
        with pytest.raises(Interrupt):
            model(x)
        hook.remove()
        ended.set()
        done.wait(30)

    def other() -> None:
        ended.wait(30)
        try:
            assert torch.equal(model(x), want)
        finally:
            done.set()

    _in_threads(lambda number: (interrupted, other)[number](), 2)


@pytest.mark.parametrize("ends", ["its thread ends", "its thread calls again"])
def test_a_call_whose_interrupt_is_kept_keeps_no_other_waiting(path, ends):
    """Whoever keeps an exception keeps the frames of the call, with its arguments."""
    model, x = net(), torch.randn(2, 4, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((0.2, 1.5)))]))
    want, kept, ended = model(x), list[BaseException](), threading.Event()

    def interrupt(*_: object) -> None:
        raise Interrupt

    def interrupted() -> None:
        hook = model.first.register_forward_pre_hook(interrupt)
        try:
            model(x)
        except Interrupt as error:
            kept.append(error)
        hook.remove()
        if ends == "its thread calls again":
            assert torch.equal(model(x), want)
        ended.set()

    def other() -> None:
        ended.wait(30)
        assert torch.equal(model(x), want)

    _in_threads(lambda number: (interrupted, other)[number](), 2)
    assert len(kept) == 1


def test_no_thread_is_looked_into(path, monkeypatch):
    model, x = net(), torch.randn(2, 4, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((0.2, 1.5)))]))
    want = model(x)
    monkeypatch.setattr(sys, "_current_frames", None)
    _in_threads(lambda _: [model(x) for _ in range(50)], 2)
    assert torch.equal(model(x), want)


def test_strengths_of_a_ui_win_over_the_moment_of_a_call_that_runs(path, monkeypatch):
    """A strength that was worked out of the former schedule must not overwrite the one that is set meanwhile."""
    model = net()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, FUNCTIONS["a schedule"])]))
    x, computed, written = torch.randn(3, 8), threading.Event(), threading.Event()
    assert engine._plan is not None
    source = engine._plan.strengths.now.stack
    assert source.varies
    values = source.values

    def slow(moment: Any) -> Any:
        found = values(moment)
        computed.set()
        written.wait(0.3)  # the other thread may write now
        return found

    monkeypatch.setattr(source, "values", slow)

    def work(number: int) -> None:
        if number:
            computed.wait(30)
            engine.set_multiplier(0, 0.5)
            written.set()
        else:
            model(x, torch.tensor([500.0]))

    _in_threads(work, 2)
    got = model(x, torch.tensor([500.0]))
    engine.activate(Stack([Entry(path, 0.5)]))
    assert torch.equal(got, model(x, torch.tensor([500.0])))


def test_data_parallel_around_a_model_changes_nothing(path):
    model, x = net(), torch.randn(3, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    want = model(x)
    assert torch.equal(nn.DataParallel(model)(x), want)


def replica_of(model: nn.Module) -> nn.Module:
    """Make what DataParallel calls on each device in the model's place."""
    made = {name: module._replicate_for_data_parallel() for name, module in model.named_modules()}
    for name, module in model.named_modules():
        for key in module._modules:
            made[name]._modules[key] = made[f"{name}.{key}" if name else key]
        for key, parameter in module._parameters.items():
            setattr(made[name], key, None if parameter is None else parameter.detach())
    return made[""]


@pytest.mark.parametrize("strength", FUNCTIONS)
def test_a_replica_has_the_strengths_of_its_own_call(path, strength):
    model, x = net(), torch.randn(1, 4, 8, 8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, FUNCTIONS[strength])]))
    want = model(x, torch.tensor([900.0]))
    model(x, torch.tensor([100.0]))
    got = replica_of(model)(x, torch.tensor([900.0]))
    assert (got - want).abs().max() < 1e-6, "its weights are no parameters, so products are made in another order"


@pytest.mark.parametrize("inside", [False, True], ids=["the model", "a block"])
def test_names_of_wrapped_models_are_those_of_the_model(tmp_path, inside):
    model = net()
    wrapped: nn.Module = model
    if inside:
        model.first = nn.DataParallel(model.first)  # type: ignore[assignment]
    else:
        wrapped = nn.DataParallel(model)
    path = tmp_path / "a.safetensors"
    save_file(pair("lora_unet_first", (8, 8), 2) | pair("lora_unet_second", (8, 8), 2), path)
    report = Engine({"unet": wrapped}).activate(Stack([Entry(path)]))
    assert (report.entries[0].hit, report.entries[0].unused) == (2, ())


def test_a_name_that_begins_like_a_wrapped_layer_s_stays_as_it_is(tmp_path):
    layers = nn.ModuleDict({"base_layers": nn.Linear(8, 8), "base_layer": nn.Linear(8, 8)})
    model = nn.ModuleDict({"mid": layers})
    save_file(
        pair("lora_unet_mid_base_layers", (8, 8), 2) | pair("lora_unet_mid", (8, 8), 2), tmp_path / "a.safetensors"
    )
    report = Engine({"unet": model}).activate(Stack([Entry(tmp_path / "a.safetensors")]))
    assert (report.entries[0].hit, report.entries[0].unused) == (2, ())


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_convolution_that_peft_wraps_gets_what_it_gets_without(tmp_path, kernel):
    """PEFT's wrapper of a convolution says in_features and out_features, as a linear layer does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, kernel, padding="same"), nn.Linear(5, 5)).requires_grad_(False)
    tensors = pair("lora_unet_0", (6, 4, kernel, kernel), 2) | pair("lora_unet_1", (5, 5), 2)
    path, x = save(tmp_path / "a.safetensors", tensors), torch.randn(1, 4, 5, 5)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.7)]))
    want = model(x)
    engine.close()
    wrapped = peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["0", "1"]), model)  # `up` is zero
    engine = Engine({"unet": wrapped})
    report = engine.activate(Stack([Entry(path, 0.7)]))
    assert (report.entries[0].hit, report.entries[0].unused) == (2, ())
    assert (wrapped(x) - want).abs().max() < 1e-6, "with gradients, products are made in another order"
    engine.close()


# compilers ------------------------------------------------------------------------------------------------------------


class OtherLinear(nn.Module):
    """A layer of a host that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features, self.out_features = 8, 8
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), None

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def test_models_of_others_are_not_compiled_again_when_a_lora_comes(tmp_path):
    count = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    torch.compiler.reset()
    model = nn.Sequential(OtherLinear()).requires_grad_(False)
    engine = Engine({"unet": model})
    other, x = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend=backend), torch.randn(3, 8)
    other(x)
    assert count == 1
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_0", (8, 8), 2)))]))
    other(x)
    engine.deactivate()
    other(x)
    assert count == 1


# layers of hosts ------------------------------------------------------------------------------------------------------


class NamedInput(nn.Linear):
    """Its input is its second argument by name."""

    def forward(self, *, scale: float, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) * scale


class Pairwise(nn.Linear):
    """Returns its bias beside its output, as Megatron's layers do."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return super().forward(x), None


@pytest.mark.parametrize("kind", ["pair", "diff", "oft"])
def test_a_layer_whose_input_is_not_its_first_argument(tmp_path, kind):
    layer = NamedInput(8, 8, bias=False).requires_grad_(False)
    path, delta = _file_of_kind(tmp_path, kind, layer)
    x = torch.randn(3, 8)
    plain = layer(scale=2.0, hidden_states=x)
    model = nn.Sequential(layer)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    got = layer(scale=2.0, hidden_states=x)
    # the LoRA beside the layer is added to what the layer returns, the weight that was changed is inside of it
    want = plain + nn.functional.linear(x, delta) * (1 if kind == "pair" else 2)
    assert (got - want).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["pair", "diff", "oft"])
@pytest.mark.parametrize("per_image", [False, True])
def test_a_layer_that_returns_more_than_its_output(tmp_path, kind, per_image):
    layer = Pairwise(8, 8).requires_grad_(False)
    path, delta = _file_of_kind(tmp_path, kind, layer)

    class Model(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self[0](x)[0]
            return y

    model = Model(layer)
    x = torch.randn(2, 3, 8)
    plain = layer(x)[0]
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, PerImage((1.0, 0.0)) if per_image else 1.0)]))
    want = plain + nn.functional.linear(x, delta) * (torch.tensor([1.0, 0.0]).view(2, 1, 1) if per_image else 1)
    assert (model(x) - want).abs().max() < 1e-5


class Output(NamedTuple):
    """What a layer of a host returns."""

    first: Tensor
    second: Any = None


class Returning(nn.Linear):
    """Returns its output as `form` has it."""

    form: Callable[[Tensor], Any]

    def forward(self, x: Tensor) -> Any:
        return self.form(super().forward(x))


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "namedtuple": lambda y: Output(y, 3),
    "tuple": lambda y: (y, y + 1),
    "list": lambda y: [y, None],
    "of torch": lambda y: y.unsqueeze(-1).max(-1),
}


class Denoiser(nn.Sequential):
    """Hands the places of a picture, (rows, channels, height, width), to its layer, and keeps what that returns."""

    def forward(self, x: Tensor) -> Tensor:
        self.returned = self[0](x.flatten(2).mT)
        y: Tensor = self.returned[0].mT.reshape(x.shape)
        return y


ACTS = {
    "": (1.0, torch.ones(1)),
    "image": (PerImage((1.0, 0.0)), torch.tensor([1.0, 0.0]).view(2, 1, 1)),
    "region": (FUNCTIONS["a region"], torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 4, 1)),
}
"""What a strength is for: the strength, and the factor that each place of each image has."""


@pytest.mark.parametrize("kind", ["pair", "diff", "oft"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("per", ACTS)
def test_a_layer_returns_what_it_returned_in_the_same_form(tmp_path, kind, form, per):
    layer = Returning(8, 8).requires_grad_(False)
    layer.form = FORMS[form]
    path, delta = _file_of_kind(tmp_path, kind, layer)
    x = torch.randn(2, 8, 2, 2)
    tokens = x.flatten(2).mT
    plain = layer(tokens)
    model = Denoiser(layer)
    engine = Engine({"unet": model})
    strength, factor = ACTS[per]
    engine.activate(Stack([Entry(path, strength)]))
    model(x)
    got = model.returned
    assert type(got) is type(plain)
    assert len(got) == len(plain)
    assert (got[0] - plain[0] - nn.functional.linear(tokens, delta) * factor).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("form", "name"), [(lambda y: {"y": y}, "dict"), (lambda y: (None, y), "tuple"), (lambda y: [], "list")]
)
def test_a_layer_whose_output_nothing_can_be_added_to_is_named(tmp_path, form, name):
    layer = Returning(8, 8).requires_grad_(False)
    layer.form = form
    path, _ = _file_of_kind(tmp_path, "pair", layer)
    model = nn.Sequential(layer)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)]))
    with pytest.raises(ComponentError, match=f"a Returning returned a {name} .*; remove the LoRA from this model"):
        layer(torch.randn(3, 8))


def _file_of_kind(folder: Path, kind: str, layer: nn.Linear) -> tuple[Path, Tensor]:
    """Return a file, and the change of the weight that it means."""
    if kind == "pair":
        tensors = pair("lora_unet_0", (8, 8), 2)
        delta = tensors["lora_unet_0.lora_up.weight"] @ tensors["lora_unet_0.lora_down.weight"]
    elif kind == "diff":
        delta = torch.randn(8, 8)
        tensors = {"diffusion_model.0.diff": delta}
    else:
        path = save(folder / "a.safetensors", {"lycoris_0.oft_blocks": torch.randn(2, 4, 4) * 0.1})
        return path, load_network(path, {"unet": nn.Sequential(layer)}).delta_weight("unet", "0")
    return save(folder / "a.safetensors", tensors), delta


def test_a_layer_that_is_called_in_two_dtypes_by_turns_is_right_in_each(path):
    model = net()
    engine = Engine({"unet": model})

    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

    model.first.__class__ = model.second.__class__ = Cast
    engine.activate(Stack([Entry(path)]))
    x = torch.randn(3, 8)
    want = {dtype: model(x.to(dtype)) for dtype in (torch.float32, torch.float64)}
    assert (want[torch.float32] - want[torch.float64]).abs().max() < 1e-5
    for _ in range(3):
        for dtype, expected in want.items():
            assert torch.equal(model(x.to(dtype)), expected)


class WithNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


@pytest.mark.parametrize("how", ["in place", "assigned", "by data"])
def test_weights_that_are_loaded_into_a_model_count_when_the_same_stack_comes_again(tmp_path, how):
    """Norms of a DoRA are those of the weight that is there."""
    torch.manual_seed(0)
    model, other = WithNorms().requires_grad_(False), WithNorms().requires_grad_(False)
    tensors = pair("lora_unet_layer", (8, 8), 2) | {"lora_unet_layer.dora_scale": torch.rand(8, 1) + 1}
    stack = Stack([Entry(save(tmp_path / "a.safetensors", tensors))])
    engine, x = Engine({"unet": model}), torch.randn(3, 8)
    engine.activate(stack)
    model(x)
    if how == "by data":
        model.layer.weight.data = other.layer.weight.data.clone()
        model.layer.bias.data = other.layer.bias.data.clone()
    else:
        model.load_state_dict(other.state_dict(), assign=how == "assigned")
    engine.activate(stack)
    engine_of_other = Engine({"unet": other})
    engine_of_other.activate(stack)
    assert torch.equal(model(x), other(x))
