"""Every storage of a base weight: it can be read, and a LoRA on it does what it does on the fp32 weight."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MethodType

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, uninstall
from lib_lora.errors import ComponentError
from lib_lora.execution import hooks
from lib_lora.naming.index import targets_of
from lib_lora.registry import discover_classes
from lib_lora.weights import readers
from lib_lora.weights.readers.base import WeightReader, read_base_weight, weight_reader
from tests.covering import some_of
from tests.fakes.accelerator import device, simulated
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.quantized import FORMATS, INSIDE, OUT, ForgeLinear, Model, contents, dense_layer, made

READERS = discover_classes(readers, WeightReader)
os.environ["SDNQ_USE_TORCH_COMPILE"] = "0"  # read at its import: compiling takes a second for each shape and dtype


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    uninstall()
    yield
    uninstall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "a.safetensors", pair("lora_unet_layer", (OUT, INSIDE), 4, seed=3))


def inputs(name: str) -> Tensor:
    return torch.randn(2, 7, INSIDE, generator=torch.Generator().manual_seed(2)).to(FORMATS[name].dtype)


def similarity(one: Tensor, other: Tensor) -> float:
    return F.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0).item()


def change(model: nn.Module, x: Tensor, path: Path) -> Tensor:
    """Return the change that a file makes to a model's output."""
    engine = Engine({"unet": model})
    plain = model(x).double()
    engine.activate(Stack([Entry(path, 0.8)]))
    changed = model(x).double() - plain
    engine.deactivate()
    return changed


@pytest.mark.parametrize("name", FORMATS)
def test_the_weight_is_read_as_its_library_reads_it(name: str) -> None:
    model, x, one, dense = made(name), inputs(name), FORMATS[name], dense_layer()
    for moment in ("before the first call", "after it"):  # which moves and reorders the codes of bitsandbytes
        before = contents(model.named_parameters())
        weight = read_base_weight(model.layer, "weight")
        assert contents(model.named_parameters()) == before, moment
        assert weight.shape == (OUT, INSIDE), moment
        assert weight.dtype in (torch.float16, torch.bfloat16, torch.float32)
        assert type(weight) is Tensor
        assert not weight.requires_grad
        assert worst(weight, dense.weight) <= one.step, moment
        bias = read_base_weight(model.layer, "bias")  # which hosts cast as well
        assert worst(model(x), F.linear(x.double(), weight.double(), bias.double())) < one.forward, moment


@pytest.mark.parametrize("name", FORMATS)
def test_the_first_reader_that_takes_a_layer_is_its_own(name: str) -> None:
    """By `before`, not by its letter: one whose storage shows a floating dtype is asked before `dense`."""
    layer = made(name).layer
    own, *others = [reader.name for reader in READERS if reader.matches(layer, "weight")]
    assert own == weight_reader(layer, "weight").name == FORMATS[name].reader
    assert set(others) <= asked_after(own)


def asked_after(name: str) -> set[str]:
    """Return the readers that must be asked later than one, by its own `before` and by that of the others."""
    later = {reader.name: set(reader.before) for reader in READERS}
    found: set[str] = set()
    waiting = {name}
    while waiting:
        waiting = set.union(*(later[one] for one in waiting)) - found
        found |= waiting
    return found


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_has_a_layer_to_read(reader: type[WeightReader]) -> None:
    file = f"tests/fakes/quantized/{reader.__module__.rpartition('.')[2]}.py"
    known = {one.reader for one in FORMATS.values()}
    assert reader.name in known, f"Add {file} with `FORMATS`, one of which names {reader.name!r}, see CONTRIBUTING.md."


@pytest.mark.parametrize("name", FORMATS)
def test_a_layer_tells_its_logical_shape(name: str) -> None:
    (target,) = targets_of("layer", made(name).layer)
    assert (target.kind, target.shape) == ("linear", (OUT, INSIDE))


@pytest.mark.parametrize("name", FORMATS)
def test_t7_a_lora_changes_the_output_as_on_the_fp32_base_and_leaves_nothing(name: str, path: Path) -> None:
    model, x = made(name), inputs(name)
    want = change(Model(dense_layer()), x.float(), path)
    plain = model(x)
    before, attributes = contents(model.state_dict().items()), dict(model.layer.__dict__)
    got = change(model, x, path)
    assert similarity(got, want) > 0.999
    assert abs(got.norm() / want.norm() - 1) < 0.01
    assert torch.equal(model(x), plain)
    assert contents(model.state_dict().items()) == before
    assert model.layer.__dict__.keys() == attributes.keys()
    assert model.layer.__dict__.get("forward") == attributes.get("forward")


