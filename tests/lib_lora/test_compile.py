"""A compiled model takes adapters, and a change of strength recompiles nothing."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lib_lora import ComponentError, Engine, Entry, PerImage, Region, Stack, Strength, compiler, install, uninstall
from lib_lora.adapters import Operation
from lib_lora.compiler import compiling, uncompiled
from tests.conftest import TORCH
from tests.fakes import quantized
from tests.fakes.files import pair, save

testing = pytest.importorskip("torch._dynamo.testing")
pytestmark = pytest.mark.skipif(TORCH < (2, 3), reason="compilations are counted as torch 2.3 and later make them")


@torch.no_grad()
def test_strengths_removal_and_swap_are_seen_by_compiled_code(tmp_path):
    torch._dynamo.reset()
    install()
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)).requires_grad_(False)
    files = [
        save(tmp_path / f"{i}.safetensors", pair("lora_unet_0", (12, 8), 4, seed=i) | pair("lora_unet_2", (8, 12), 4))
        for i in range(2)
    ]
    counter = testing.CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = torch.randn(3, 8)
    engine = Engine({"unet": model})

    def same() -> torch.Tensor:
        got = compiled(x)
        torch.testing.assert_close(got, model(x))  # strengths are numbers in eager mode, and tensors in a graph
        return got

    plain = same()
    assert counter.frame_count == 1
    engine.activate(Stack([Entry(files[0], 0.5)]))
    outputs = [same()]
    assert counter.frame_count == 2, "compiled once more, with the adapters in"
    for multiplier in (0.9, -1.0, 0.0):
        engine.set_multiplier(0, multiplier)
        outputs.append(same())
    engine.activate(Stack([Entry(files[1], 0.5)]))  # another file of the same rank
    outputs.append(same())
    assert torch.equal(outputs[3], plain)
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 5
    engine.deactivate()
    assert torch.equal(same(), plain)
    assert counter.frame_count == 2, "neither strength, nor swap, nor removal compiled again"


@torch.no_grad()
def test_an_engine_that_is_collected_while_a_graph_runs_leaves_the_model(tmp_path):
    torch._dynamo.reset()
    frames = pytest.importorskip("torch._dynamo.eval_frame")
    model, x = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False), torch.randn(3, 8)
    plain, engine = model(x), Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_0", (8, 8), 4)))]))
    assert not torch.equal(model(x), plain)
    former = frames.set_eval_frame(torch._dynamo.optimize("eager", nopython=True).callback)  # all that runs is compiled
    try:
        engine._finalizer()
    finally:
        frames.set_eval_frame(former)
    assert torch.equal(model(x), plain)


@pytest.fixture
def no_guards_of_modules(monkeypatch):
    """Have torch skip the guards of modules, as torch 2.9 to 2.11 do on Python 3.13.0."""
    from torch._dynamo.guards import GuardBuilder

    name, watched = "use_recursive_dict_tags_for_guards", "_get_generic_dict_manager_example_value"
    if not (hasattr(torch._dynamo.config, name) and hasattr(GuardBuilder, watched)):
        pytest.skip("this torch checks all guards")
    monkeypatch.setattr(GuardBuilder, watched, staticmethod(lambda _: None))  # a dictionary that is not watched
    monkeypatch.setattr(compiler, "_REPORTS_NO_ATTRIBUTES", True)
    with torch._dynamo.config.patch({name: True}):
        yield


@torch.no_grad()
@pytest.mark.parametrize("taken_off", ["deactivate", "an empty stack"])
@pytest.mark.parametrize("how", ["torch.compile(model)", "model.compile()", "a block", "a function"])
def test_a_torch_that_skips_guards_is_refused_and_reported(tmp_path, no_guards_of_modules, how, taken_off):
    torch._dynamo.reset()
    install()
    model = nn.Sequential(Feed(nn.Linear)).requires_grad_(False)
    served, call = model, model
    x = torch.randn(3, 8)
    plain = model(x)
    match how:
        case "torch.compile(model)":
            served = call = torch.compile(model, backend="eager")
        case "model.compile()":
            model.compile(backend="eager")
        case "a block":
            model[0].compile(backend="eager")
        case "a function":
            call = torch.compile(lambda x: model(x), backend="eager")
    assert torch.equal(call(x), plain)
    tensors = pair("lora_unet_0_up", (12, 8), 4) | pair("lora_unet_0_down", (8, 12), 4)
    stack = Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.5)])
    engine = Engine({"unet": served})
    with pytest.raises(ComponentError, match="misses every change of its model"):
        engine.activate(stack)
    assert torch.equal(call(x), plain)
    assert engine.stack == Stack()
    torch._dynamo.config.use_recursive_dict_tags_for_guards = False  # as the sentence says, and compiled again
    torch._dynamo.reset()
    engine.activate(stack)
    got = call(x)
    assert not torch.equal(got, plain)
    assert not engine.report.silence
    torch._dynamo.config.use_recursive_dict_tags_for_guards = True
    torch._dynamo.reset()
    for _ in range(3):
        torch.testing.assert_close(call(x), got)
    assert "misses every change of its model" in engine.report.silence, "it was compiled after the activation"
    if taken_off == "deactivate":
        engine.deactivate()
    else:
        engine.activate(Stack())
    assert torch.equal(call(x), plain)


class Scaled(nn.Linear):
    """A class of a host, which is patched when the first of its layers gets a slot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class Feed(nn.Module):
    """A block."""

    def __init__(self, layer: type[nn.Linear]) -> None:
        super().__init__()
        self.up, self.down = layer(8, 12), layer(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


@torch.no_grad()
@pytest.mark.parametrize("layer", [nn.Linear, Scaled])
@pytest.mark.parametrize("how", ["model.compile()", "torch.compile(model)", "a block"])
def test_a_model_that_was_compiled_and_run_before_anything_was_installed(tmp_path, layer, how):
    torch._dynamo.reset()
    uninstall()
    model = (nn.Sequential(Feed(layer)) if how == "a block" else Feed(layer)).requires_grad_(False)
    counter = testing.CompileCounter()
    call = model
    if how == "torch.compile(model)":
        call = torch.compile(model, backend=counter, fullgraph=True)
    else:
        (model[0] if how == "a block" else model).compile(backend=counter, fullgraph=True)
    x = torch.randn(3, 8)
    plain = call(x)
    prefix = "lora_unet_0_" if how == "a block" else "lora_unet_"
    tensors = pair(f"{prefix}up", (12, 8), 4) | pair(f"{prefix}down", (8, 12), 4)
    path = save(tmp_path / "a.safetensors", tensors)
    install()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.5)]))
    bare = copy.deepcopy(model)
    for one in bare.modules():
        one._compiled_call_impl = None
    own = Engine({"unet": bare})
    own.activate(Stack([Entry(path, 0.5)]))
    got = call(x)
    assert (got - bare(x)).abs().max() < 1e-6
    assert not torch.equal(got, plain)
    frames = counter.frame_count
    engine.set_multiplier(0, -0.5)
    assert not torch.equal(call(x), got)
    engine.deactivate()
    assert torch.equal(call(x), plain)
    assert counter.frame_count <= frames + 1, "once more for the model without LoRA, and nothing for strengths"


