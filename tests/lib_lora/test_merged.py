"""Merging is opt-in, starts from pristine weights each time, and leaves no trace."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack
from pathlib import Path

import accelerate
import pytest
import torch
from accelerate.hooks import remove_hook_from_module
from safetensors.torch import save_file
from torch import Tensor, nn

from lib_lora import ComponentError, Engine, Entry, FileError, Stack, StackError, load_network
from lib_lora.execution import hooks
from lib_lora.execution import merged as merged_module
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.merged import MergedExecutor
from lib_lora.weights.rounding import generator_for, round_stochastically
from tests.covering import some_of
from tests.fakes.accelerator import device, simulated
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs
from tests.fakes.schemes import call

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
LOW = DTYPES[1:]


class Model(nn.Module):
    """Two layers, the second of which has the first one's weight if `tied`."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, tied: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        if tied:
            self.two.weight = self.one.weight
        self.to(dtype).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Both layers, one after the other."""
        result: Tensor = self.two(self.one(x))
        return result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = pair("lora_unet_one", (16, 16), 4, seed=1) | pair("lora_unet_two", (16, 16), 4, seed=2)
    return save(tmp_path / "a.safetensors", tensors)


def bytes_of(value: Tensor) -> bytes:
    return value.data.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: bytes_of(value) for name, value in model.state_dict(keep_vars=True).items()}


def merged(entries: list[Entry], **more: object) -> Stack:
    return Stack(entries, mode="merged", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_rounded_sum_and_comes_off_to_the_bit(file, dtype):
    model = Model(dtype)
    before, pristine = bits(model), model.one.weight.clone()
    engine = Engine({"unet": model})
    live = Engine({"unet": (other := Model(torch.float32))})
    other.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    for strength in (1.0, 0.3, -2.0, 0.3):
        report = engine.activate(merged([Entry(file, strength)]))
        assert (report.merged, dict(report.live)) == (2, {})
        assert "2 layers merged" in report.summary()
        network = live.activate(Stack([Entry(file, strength)])).entries[0]
        assert network.hit == 2
        exact = pristine.double() + strength * load_network(file, {"unet": other}).delta_weight("unet", "one")
        step = torch.finfo(dtype).eps * exact.abs().clamp_min(torch.finfo(dtype).tiny)
        assert ((model.one.weight.double() - exact).abs() <= 1.01 * step + 1e-7).all()
    engine.set_multiplier(0, 0.0)
    assert bits(model) == before, "0 is the base"
    engine.set_multiplier(0, 1.0)
    assert bits(model) != before
    assert engine.stack.mode == "merged", "a new strength is the same stack otherwise"
    engine.deactivate()
    assert bits(model) == before


def test_the_same_stack_gives_the_same_bits_whatever_came_before(file):
    model, fresh = Model(torch.bfloat16), Model(torch.bfloat16)
    fresh.load_state_dict(model.state_dict())
    engine = Engine({"unet": model})
    for strength in (0.1, -3.0, 0.7):
        engine.activate(merged([Entry(file, strength)]))
    Engine({"unet": fresh}).activate(merged([Entry(file, 0.7)]))
    # the second engine is gone by now, and its model pristine again
    again = Engine({"unet": fresh})
    again.activate(merged([Entry(file, 0.7)]))
    assert bits(model) == bits(fresh)


def test_merged_equals_live_on_a_whole_unet(tmp_path):
    unet, inputs = tiny_unet(0), unet_inputs(0)
    file = kohya_lora(tmp_path / "a.safetensors", {"unet": unet}, conv=True)
    engine = Engine({"unet": unet})
    before, plain = bits(unet), call(unet, inputs)
    engine.activate(Stack([Entry(file, 0.8)]))
    live = call(unet, inputs)
    report = engine.activate(merged([Entry(file, 0.8)]))
    assert report.merged == report.entries[0].hit
    assert (call(unet, inputs) - live).abs().max() < 1e-5 * live.abs().max()
    engine.activate(Stack([Entry(file, 0.8)]))
    assert bits(unet) == before, "going live puts the weights back"
    assert torch.equal(call(unet, inputs), live)
    engine.deactivate()
    assert torch.equal(call(unet, inputs), plain)


def test_all_ways_of_leaving_put_the_weights_back(file):
    model = Model()
    before = bits(model)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    assert bits(model) != before
    engine.components = {"unet": Model()}
    assert bits(model) == before, "another model is served"
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    del engine
    gc.collect()
    assert bits(model) == before, "the engine is gone"
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    hooks.uninstall()
    assert bits(model) == before, "everything was uninstalled"


def test_a_failure_leaves_what_was_in_force(file, tmp_path, monkeypatch):
    model = Model()
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file, 0.5)]))
    held = bits(model)
    other = save(tmp_path / "b.safetensors", pair("lora_unet_two", (16, 16), 4) | pair("lora_unet_one", (16, 16), 4))
    merge = MergedExecutor._merge

    def fails(self: MergedExecutor, layer: nn.Module, values: dict[int, float]) -> None:
        merge(self, layer, values)
        if layer is model.two and not failed:
            failed.append(layer)
            raise RuntimeError("out of memory")

    failed: list[nn.Module] = []
    monkeypatch.setattr(MergedExecutor, "_merge", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.activate(merged([Entry(other)]))
    assert bits(model) == held
    assert engine.stack.entries[0].path == file
    failed.clear()
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.set_multiplier(0, 2.0)
    assert bits(model) == held
    engine.set_multiplier(0, 0.0)
    engine.deactivate()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("name", ["samples_of", "_fill", "kept", "_memory_of", "with_numbers", "_Written"])
def test_an_interruption_at_any_place_leaves_no_lora_in_a_weight(file, monkeypatch, name, when, dtype):
    """As Ctrl-C does: it comes between any two lines, also while weights are restored."""
    model, original, count = Model(dtype), getattr(merged_module, name), 0
    before = bits(model)

    def interrupted(*args: object, **kwargs: object) -> object:
        nonlocal count
        count -= 1
        if when == "before" and count == 0:
            raise KeyboardInterrupt
        result = original(*args, **kwargs)
        if count == 0:
            raise KeyboardInterrupt
        return result

    for number in range(1, 40):
        engine, done = Engine({"unet": model}), False
        with monkeypatch.context() as context:
            context.setattr(merged_module, name, interrupted)
            count = number
            try:
                engine.activate(merged([Entry(file)]))
                engine.activate(merged([Entry(file, 0.5)]))
                engine.deactivate()
                done = True
            except KeyboardInterrupt:
                pass
        engine.close()
        assert bits(model) == before, number
        if done:
            break
    assert done
    assert number > 1


@pytest.mark.parametrize("number", [1, 2])
def test_an_interruption_between_two_layers_leaves_no_lora_in_either(file, monkeypatch, number):
    model, count = Model(), 0

    class Interrupted(ExitStack):
        def callback(self, *args, **kwargs):
            nonlocal count
            count += 1
            super().callback(*args, **kwargs)
            if count == number:
                raise KeyboardInterrupt

    before, engine = bits(model), Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    monkeypatch.setattr(hooks, "ExitStack", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.deactivate()
    engine.close()
    assert bits(model) == before
    assert slot_of(model.one) is None
    assert slot_of(model.two) is None


@pytest.mark.parametrize("assign", [False, True])
def test_a_weight_that_was_loaded_meanwhile_is_left_alone(file, assign):
    """A1111 loads another checkpoint's weights into the same model."""
    model, loaded = Model(), Model()
    before = bytes_of(model.two.weight)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    model.one.load_state_dict(loaded.one.state_dict(), assign=assign)
    assert bytes_of(model.two.weight) != before, "the other layer stays merged"
    engine.deactivate()
    assert torch.equal(model.one.weight, loaded.one.weight)
    assert bytes_of(model.two.weight) == before