MOVES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "cpu": lambda model: model.to("cpu"),
    "bf16": lambda model: model.to(torch.bfloat16),
    "fp16 and back": lambda model: model.half().float(),
    "copy": copy.deepcopy,
}


@some_of(("name", "move"), FORMATS, MOVES, strength=1)
def test_a_moved_layer_does_what_it_does_without_adapters(name: str, move: str, path: Path) -> None:
    """Libraries refuse some casts, or cannot compute after them; then they do so with adapters, in the same words."""
    model, twin, x = made(name), made(name), inputs(name)
    want = change(Model(dense_layer()), x.float(), path)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8)]))
    model(x)
    twin(x)
    x = x.to(torch.bfloat16) if move == "bf16" else x.float() if move.startswith("fp16") else x
    plain, adapted = moved(twin, MOVES[move], x), moved(model, MOVES[move], x)
    if isinstance(plain, str) or isinstance(adapted, str):
        assert adapted == plain
    elif move == "copy":
        assert torch.equal(adapted, plain), "a copy starts without adapters"
    else:
        assert similarity(adapted.double() - plain.double(), want) > 0.999


def moved(model: nn.Module, move: Callable[[nn.Module], nn.Module], x: Tensor) -> Tensor | str:
    try:
        y: Tensor = move(model)(x)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return y


@pytest.mark.parametrize("name", ["scale_weight", "weight_scale"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1), (4, 2, 1)], ids=str)
def test_scales_of_tensors_rows_and_blocks(shape: tuple[int, ...], name: str) -> None:
    layer: nn.Module = nn.Linear(6, 4)
    layer.weight = nn.Parameter(torch.randn(4, 6).to(torch.float8_e4m3fn), requires_grad=False)
    scale = torch.rand(shape)
    setattr(layer, name, scale)
    of_each = scale.flatten().repeat_interleave(24 // scale.numel())
    assert torch.equal(read_base_weight(layer, "weight"), layer.weight.float() * of_each.view(4, 6))


def test_a_scale_beside_a_cast_weight_still_counts() -> None:
    layer = ForgeLinear(dense_layer(), torch.float8_e4m3fn, torch.tensor(0.25)).to(torch.bfloat16)
    assert torch.equal(read_base_weight(layer, "weight"), layer.weight.float() * 0.25)


class OnlyMultiplies(Tensor):
    """As torchao's packed int4: shows a shape and a dtype, and knows nothing but the product."""

    @staticmethod
    def __new__(cls, data: Tensor) -> OnlyMultiplies:
        self = Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)
        self.packed = data
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["packed"], None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            return F.linear(args[0], args[1].packed, *args[2:])
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].packed)
        raise NotImplementedError(f"{function} on a packed weight")


def test_a_weight_that_can_only_be_multiplied_by_is_read_so() -> None:
    layer = dense_layer()
    want = layer.weight.clone()
    layer.weight = nn.Parameter(OnlyMultiplies(want), requires_grad=False)
    assert torch.equal(read_base_weight(layer, "weight"), want)


def test_an_unknown_storage_is_named() -> None:
    layer = dense_layer()
    layer.weight = nn.Parameter(torch.zeros(3, dtype=torch.int16), requires_grad=False)
    with pytest.raises(ComponentError, match="Linear cannot be read: unknown quantization"):
        read_base_weight(layer, "weight")


def test_layers_that_declare_no_sizes_are_linear_only_if_their_storage_tells_a_matrix() -> None:
    assert [target.kind for target in targets_of("norm", nn.LayerNorm(4))] == ["norm"]
    assert [target.kind for target in targets_of("embedding", nn.Embedding(3, 4))] == ["embedding"]
    bare = nn.Module()
    bare.weight = nn.Parameter(torch.zeros(3, 4))
    assert targets_of("bare", bare) == ()


@pytest.mark.parametrize("options", [{}, {"use_quantized_matmul_conv": True}])
def test_convolutions_of_sdnq(options: dict[str, bool], tmp_path: Path) -> None:
    sdnq = pytest.importorskip("sdnq")
    dense = nn.Conv2d(32, 48, 3, padding=1).requires_grad_(False)
    quantized = sdnq.sdnq_post_load_quant(
        nn.Sequential(copy.deepcopy(dense)), weights_dtype="int8", quant_conv=True, minimum_allowed_numel=0, **options
    )
    model, x = Model(quantized[0]), torch.randn(2, 32, 6, 5)
    assert worst(read_base_weight(model.layer, "weight"), dense.weight) < 0.6 / 127
    path = save(tmp_path / "conv.safetensors", pair("lora_unet_layer", (48, 32, 3, 3), 4))
    assert similarity(change(model, x, path), change(Model(dense), x, path)) > 0.999