@torch.no_grad()
@pytest.mark.parametrize("storage", ["bfloat16", "float8"])
def test_a_storage_of_fewer_bytes_is_widened_in_the_graph(tmp_path, storage):
    torch._dynamo.reset()
    install()
    model = nn.Sequential(nn.Linear(8, 12)).requires_grad_(False)
    file = save(tmp_path / "a.safetensors", pair("lora_unet_0", (12, 8), 4))
    engine = Engine({"unet": model}, storage=storage)
    engine.activate(Stack([Entry(file, 0.5)]))
    counter = testing.CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = torch.randn(3, 8)
    for multiplier in (1.0, -0.3, 0.0):
        engine.set_multiplier(0, multiplier)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-6)  # eager calls have another plain way
    assert counter.frame_count == 1


@torch.no_grad()
def test_many_tokens_take_the_sum_of_weights_in_the_graph_too(tmp_path):
    torch._dynamo.reset()
    install()
    model = nn.Sequential(nn.Linear(16, 16)).requires_grad_(False)
    files = [save(tmp_path / f"{i}.safetensors", pair("lora_unet_0", (16, 16), 4, seed=i)) for i in range(2)]
    engine, graphs = Engine({"unet": model}), []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    many, few = torch.randn(2, 64, 16), torch.randn(2, 3, 16)
    for file, multiplier in ((files[0], 0.5), (files[1], -1.0)):
        engine.activate(Stack([Entry(file, multiplier)]))
        for x in (many, few):
            want = model(x)
            assert (compiled(x) - want).abs().max() < 1e-6 * want.abs().max()
    assert [torch.addmm in graph for graph in graphs] == [True, False], "one graph for each number of tokens"