def test_a_load_that_fails_leaves_no_lora_behind(file):
    model = Model()
    before = bits(model)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({name: torch.zeros(3) for name in before})
    engine.deactivate()
    assert bits(model) == before


def test_a_model_that_is_unloaded_to_meta_is_let_go(file):
    model = Model()
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    model.to("meta")
    engine.deactivate()
    assert model.one.weight.device.type == "meta"


def test_a_merged_model_that_accelerate_offloads_is_put_back_where_accelerate_keeps_it(file):
    model, x = Model(), torch.randn(3, 16)
    before, plain = bits(model), model(x)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    want = model(x)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    with pytest.raises(
        ComponentError, match="weight of a Linear is offloaded now, so that no LoRA can be merged into it"
    ):
        engine.set_multiplier(0, 0.5)
    assert torch.equal(model(x), want), "nothing is half changed"
    engine.deactivate()
    assert torch.equal(model(x), plain)
    assert engine.activate(merged([Entry(file)])).live == {"its weights are swapped in and out": 2}
    engine.close()
    remove_hook_from_module(model, recurse=True)
    assert bits(model) == before


def test_a_merged_model_that_goes_to_a_disk_is_said_to_be_lost(file, tmp_path):
    model = Model()
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    accelerate.disk_offload(model, tmp_path / "disk", execution_device=torch.device("cpu"))
    with pytest.raises(ComponentError, match="load the model again"):
        engine.deactivate()
    engine.close()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Model(tied=True), "belongs to several layers"),
        (lambda: Model().to("meta"), "elsewhere"),
    ],
)
def test_what_cannot_be_put_back_is_served_live_and_said(file, make, reason):
    model = make()
    report = Engine({"unet": model}).activate(merged([Entry(file)]))
    assert report.merged == 0
    assert sum(report.live.values()) == 2
    assert all(reason in text for text in report.live)
    assert reason in report.summary()