# a forward that the layer itself carries


def own_forward(self: nn.Linear, x: Tensor) -> Tensor:
    return 2 * F.linear(x, self.weight, self.bias)


def with_own_forward(layer: nn.Linear) -> nn.Linear:
    layer.forward = MethodType(own_forward, layer)
    return layer


def engine_for(model: nn.Module, path: Path) -> Engine:
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.8)]))
    return engine


def test_a_forward_the_layer_carries_is_reached_once_and_given_back(path: Path) -> None:
    model, x = Model(with_own_forward(dense_layer())), inputs("fp32")
    want, plain = change(Model(dense_layer()), x, path), model(x)
    engine = engine_for(model, path)
    assert worst(model(x).double() - plain, want) < 1e-5, "once, and not doubled by what the layer does"
    assert hooks.slot_of(model.layer).executor is not None
    engine.deactivate()
    assert model.layer.forward == MethodType(own_forward, model.layer)
    assert torch.equal(model(x), plain)


def test_it_is_given_back_through_hooks_that_came_meanwhile(path: Path) -> None:
    model, x = Model(with_own_forward(dense_layer())), inputs("fp32")
    plain = model(x)
    engine = engine_for(model, path)
    adapted = model(x)
    add_hook_to_module(model.layer, ModelHook())
    assert torch.equal(model(x), adapted)
    engine.deactivate()
    assert model.layer._old_forward == MethodType(own_forward, model.layer)
    engine.activate(Stack([Entry(path, 0.8)]))
    assert torch.equal(model(x), adapted), "and is found below a hook that was there before"
    remove_hook_from_module(model.layer)
    assert torch.equal(model(x), adapted)
    uninstall()
    assert model.layer.forward == MethodType(own_forward, model.layer)
    assert torch.equal(model(x), plain)


def test_a_layer_converted_while_adapters_are_active_is_found_again(path: Path) -> None:
    model, x = Model(dense_layer()), inputs("fp32")
    want = change(Model(dense_layer()), x, path)
    engine = engine_for(model, path)
    with_own_forward(model.layer)
    plain = Model(with_own_forward(dense_layer()))(x)
    assert worst(model(x).double() - plain, want) < 1e-5
    engine.activate(Stack([Entry(path, 0.8)]))
    assert worst(model(x).double() - plain, want) < 1e-5
    del model.layer.forward
    engine.activate(Stack([Entry(path, 0.8)]))
    assert worst(model(x).double() - dense_layer()(x), want) < 1e-5
    engine.deactivate()
    assert "forward" not in model.layer.__dict__


def test_a_copy_of_an_adapted_layer_computes_with_its_own_weight(path: Path) -> None:
    model, x = Model(with_own_forward(dense_layer())), inputs("fp32")
    plain = model(x)
    first = engine_for(model, path)
    other = copy.deepcopy(model)
    assert torch.equal(other(x), plain)
    other.layer.weight.zero_()
    other.layer.bias.zero_()
    assert not other(x).any()
    second = engine_for(other, path)
    first.deactivate()
    assert worst(other(x), change(Model(dense_layer()), x, path)) < 1e-5
    second.deactivate()
    assert other.layer.forward == MethodType(own_forward, other.layer)


def test_a_wrapper_of_others_around_ours_adds_nothing_twice(path: Path) -> None:
    model, x = Model(with_own_forward(dense_layer())), inputs("fp32")
    want, plain = change(Model(dense_layer()), x, path), model(x)
    engine = engine_for(model, path)
    ours = model.layer.forward
    model.layer.forward = MethodType(lambda self, x: ours(x), model.layer)
    for _ in range(2):
        assert worst(model(x).double() - plain, want) < 1e-5
        engine.activate(Stack([Entry(path, 0.8)]))
    uninstall()
    assert torch.equal(model(x), plain)


def test_adapters_follow_a_layer_with_a_forward_of_its_own(path: Path) -> None:
    with simulated():
        model = Model(with_own_forward(dense_layer()))
        engine = engine_for(model, path)
        model.to(device())
        assert hooks.slot_of(model.layer).executor.account.device == device(), "before the first call"
        engine.deactivate()


def test_readers_import_no_quantization_library() -> None:
    packages = {"diffusers"} | {one.needs.partition(".")[0] for one in FORMATS.values() if one.needs}
    assert len(packages) >= 6
    program = (
        "import sys, lib_lora.weights.readers.base as l, torch; l.read_base_weight(torch.nn.Linear(2, 2), 'weight');"
        f"print([m for m in {sorted(packages)} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