class Net(nn.Module):
    """Layers that act beside themselves, on pictures and on tokens folded behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x).flatten(2).transpose(1, 2).flatten(0, 1))


class Denoiser(nn.Module):
    """A model of which hosts compile the part that computes."""

    def __init__(self, compiling) -> None:
        super().__init__()
        self.net = Net()
        self.run = [compiling(self.net)]  # no module of this one

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return self.run[0](sample)


@torch.no_grad()
@pytest.mark.parametrize("whole", [False, True], ids=["a part is compiled", "the whole is compiled"])
@pytest.mark.parametrize("kind", ["lora", "dora", "boft"])
def test_rows_of_several_images_compile_once_more(tmp_path, kind, whole):
    torch._dynamo.reset()
    install()
    counter = testing.CompileCounter()

    def compiling(net):
        return torch.compile(net, backend=counter, fullgraph=True, dynamic=False)

    model = Net().requires_grad_(False) if whole else Denoiser(compiling).requires_grad_(False)
    call = served = compiling(model) if whole else model
    net = model if whole else model.net
    engine = Engine({"unet": served})
    names = ("conv", "linear") if whole else ("net_conv", "net_linear")
    files = [save(tmp_path / f"{seed}.safetensors", adapters(kind, names, seed)) for seed in range(2)]
    x = torch.randn(4, 8, 4, 4)

    def activate(*multipliers: PerImage | float) -> None:
        engine.activate(Stack([Entry(file, one) for file, one in zip(files, multipliers, strict=True)]))

    plain = call(x)
    activate(0.5, 1.0)
    uniform = call(x)
    assert counter.frame_count == 2
    activate(PerImage((0.5, 0.0)), PerImage((0.0, 1.0)))
    outputs = [call(x)]
    assert counter.frame_count == 3, "once more for rows that differ"
    activate(PerImage((-0.5, 0.0)), PerImage((0.0, 0.1)))
    outputs.append(call(x))
    engine.set_multiplier(0, PerImage((-0.5, 0.7)))
    outputs.append(call(x))
    engine.set_rows(lambda rows: (0, 0, 1, 1))
    outputs.append(call(x))
    engine.set_rows(None)
    activate(*(PerImage((0.1, 0.2, 0.3, 0.4)), PerImage((0.4, 0.2, 0.0, 0.0))))
    outputs.append(call(x))
    activate(0.5, 1.0)
    assert torch.equal(call(x), uniform)
    engine.deactivate()
    assert torch.equal(call(x), plain)
    assert counter.frame_count == 3, "neither strengths, nor images, nor the order of rows compiled again"
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == len(outputs)
    activate(PerImage((0.5, 0.0)), PerImage((0.0, 1.0)))
    want = torch.cat([eager(engine, net, files, x[i : i + 1], ((0.5, 0.0), (0.0, 1.0))[i % 2]) for i in range(4)])
    assert (outputs[0] - want).abs().max() < 1e-5 * want.abs().max()


def adapters(kind: str, names: tuple[str, ...], seed: int) -> dict[str, torch.Tensor]:
    sizes = {"conv": (8, 8, 3, 3), "linear": (12, 8)}
    made = {}
    for name in names:
        shape = sizes[name.rpartition("_")[2]]
        prefix = f"lora_unet_{name}"
        if kind == "boft":
            made[f"{prefix}.oft_blocks"] = torch.randn(2, shape[0] // 4, 4, 4) * 0.1
            continue
        made |= pair(prefix, shape, 4, seed=seed, size=0.4)
        if kind == "dora":
            made[f"{prefix}.dora_scale"] = torch.rand(shape[0], *(1,) * (len(shape) - 1)) + 0.5
    return made


def eager(engine: Engine, net: nn.Module, files, x: torch.Tensor, multipliers: tuple[float, ...]) -> torch.Tensor:
    engine.activate(Stack([Entry(file, one) for file, one in zip(files, multipliers, strict=True)]))
    return net(x)


@torch.no_grad()
@pytest.mark.parametrize("whole", [True, False], ids=["the whole is compiled", "a part is compiled"])
def test_regions_of_a_compiled_model_are_those_of_the_model(tmp_path, whole):
    """Masks are looked up in operations of their own, so no change of a region compiles anything again."""
    torch._dynamo.reset()
    install()
    counter = testing.CompileCounter()

    def compiling(net):
        return torch.compile(net, backend=counter, dynamic=False, fullgraph=TORCH >= (2, 4))

    model = Net().requires_grad_(False) if whole else Denoiser(compiling).requires_grad_(False)
    served = compiling(model) if whole else model
    names = ("conv", "linear") if whole else ("net_conv", "net_linear")
    file = save(tmp_path / "a.safetensors", adapters("lora", names, 0))
    x = torch.randn(2, 8, 4, 4)
    engine = Engine({"unet": served})
    frames = []
    for region in (Region.rectangle(0, 0, 0.5, 1), Region.rectangle(0, 0.5, 1, 1), Region.rectangle(0.25, 0, 1, 1)):
        stack = Stack([Entry(file, Strength(0.8, region=region))])
        engine.activate(stack)
        got = served(x)
        frames.append(counter.frame_count)
        twin = eager_twin(model)
        bare = Engine({"unet": twin})
        bare.activate(stack)
        want = twin(x)
        assert (got - want).abs().max() < 1e-5 * want.abs().max()
    assert len(set(frames)) == 1, frames


def eager_twin(model):
    """Return the output without compilation and without slots."""
    if isinstance(model, Net):
        return copy.deepcopy(model)
    twin = Denoiser(lambda net: net)
    twin.load_state_dict({name.replace("_orig_mod.", ""): value for name, value in model.state_dict().items()})
    return twin.requires_grad_(False)


QUANTIZED = {
    "bitsandbytes nf4": 1,
    "quanto int8": 1,
    "SDNQ int8": 1,
    "SDNQ uint4 with SVD": 1,
    "GGUF Q4_0": 1,
    "torchao int8": 1,
    "torchao fp8": 1,
    "Forge GGUF": 2,  # which does not tell the dtype that it computes in, so that its first call decides
    "Forge manual cast": 2,
}
"""A storage -> how often a model is compiled for its first LoRA."""


@torch.no_grad()
@pytest.mark.skipif(TORCH < (2, 4), reason="before, the graph is broken where a layer is computed eagerly")
@pytest.mark.parametrize("compiled_first", [False, True], ids=["the LoRA first", "compiled first"])
@pytest.mark.parametrize("storage", QUANTIZED)
def test_a_quantized_layer_stays_in_one_graph(tmp_path, storage, compiled_first):
    torch._dynamo.reset()
    install()
    model, x = quantized.made(storage), torch.randn(3, quantized.INSIDE)
    twin = quantized.made(storage)
    if storage == "bitsandbytes nf4":
        model(x)  # CPUs with AVX-512 BF16 keep the codes in another order from the first call on
    counter = testing.CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    if compiled_first:
        compiled(x)
    frames = counter.frame_count
    tensors = pair("lora_unet_layer", (quantized.OUT, quantized.INSIDE), 4)
    stack = Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.5)])
    engine, eager_engine = Engine({"unet": model}), Engine({"unet": twin})
    engine.activate(stack)
    eager_engine.activate(stack)
    for strength in (0.5, -1.0, 0.0):
        engine.set_multiplier(0, strength)
        eager_engine.set_multiplier(0, strength)
        for _ in range(2):
            assert (compiled(x) - twin(x)).abs().max() < 1e-5
    assert counter.frame_count == frames + QUANTIZED[storage]


def test_what_is_uncompiled_is_called_as_it_is_by_compiled_code() -> None:
    seen: list[bool] = []

    @uncompiled
    def called(x: torch.Tensor) -> torch.Tensor:
        seen.append(compiling())
        return x + 1

    found = torch.compile(lambda x: called(x) * 2, backend="eager")(torch.ones(2))
    assert torch.equal(found, torch.full((2,), 4.0))
    assert seen == [False]


_LATE = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from torch import nn
from lib_lora import Curve, Engine, Entry, Moment, Stack, Strength

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 16)
    def forward(self, sample, timestep):
        return self.lin(sample)

factors = {"lora_down": torch.randn(4, 16), "lora_up": torch.randn(16, 4)}
save_file({f"lora_unet_lin.{name}.weight": value for name, value in factors.items()}, sys.argv[1])
net, x = Net(), torch.ones(1, 16)
engine = Engine({"unet": net})
engine.activate(Stack([Entry(Path(sys.argv[1]), Strength(Curve(((0.0, 0.0), (1.0, 1.0)))))]))
engine.set_moment(Moment(1, 4))
assert "torch._dynamo" not in sys.modules, "the compiler is imported by nothing before"
with torch.no_grad():
    eager, compiled = net(x, 5), torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, 5), eager)
"""


def test_hooks_from_before_the_compiler_was_imported_stay_out_of_graphs(tmp_path):
    command = [sys.executable, "-c", _LATE, str(tmp_path / "a.safetensors")]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_model_that_was_compiled_hides_no_layer_that_is_never_called(tmp_path):
    torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")(torch.zeros(2, 4))

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.layer.weight.t()

    engine = Engine({"unet": (model := Fused())})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_layer", (4, 4), 2)))]))
    model(torch.zeros(2, 4))
    assert engine.silent == {"unet"}
    assert [layer.path for layer in engine.report.uncalled] == ["layer"]
    engine.close()


def test_a_forward_is_not_asked_whether_it_is_true():
    """torch 2.11 cannot trace that of a function, and a model that was compiled with `fullgraph=True` fails."""

    class Forward:
        def __call__(self, x):
            return x

        def __bool__(self):
            raise TypeError("a forward was asked whether it is true")

    x = torch.ones(1, 2)
    assert Operation(nn.Linear(2, 2), 0, Forward()).whole(x) is x