def test_a_bias_is_merged_where_there_is_one(tmp_path):
    tensors = pair("lora_unet_one", (16, 16), 4) | {"lora_unet_one.diff_b": torch.randn(16)}
    file = save(tmp_path / "a.safetensors", tensors)
    for model, count in ((Model(), 1), (without := Model(), 0)):
        if model is without:
            model.one.bias = None
        x = torch.randn(3, 16)
        engine = Engine({"unet": model})
        before = bits(model)
        engine.activate(Stack([Entry(file, 0.5)]))
        live = model(x)
        report = engine.activate(merged([Entry(file, 0.5)]))
        assert report.merged == count
        assert (model(x) - live).abs().max() < 1e-5
        engine.deactivate()
        assert bits(model) == before


def test_a_model_that_moves_takes_the_merged_weights_along(file):
    model = Model(torch.bfloat16)
    before = bits(model)
    engine = Engine({"unet": model})
    with simulated():
        engine.activate(merged([Entry(file)]))
        held = bits(model)
        model.to(device())
        engine.set_multiplier(0, 0.5)
        engine.set_multiplier(0, 1.0)
        model.to("cpu")
        assert bits(model) == held
        model.to(device())
        engine.deactivate()
        model.to("cpu")
    assert bits(model) == before


def test_memory_that_others_share_is_not_written_to(file):
    """As of a twin over the same weights, or a checkpoint that is mapped."""
    model = Model()
    shared = {name: one.detach() for name, one in model.named_parameters()}
    places = {name: one.data_ptr() for name, one in model.named_parameters()}
    before = bits(model)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    assert bits(model) != before
    assert {name: bytes_of(one) for name, one in shared.items()} == before
    engine.set_multiplier(0, 0.3)
    engine.deactivate()
    assert bits(model) == before
    assert {name: one.data_ptr() for name, one in model.named_parameters()} == places


@pytest.mark.parametrize("moves", ["there", "there and back", "back", "merged there"])
def test_it_comes_off_wherever_the_model_went_meanwhile(file, moves):
    model, before = Model(), None
    with simulated():
        before = bits(model)
        if moves in ("back", "merged there"):
            model.to(device())
        engine = Engine({"unet": model})
        engine.activate(merged([Entry(file)]))
        if moves != "merged there":
            model.to("cpu" if moves == "back" else device())
        if moves == "there and back":
            model.to("cpu")
        engine.set_multiplier(0, 0.4)
        engine.deactivate()
        where = {one.device for one in model.parameters()}
        assert where == {torch.device("cpu") if moves.endswith("back") else device()}
        model.to("cpu")
        assert bits(model) == before


def test_weights_made_in_inference_mode(file):
    with torch.inference_mode():
        model = Model()
    before = bits(model)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    assert bits(model) != before
    engine.deactivate()
    assert bits(model) == before


@pytest.mark.parametrize("mode", ["often", "auto"])
def test_modes_that_are_none(mode):
    with pytest.raises(StackError, match=f"mode '{mode}' must be one of live, merged$"):
        Stack(mode=mode)


