"""Layers that are given the same tensor make one product with it, and no more than that is different."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib_lora import Engine, Entry, PerImage, Region, Stack, Strength, engine, resident
from lib_lora import sharing as sharing_module
from lib_lora.patch import slot_of
from lib_lora.sharing import Sharing
from tests.fakes.accelerator import device, simulated
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs
from tests.selection import examples

IN, OUT, RANK, TOKENS = 32, 40, 4, 3
BOUND = 2.0**-20  # of the largest output, in float32

NAMES = ("to_q", "to_k", "to_v")
Between = Callable[[Tensor], object]


class Attention(nn.Module):
    """The three projections of one, of its input or of another tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        for name in NAMES:
            self.add_module(name, nn.Linear(IN, OUT))
        self.between: Between = lambda x: None  # after the first of them

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q = self.to_q(x)
        self.between(x)
        return torch.stack([q, self.to_k(context), self.to_v(context)]).flatten(0, 1)


class Products(TorchDispatchMode):
    """Notes how wide the results of all products without a bias are: those with down matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        whole = function is torch.ops.aten.linear.default and len(args) == 2  # not taken apart in inference mode
        if function is torch.ops.aten.mm.default or whole:
            self.widths.append(result.shape[-1])
        return result


@pytest.fixture(autouse=True)
def faster(monkeypatch):
    """Say that one product takes so long in units of a product for each, on every device."""

    def say(ratio: float, asked: list[object] | None = None) -> None:
        turns = itertools.cycle([ratio, 1.0])

        def seconds(run: Callable[[], object]) -> float:
            if asked is not None:
                asked.append(run())
            return next(turns)

        monkeypatch.setattr(engine, "Sharing", partial(Sharing, lambda device: seconds))

    say(0.5)
    return say


@pytest.fixture
def model():
    return Attention().requires_grad_(False)


@pytest.fixture
def files(tmp_path):
    return [make(tmp_path / f"{i}.safetensors", seed=i) for i in range(2)]


def make(path: Path, seed: int, names: tuple[str, ...] = NAMES) -> Path:
    tensors = {}
    for i, name in enumerate(names):
        tensors |= pair(f"lora_unet_{name}", (OUT, IN), RANK, seed=10 * seed + i, size=0.3)
    return save(path, tensors)


def sharing(model: nn.Module, *, share: bool = True) -> Engine:
    return Engine({"unet": model}, kernels="measured" if share else "torch")


def learned(model: nn.Module, file: Path) -> Engine:
    """An engine with a file in force, on a model that was called twice: once to learn, and once as learned."""
    served = sharing(model)
    served.activate(Stack([Entry(file)]))
    with torch.no_grad():
        for _ in range(2):
            model(x_of())
    model.served = served  # or it would take its adapters away with it
    return served


def projected(model: nn.Module, name: str, x: Tensor, files: dict[Path, float]) -> Tensor:
    """One of the projections in double precision."""
    layer = model.get_submodule(name)
    weight = layer.weight.double()
    for file, strength in files.items():
        tensors = load_file(file)
        down, up = (tensors[f"lora_unet_{name}.lora_{side}.weight"].double() for side in ("down", "up"))
        weight = weight + strength * (up @ down)
    return x.double() @ weight.t() + layer.bias.double()


def exact(model: nn.Module, x: Tensor, files: dict[Path, float], context: Tensor | None = None) -> Tensor:
    context = x if context is None else context
    given = dict(zip(NAMES, (x, context, context), strict=True))
    return torch.cat([projected(model, name, given[name], files) for name in NAMES])


def widths(model: nn.Module, *args: Tensor) -> list[int]:
    with Products() as products:
        model(*args)
    return products.widths


def x_of(seed: int = 0) -> Tensor:
    return torch.randn(1, TOKENS, IN, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_q_k_and_v_are_one_product_from_the_second_call_on(model, files):
    served = sharing(model)
    served.activate(Stack([Entry(files[0], 0.8)]))
    x, want = x_of(), {files[0]: 0.8}
    assert widths(model, x) == [RANK] * 3
    assert widths(model, x) == [3 * RANK]
    assert worst(model(x), exact(model, x, want)) < BOUND
    served.set_multiplier(0, -1.5)
    assert worst(model(x), exact(model, x, {files[0]: -1.5})) < BOUND
    served.deactivate()
    assert widths(model, x) == []
    assert torch.equal(model(x), Attention().requires_grad_(False)(x))


@torch.no_grad()
def test_another_stack_shares_at_once_and_the_former_again(model, files):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    x = x_of()
    widths(model, x)
    stacks = [{files[1]: 0.5}, {files[0]: 1.0, files[1]: 0.7}, {files[0]: 1.0}, {files[1]: 0.5}]
    for stack in stacks:
        served.activate(Stack([Entry(file, strength) for file, strength in stack.items()]))
        assert widths(model, x) == [3 * RANK * len(stack)]
        assert worst(model(x), exact(model, x, stack)) < BOUND


@torch.no_grad()
def test_without_being_told_to_each_makes_its_own(model, files):
    served = sharing(model, share=False)
    served.activate(Stack([Entry(files[0])]))
    x = x_of()
    assert widths(model, x) == widths(model, x) == [RANK] * 3


@torch.no_grad()
def test_where_it_is_not_faster_each_makes_its_own(model, files, faster):
    asked: list[object] = []
    faster(0.97, asked)
    learned(model, files[0])
    x = x_of()
    assert widths(model, x) == [RANK] * 3
    assert worst(model(x), exact(model, x, {files[0]: 1.0})) < BOUND
    one, each = asked
    assert worst(one, torch.cat(each, -1)) < BOUND, "both are timed, once"


@torch.no_grad()
def test_nothing_is_measured_while_a_graph_is_captured(model, files, monkeypatch):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    x = x_of()
    monkeypatch.setattr(sharing_module, "captures", lambda device: True)
    for _ in range(2):
        model(x)
    assert widths(model, x) == [RANK] * 3
    monkeypatch.setattr(sharing_module, "captures", lambda device: False)
    model(x)
    monkeypatch.setattr(sharing_module, "captures", lambda device: True)
    assert widths(model, x) == [3 * RANK]


@torch.no_grad()
def test_without_room_for_all_each_makes_its_own(model, files, monkeypatch):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    x = x_of()
    model(x)

    want = exact(model, x, {files[0]: 1.0})

    def no_room(tensors: object) -> None:
        raise torch.cuda.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(sharing_module.torch, "cat", no_room)
        assert widths(model, x) == [RANK] * 3
        assert worst(model(x), want) < BOUND
    assert widths(model, x) == [3 * RANK]


@torch.no_grad()
def test_on_a_cpu_it_is_not_done(model, files, monkeypatch):
    monkeypatch.setattr(engine, "Sharing", Sharing)
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    x = x_of()
    assert widths(model, x) == widths(model, x) == [RANK] * 3


@torch.no_grad()
@pytest.mark.parametrize("settings", [{"storage": "bfloat16"}, {"device_budget": 1}, {"rank_buckets": (8,)}])
def test_where_matrices_may_not_lie_together_each_makes_its_own(model, files, settings):
    served = Engine({"unet": model}, kernels="measured", **settings)
    served.activate(Stack([Entry(files[0])]))
    x = x_of()
    assert len(widths(model, x)) == len(widths(model, x)) == 3


@torch.no_grad()
def test_k_and_v_of_a_cross_attention_share_and_q_does_not(model, files):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    x, context = x_of(), x_of(1)
    widths(model, x, context)
    assert widths(model, x, context) == [RANK, 2 * RANK]
    assert worst(model(x, context), exact(model, x, {files[0]: 1.0}, context)) < BOUND


@torch.no_grad()
def test_a_model_that_calls_its_layers_otherwise_is_learned_anew(model, files):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    x, context, want = x_of(), x_of(1), {files[0]: 1.0}
    for _ in range(2):
        model(x)
    assert worst(model(x, context), exact(model, x, want, context)) < BOUND
    model(x, context)
    assert widths(model, x, context) == [RANK, 2 * RANK], "what k and v would take is not made in vain"
    model(x)
    assert worst(model(x), exact(model, x, want)) < BOUND
    assert widths(model, x) == [3 * RANK]


@torch.no_grad()
def test_a_tensor_that_was_written_to_is_another(model, files):
    learned(model, files[0])
    model.between = lambda x: x.mul_(3)
    x = x_of()
    assert worst(model(x), exact(model, x_of(), {files[0]: 1.0}, 3 * x_of())) < BOUND


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_where_torch_does_not_count_writes_it_is_tried_first(model, files, factor):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    if factor != 1.0:
        model.between = lambda x: x.mul_(factor)
    found = []
    for _ in range(4):
        with torch.inference_mode():
            x = x_of()
            found.append(widths(model, x))
            x = x_of()
            got = model(x)
        assert worst(got.clone(), exact(model, x_of(), {files[0]: 1.0}, factor * x_of())) < BOUND
    assert found[-1] == ([3 * RANK] if factor == 1.0 else [RANK] * 3)


def test_nothing_is_tried_while_a_graph_is_captured(model, files, monkeypatch):
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    captured = False
    monkeypatch.setattr(sharing_module, "captures", lambda device: captured)

    def begin(x: Tensor) -> None:
        nonlocal captured
        captured = True

    model.between = begin
    with torch.inference_mode():
        for _ in range(3):
            got, captured = model(x_of()), False
        assert not served._keeping.sharing._checked
    assert worst(got.clone(), exact(model, x_of(), {files[0]: 1.0})) < BOUND


@torch.no_grad()
def test_a_stack_that_is_exchanged_between_two_of_them_has_its_own(model, files):
    served = sharing(model)
    for file in (files[1], files[0]):
        served.activate(Stack([Entry(file)]))
        for _ in range(2):
            model(x_of())
    model.between = lambda x: served.activate(Stack([Entry(files[1])]))
    x = x_of()
    q, k, v = model(x).split(1)
    assert worst(q, projected(model, "to_q", x, {files[0]: 1.0})) < BOUND
    assert worst(k, projected(model, "to_k", x, {files[1]: 1.0})) < BOUND
    assert worst(v, projected(model, "to_v", x, {files[1]: 1.0})) < BOUND


@torch.no_grad()
def test_other_ranks_are_measured_anew_and_each_once(model, files, faster):
    asked: list[object] = []
    faster(0.5, asked)
    served = sharing(model)
    for count, times in [(1, 1), (2, 2), (1, 2), (2, 2)]:
        served.activate(Stack([Entry(file) for file in files[:count]]))
        for seed in range(3):
            model(x_of(seed))
        assert len(asked) == 2 * times


@torch.no_grad()
def test_a_first_layer_whose_adapters_come_for_each_call_makes_its_own(model, files, monkeypatch):
    monkeypatch.setattr(resident, "stays", lambda layer: layer is not model.to_q)
    learned(model, files[0])
    x = x_of()
    assert widths(model, x) == [RANK] * 3
    assert worst(model(x), exact(model, x, {files[0]: 1.0})) < BOUND


@torch.no_grad()
def test_images_with_strengths_of_their_own_share_too(model, files):
    served = sharing(model)
    served.activate(Stack([Entry(files[0], PerImage((0.5, -1.0)))]))
    x = torch.cat([x_of(), x_of(1)])
    model(x)
    assert 3 * RANK in widths(model, x)
    got = model(x).unflatten(0, (3, 2))
    for image, strength in enumerate((0.5, -1.0)):
        want = exact(model, x[image : image + 1], {files[0]: strength})
        assert worst(got[:, image], want) < BOUND


@torch.no_grad()
def test_it_takes_no_more_memory_and_holds_nothing_afterwards(model, files):
    taken = {}
    for share in (False, True):
        served = sharing(model, share=share)
        served.activate(Stack([Entry(files[0])]))
        x = x_of()
        for _ in range(2):
            model(x)
        taken[share] = served.memory()
        downs = [slot_of(model.get_submodule(name)).way.down() for name in NAMES]
        storages = {down.untyped_storage().data_ptr(): down.untyped_storage().nbytes() for down in downs}
        assert sum(storages.values()) == 3 * RANK * IN * 4
        assert len(storages) == (1 if share else 3)
        held = [weakref.ref(one) for one in (x, *downs)]
        del x, downs
        served.deactivate()
        gc.collect()
        assert [ref() for ref in held] == [None] * 4
    assert taken[True] == taken[False]


@torch.no_grad()
def test_an_interrupted_step_leaves_nothing_wrong(model, files):
    learned(model, files[0])
    x = x_of()
    model.to_q(x)  # and then the user stops it
    y = x_of(1)
    for one in (y, x, y):
        assert worst(model(one), exact(model, one, {files[0]: 1.0})) < BOUND
    assert widths(model, x) == [3 * RANK]


@torch.no_grad()
def test_layers_that_come_to_a_device_one_by_one_make_their_own(model, files):
    with simulated():
        served = sharing(model)
        served.activate(Stack([Entry(files[0])]))
        plain = {}
        for where in ("cpu", device(), "cpu"):
            model.to(where)
            for _ in range(3):
                plain[where] = model(x_of().to(where)).cpu()
            assert worst(plain[where], exact(model.cpu(), x_of(), {files[0]: 1.0})) < BOUND
        model.to_q.to(device())
        q = model.to_q(x_of().to(device())).cpu()
        assert worst(q, projected(model.cpu(), "to_q", x_of(), {files[0]: 1.0})) < BOUND


@torch.no_grad()
def test_compiled_code_has_no_break_and_each_layer_its_own(model, files):
    learned(model, files[0])
    x = x_of()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        assert worst(compiled(x), exact(model, x, {files[0]: 1.0})) < BOUND
    assert widths(model, x) == [3 * RANK]


def test_gradients_are_those_of_each_layer(model, files):
    learned(model, files[0])
    x = x_of().requires_grad_()
    model(x).sum().backward()
    want = x_of().double().requires_grad_()
    exact(model, want, {files[0]: 1.0}).sum().backward()
    assert worst(x.grad, want.grad) < BOUND
    for one in (model.to_q(x), model.to_k(x)):  # each has a graph of its own
        one.sum().backward()


@torch.no_grad()
def test_a_whole_model_with_regions_and_changed_strengths(tmp_path):
    model = tiny_unet(0)
    files = [kohya_lora(tmp_path / f"{i}.safetensors", {"unet": model}, seed=i) for i in range(2)]
    region = Strength(region=Region.rectangle(0, 0, 0.5, 1))
    found = {}
    for share in (False, True):
        served = sharing(model, share=share)
        served.activate(Stack([Entry(files[0], 0.7), Entry(files[1], -0.4)]))
        outputs = [model(**unet_inputs(seed))[0] for seed in range(3)]
        served.activate(Stack([Entry(files[0], region), Entry(files[1], 0.5)]))
        found[share] = [*outputs, *[model(**unet_inputs(seed))[0] for seed in range(2)]]
        served.close()
    for shared, own in zip(found[True], found[False], strict=True):
        assert worst(shared, own) < 2.0**-17


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.no_grad()
def test_on_a_gpu_it_is_measured_and_right(model, files, monkeypatch):
    monkeypatch.setattr(engine, "Sharing", Sharing)
    model.to("cuda")
    served = sharing(model)
    served.activate(Stack([Entry(files[0])]))
    for seed in range(3):
        x = x_of(seed).cuda()
        assert worst(model(x).cpu(), exact(model.cpu(), x.cpu(), {files[0]: 1.0})) < BOUND
        model.to("cuda")
    assert len(served._keeping.sharing._pays) == 1


CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["same", "new", "former", "written", "alike"])), max_size=30
)


@settings(deadline=None, max_examples=examples(60))
@given(calls=CALLS)
def test_whatever_is_called_with_whatever_each_gives_its_own(tmp_path_factory, calls):
    folder = tmp_path_factory.mktemp("sharing")
    model, file = Attention().requires_grad_(False), make(folder / "a.safetensors", seed=0)
    served = sharing(model)
    served.activate(Stack([Entry(file)]))
    with torch.no_grad():
        for _ in range(2):
            model(x_of())
        former, x = x_of(1), x_of(2)
        for i, (name, what) in enumerate(calls):
            if what == "new":
                former, x = x, x_of(10 + i)
            elif what == "former":
                former, x = x, former
            elif what == "alike":
                former, x = x, x.clone()
            elif what == "written":
                x.add_(1.0)
            got = model.get_submodule(name)(x)
            assert worst(got, projected(model, name, x, {file: 1.0})) < BOUND
    served.close()