class TestCheckpoint:
    """Pristine weights that are in the checkpoint need no copy."""

    @pytest.fixture
    def model(self) -> Model:
        return Model(torch.float16)

    @staticmethod
    def sources(model: nn.Module) -> set[str]:
        ways = [slot.executor for layer in model.modules() if (slot := slot_of(layer)) is not None]
        return {one.source for way in ways if isinstance(way, MergedExecutor) for one in way._originals.values()}

    @pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
    def test_weights_are_read_again_from_where_they_came(self, model, file, tmp_path, prefix):
        path = tmp_path / "model.safetensors"
        save_file({prefix + name: value for name, value in model.state_dict().items()}, path)
        before = bits(model)
        engine = Engine({"unet": model}, checkpoints={"unet": [path]})
        engine.activate(merged([Entry(file)]))
        assert self.sources(model) == {"file"}
        engine.set_multiplier(0, -1.0)
        replaced = tmp_path / "new.safetensors"
        save_file({"x": torch.zeros(1)}, replaced)
        replaced.replace(path)  # as downloads do; whoever has the old file open still has it
        engine.deactivate()
        assert bits(model) == before

    def test_weights_that_differ_from_the_checkpoint_are_kept(self, model, file, tmp_path):
        path = tmp_path / "model.safetensors"
        save_file({name: value + 1 for name, value in model.state_dict().items()}, path)
        engine = Engine({"unet": model}, checkpoints={"unet": [path]})
        engine.activate(merged([Entry(file)]))
        assert self.sources(model) == {"memory"}

    def test_a_checkpoint_that_was_overwritten_is_named(self, model, file, tmp_path):
        path = tmp_path / "model.safetensors"
        save_file(model.state_dict(), path)
        engine = Engine({"unet": model}, checkpoints={"unet": [path]})
        engine.activate(merged([Entry(file)]))
        with path.open("r+b") as stream:
            stream.write(path.read_bytes())
        os.utime(path, ns=(1, 1))
        with pytest.raises(FileError, match=r"model\.safetensors: it was overwritten while .* load the model again"):
            engine.deactivate()


class TestOrder:
    """Stacking in order is what AUTOMATIC1111 bakes; adding up is what it is by default."""

    @some_of(
        ("first", "mode"),
        [one for one in SAMPLES if not one.additive and "linear" in one.layers],
        ["live", "merged"],
        strength=1,
    )
    def test_each_entry_acts_on_what_the_ones_before_left(self, tmp_path, first, mode):
        last = next(one for one in SAMPLES if one.name == "set weight")
        model = nn.ModuleDict({"layer": nn.Linear(24, 24)}).requires_grad_(False)
        weight, x = model["layer"].weight.clone(), torch.randn(5, 24)
        files, effective, bias = [], weight.double(), model["layer"].bias.double()
        for i, (sample, strength) in enumerate(((first, 0.7), (last, 0.4), (first, -0.5))):
            path, tensors = sample.write(tmp_path, (24, 24), i)
            files.append(Entry(path, strength))
            effective = sample.weight(tensors, effective, strength)
            delta = sample.bias_delta(tensors, strength, bias)
            bias = bias if delta is None else bias + delta
        engine = Engine({"unet": model})
        engine.activate(Stack(files, mode=mode, in_order=True))
        want = nn.functional.linear(x.double(), effective.reshape(24, 24), bias)
        got = model["layer"](x)
        assert (got - want).abs().max() < 1e-5 * want.abs().max()
        engine.activate(Stack(files, mode=mode))
        assert (model["layer"](x) - want).abs().max() > 1e-3 * want.abs().max()
        engine.deactivate()
        assert torch.equal(model["layer"].weight, weight)


def _smallest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


class TestRounding:
    """Stochastic rounding goes to one of the two neighbours, and to the right number on average."""

    @pytest.mark.parametrize("dtype", LOW, ids=str)
    @pytest.mark.parametrize("number", [0.3, -0.3, 1.0, -1.0, 3e-5, -1.0001, 1.9999, 0.0, 1e-9, -1e-9, 17.3])
    def test_the_expectation_is_the_number(self, dtype, number):
        value = torch.full((20_000,), number)
        out = torch.empty(20_000, dtype=dtype)
        round_stochastically(out, value, generator_for(torch.device("cpu"), 1))
        got = out.double().unique()
        assert got.numel() <= 2
        assert got.min() <= value[0] <= got.max() or torch.isclose(got.mean(), value[0].double(), rtol=1e-6)
        gap = (got.max() - got.min()).item()
        assert abs(out.double().mean().item() - value[0].item()) <= 0.02 * max(gap, _smallest(dtype))

    @pytest.mark.parametrize("dtype", LOW, ids=str)
    def test_numbers_that_need_no_rounding_stay(self, dtype):
        size = torch.empty(0, dtype=dtype).element_size()
        every = torch.arange(256 if size == 1 else 65536).to(torch.uint8 if size == 1 else torch.int16)
        exact = every[every.view(dtype).float().isfinite()].view(dtype)
        out = torch.empty_like(exact)
        round_stochastically(out, exact.float(), generator_for(torch.device("cpu"), 1))
        assert torch.equal(out.float(), exact.float())

    @pytest.mark.parametrize("dtype", LOW, ids=str)
    def test_the_ends_of_the_range_stay_finite_where_torch_does(self, dtype):
        largest = torch.finfo(dtype).max
        value = torch.tensor([largest, -largest, largest * 0.999, -largest * 0.999])
        out = torch.empty(4, dtype=dtype)
        for seed in range(20):
            round_stochastically(out, value, generator_for(torch.device("cpu"), seed))
            assert out.float().isfinite().all()


@pytest.mark.parametrize("kind", ["pair", "dora", "bias"])
def test_a_model_that_was_cast_meanwhile_has_what_it_would_have_without(tmp_path, kind):
    model = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    weight, bias = model[0].weight.clone(), model[0].bias.clone()
    tensors = pair("lora_unet_0", (8, 8), 2, size=0.5)
    if kind == "dora":
        tensors["lora_unet_0.dora_scale"] = torch.rand(8, 1) + 1
    if kind == "bias":
        tensors["lora_unet_0.diff_b"] = torch.ones(8)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))], mode="merged"))
    assert not torch.equal(model[0].weight, weight)
    model.to(torch.bfloat16)
    engine.deactivate()
    assert torch.equal(model[0].weight, weight.bfloat16())
    assert torch.equal(model[0].bias, bias.bfloat16())


@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize("kind", ["pair", "dora", "bias"])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_weights_that_something_else_loaded_are_merged_into_anew(tmp_path, where, kind, strength):
    """Into the same model, in place, as web UIs load another checkpoint."""
    tensors = pair("lora_unet_one", (16, 16), 4, size=0.5)
    if kind == "dora":
        tensors["lora_unet_one.dora_scale"] = torch.rand(16, 1) + 1
    if kind == "bias":
        tensors["lora_unet_one.diff_b"] = torch.ones(16)
    path = save(tmp_path / "a.safetensors", tensors)
    model, loaded, fresh = Model(), Model(), Model()
    fresh.load_state_dict(loaded.state_dict())
    Engine({"unet": fresh}).activate(stack := merged([Entry(path, strength)]))
    with simulated():
        if where == "device":
            model.to(device())
        engine = Engine({"unet": model})
        engine.activate(merged([Entry(path)]))
        model.one.load_state_dict({"weight": loaded.one.weight}, strict=False)  # the bias stays, and is put back
        loaded.one.load_state_dict({"bias": model.one.bias}, strict=False)
        before = bits(loaded)
        engine.activate(stack)
        changed = model.one.weight.detach().cpu() - loaded.one.weight
        again = Engine({"unet": loaded})
        again.activate(stack)
        assert changed.abs().max() > 0.01
        model.to("cpu")
        assert torch.allclose(model.one.weight, loaded.one.weight, atol=1e-6)
        again.deactivate()
        engine.deactivate()
        assert bytes_of(model.one.weight) == before["one.weight"]


CASTS = {
    "bf16": [torch.bfloat16],
    "bf16 and back": [torch.bfloat16, torch.float32],
    "fp16 and bf16": [torch.float16, torch.bfloat16],
    "fp64 and back": [torch.float64, torch.float32],
    "fp8 and back": [torch.float8_e4m3fn, torch.float32],
    "three": [torch.bfloat16, torch.float16, torch.float32],
}


@some_of(
    ("casts", "where", "first", "then"),
    CASTS,
    ["cpu", "device"],
    [torch.float32, torch.bfloat16],
    ["off", "changed file", "other strength", "same stack"],
)
def test_originals_are_cast_once_to_what_a_merged_model_was_cast_to(file, casts, first, where, then):
    model, want = Model(first), Model(first)
    want.load_state_dict(model.state_dict())
    originals = [layer.weight.clone() for layer in (want.one, want.two)]
    with simulated():
        if where == "device":
            model.to(device())
        engine = Engine({"unet": model})
        engine.activate(merged([Entry(file)]))
        for dtype in CASTS[casts]:
            model.to(dtype)
            want.to(dtype)
        for layer, original in zip((want.one, want.two), originals, strict=True):
            layer.weight.data = original.to(dtype)
        assert bits(model) != bits(want), "the LoRA is in it"
        if then == "changed file":
            os.utime(file, ns=(1, 1))
        elif then != "off":
            engine.activate(merged([Entry(file, 0.5 if then == "other strength" else 1.0)]))
        engine.deactivate()
        assert bits(model) == bits(want)


def test_casts_in_each_call_change_no_original(file):
    """A1111 casts a layer of fewer bits to what it computes in, and back."""
    model = Model(torch.float8_e4m3fn)
    before = bits(model)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    for _ in range(100):
        model.to(torch.float16)
        model.to(torch.float8_e4m3fn)
    engine.deactivate()
    assert bits(model) == before


def test_weights_made_in_inference_mode_and_moved_outside_it(file):
    """Torch then neither calls them inference tensors nor counts their versions."""
    with torch.inference_mode():
        model = Model()
    before = bits(model)
    engine = Engine({"unet": model})
    for _ in range(2):
        engine.activate(merged([Entry(file)]))
        model._apply(torch.clone)
        engine.set_multiplier(0, 0.5)
    engine.deactivate()
    assert bits(model) == before


@pytest.mark.parametrize("first", [torch.float32, torch.float8_e4m3fn], ids=str)
def test_conversions_in_inference_mode_are_followed(file, first):
    model, want = Model(first), Model(first)
    want.load_state_dict(model.state_dict())
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    with torch.inference_mode():
        for one in (model, want):
            one.to(torch.float64).to(torch.float16)
        engine.deactivate()
    assert bits(model) == bits(want)


def test_another_memory_format_is_followed(tmp_path):
    layer = nn.Conv2d(4, 6, 3)
    model = nn.Sequential(layer).requires_grad_(False)
    before, x = bits(model), torch.randn(1, 4, 8, 8)
    sample = pair("lora_unet_0", (6, 36), 2)
    tensors = {name: value.reshape(2, 4, 3, 3) if "down" in name else value for name, value in sample.items()}
    tensors = {name: value.reshape(6, 2, 1, 1) if "up" in name else value for name, value in tensors.items()}
    engine = Engine({"unet": model})
    assert engine.activate(merged([Entry(save(tmp_path / "a.safetensors", tensors))])).merged == 1
    model.to(memory_format=torch.channels_last)
    want = model(x)
    engine.set_multiplier(0, 0.5)
    assert not torch.equal(model(x), want)
    engine.deactivate()
    assert bits(model) == before
    assert layer.weight.is_contiguous(memory_format=torch.channels_last), "as the host wants it"


def test_a_conversion_that_fails_half_way_is_followed(file):
    model = Model()
    before = bits(model)
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    done: list[Tensor] = []

    def copy(tensor: Tensor) -> Tensor:
        if done:
            raise RuntimeError("out of memory")
        done.append(tensor.clone())
        return done[0]

    with pytest.raises(RuntimeError, match="out of memory"):
        model._apply(copy)
    assert model.one.weight.data_ptr() == done[0].data_ptr()
    engine.set_multiplier(0, 0.5)
    engine.deactivate()
    assert bits(model) == before


@pytest.mark.parametrize("way", ["parameter", "data", "accelerate"])
def test_weights_that_other_code_moves_by_itself_are_restored(file, way):
    """Forge makes new parameters, diffusers exchanges their memory, SD.Next dispatches a component at each call."""
    model = Model(torch.bfloat16)
    with simulated():
        before = bits(model)
        engine = Engine({"unet": model})
        engine.activate(merged([Entry(file)]))
        for layer in (model.one, model.two):
            if way == "parameter":
                layer.weight = nn.Parameter(layer.weight.clone(), requires_grad=False)
            elif way == "data":
                layer.weight.data = layer.weight.data.clone()
        if way == "accelerate":
            accelerate.dispatch_model(model, {"": device()}, main_device=device(), force_hooks=True)
            assert model.one.weight.device == device()
        engine.set_multiplier(0, 0.5)
        engine.deactivate()
        assert bits(model) == before


def test_parameters_that_were_cut_from_one_tensor_do_not_disturb_each_other(file):
    """They have one version, as q, k and v of a checkpoint that a loader divides."""
    model = Model()
    model.one.weight, model.two.weight = (nn.Parameter(part, False) for part in torch.randn(32, 16).chunk(2))
    model.one.weight.add_(1)
    assert model.two.weight._version == model.one.weight._version > 0
    with simulated():
        model.to(device())
        before = bits(model)
        engine = Engine({"unet": model})
        for strength in (1.0, 0.5):
            assert engine.activate(merged([Entry(file, strength)])).merged == 2
        engine.deactivate()
        assert bits(model) == before


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_weights_of_torchao_are_computed_live(tmp_path, config):
    quantization = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(32, 32)).requires_grad_(False)
    quantization.quantize_(model, getattr(quantization, config)())
    x = torch.randn(3, 32)
    plain = model(x)
    path = save(tmp_path / "a.safetensors", pair("lora_unet_0", (32, 32), 4))
    engine = Engine({"unet": model})
    report = engine.activate(merged([Entry(path)]))
    assert dict(report.live) == {"a Linear keeps its weight in a form that cannot be put back exactly": 1}
    merged_output = model(x)
    engine.activate(Stack([Entry(path)]))
    assert torch.equal(model(x), merged_output)
    assert not torch.equal(merged_output, plain)
    engine.deactivate()
    assert torch.equal(model(x), plain)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("way", ["in place", "in place of data", "in inference mode", "data", "parameter", "cast"])
def test_what_other_code_made_of_a_merged_weight_is_said(file, way, moved):
    with torch.inference_mode(way == "in inference mode"):
        model = Model()
    engine = Engine({"unet": model})
    engine.activate(merged([Entry(file)]))
    two, weight = bytes_of(model.two.weight), model.one.weight
    with torch.inference_mode(way == "in inference mode"), torch.no_grad():
        if way == "in place":
            weight[0, 1] += 1  # of which samples may say nothing
        elif way == "in place of data":
            weight.data.mul_(1.01)
        elif way == "in inference mode":
            weight.mul_(1.01)
        elif way == "data":
            weight.data = weight.data * 1.01
        elif way == "parameter":
            model.one.weight = nn.Parameter(weight + 0.01, requires_grad=False)
        else:
            weight.data = weight.data.bfloat16()
    if moved:
        model._apply(torch.clone)
    found, change = bytes_of(model.one.weight), "written to" if way.startswith("in ") else "replaced"
    with pytest.raises(ComponentError, match=rf"weight of a Linear was {change} by other code .* load the model again"):
        engine.deactivate()
    assert bytes_of(model.one.weight) == found, "left alone"
    assert bytes_of(model.two.weight) != two, "the other layer was put back"
    with pytest.raises(ComponentError, match="load the model again"):
        engine.activate(Stack([Entry(file)]))
    with torch.inference_mode(way == "in inference mode"):
        model.load_state_dict(Model().state_dict())
    assert engine.activate(merged([Entry(file)])).merged == 2
    engine.deactivate()


@pytest.mark.parametrize("mode", ["live", "merged", "parked"])
def test_a_weight_with_a_lora_that_cannot_come_off_is_not_served_again(file, mode):
    model = Model()
    engine = Engine({"unet": model})
    then = Stack([Entry(file)], mode="merged" if mode == "merged" else "live")
    if mode == "parked":
        engine.activate(then)
    engine.activate(merged([Entry(file)]))
    model.to(torch.bfloat16)
    with torch.no_grad():
        model.one.weight.mul_(1.01)
    with pytest.raises(
        ComponentError, match=r"weight of a Linear was written to by other code while .*; load the model again"
    ):
        engine.activate(Stack())
    with pytest.raises(ComponentError, match="still has a LoRA that could not be taken off; load the model again"):
        engine.activate(then)
    with pytest.raises(ComponentError, match="still has a LoRA that could not be taken off; load the model again"):
        engine.deactivate()
    model.load_state_dict(Model().state_dict())
    engine.deactivate()
    engine.activate(then)
