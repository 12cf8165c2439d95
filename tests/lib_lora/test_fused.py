"""Layers that are one in a file and several in the model, the reverse, and such with swapped halves: for every kind,
by every way, what its definition makes of the weight as the file has it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import remove_hook_from_module
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lib_lora import ComponentError, Engine, Entry, PerImage, Stack, install, load_network, plan
from lib_lora.adapters import PartOf, part_of
from lib_lora.adapters._rows import within
from lib_lora.adapters.base import Adapter, At
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from lib_lora.weights.readers.base import read_base_weight
from tests.conftest import TORCH
from tests.covering import some_of
from tests.fakes.contract import BOUNDS, FILE, LIVE, worst
from tests.fakes.fused import (
    EVEN,
    IN,
    PARTS,
    QKV,
    SCENARIOS,
    SWAPPED,
    SWAPPED_BACK,
    UNEVEN,
    UNEVEN_PARTS,
    Blocks,
    Make,
    Scenario,
    conv,
    defined,
    joined,
    linear,
    parameters,
    plain,
    save_all,
    write,
)
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample, Tensors
from tests.fakes.quantized import FORMATS, INSIDE, OUT

pytestmark = pytest.mark.usefixtures("names_of_every_family")

LINEAR = [sample for sample in SAMPLES if "linear" in sample.layers]
CONV = [sample for sample in SAMPLES if "conv" in sample.layers]
NAMED = {sample.name: sample for sample in SAMPLES}
ONE_EACH = list({sample.recipe: sample for sample in reversed(LINEAR)}.values())
"""The first sample of each recipe."""

WHOLE = {"bora", "deft", "dora by columns", "dora around a full difference", "tlora", "tlora, last", "tlora, middle"}
"""Samples for which the weight of all parts must be known before one part is."""
LIVE_ALL = re.compile(f"{LIVE.pattern}|depends on the weights of all of them")
BLOCKS = {one.name for one in LINEAR if one.recipe in ("diag_oft", "oft_diag", "split_oft", "boft")}
"""Samples that turn outputs in blocks, which a window may cut."""


def ids(value: object) -> str | None:
    return value.name if isinstance(value, Sample | Scenario) else None


def x_for(make: Make, dtype: torch.dtype = torch.float64, rows: int = 3) -> Tensor:
    shape = (rows, IN, 5, 4) if make is conv else (rows, 7, IN)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def engine_for(model: nn.Module) -> Engine:
    return Engine({"transformer": model})


@torch.no_grad()
def check(
    folder: Path, sample: Sample, scenario: Scenario, make: Make, mode: str = "live", dtype: torch.dtype = torch.float64
) -> None:
    model, x = Blocks(scenario.model, make, dtype), x_for(make, dtype)
    written = write(folder, sample, scenario, kernel=(3, 3) if make is conv else ())
    pristine, base = Blocks(scenario.model, make, dtype), model(x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_for(model)
    for multiplier in (1.0, -0.7, 2.5):
        activation = engine.activate(Stack([Entry(written.path, multiplier)], mode=mode))
        report = activation.entries[0]
        assert dict(report.kinds) == {sample.recipe: len(scenario.file)}
        assert (report.hit, report.unused) == (len(scenario.file), ())
        assert report.changed == len(scenario.model)
        assert mode == "live" or activation.merged == len(scenario.model) or LIVE_ALL.search(activation.summary())
        got = model(x)
        assert got.dtype == base.dtype
        assert worst(got, defined(pristine, x, [(written, multiplier)])) < max(BOUNDS[dtype], FILE)
        assert worst(got, base) > 1e-2, "the adapter must show"
    engine.activate(Stack([Entry(written.path, 0.0)], mode=mode))
    assert torch.equal(model(x) + 0.0, base + 0.0), "at 0 it is as if there were no file"
    engine.deactivate()
    assert torch.equal(model(x), base)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


WAYS = {"live": SCENARIOS, "effective": (UNEVEN, UNEVEN_PARTS), "merged": (UNEVEN, UNEVEN_PARTS, SWAPPED)}


@some_of(
    ("sample", "mode", "scenario"),
    LINEAR,
    [pytest.param(mode, one) for mode, scenarios in WAYS.items() for one in scenarios],
    strength=1,
)
def test_every_row_is_that_of_the_weight_as_the_file_has_it(tmp_path, sample, scenario, mode, monkeypatch):
    if mode == "effective":
        monkeypatch.setattr(
            plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
        )
    check(tmp_path, sample, scenario, linear, "merged" if mode == "merged" else "live")


@pytest.mark.parametrize("name", ["glora, square", "glora of 2023, square"])
def test_a_square_part_of_a_fused_layer_has_the_layout_of_its_date(tmp_path, name):
    check(tmp_path, NAMED[name], PARTS, linear)


IN_ORDER = [one for one in LINEAR if not one.additive and one.name not in WHOLE | BLOCKS]


@torch.no_grad()
@pytest.mark.parametrize(
    ("sample", "scenario"),
    [
        *((one, QKV) for one in IN_ORDER),
        # the file's own layers are whole there, so also what depends on the weight as a whole
        *((one, UNEVEN_PARTS) for one in LINEAR if one in IN_ORDER or one.name in WHOLE),
    ],
    ids=ids,
)
def test_files_act_in_order(tmp_path, sample, scenario):
    model, x = Blocks(scenario.model), x_for(linear)
    files = [(write(tmp_path, NAMED["lora"], scenario, 7), 0.8), (write(tmp_path, sample, scenario), 0.6)]
    before = Blocks(scenario.model)
    for written, multiplier in files:
        weights, biases = parameters(before, "weight"), parameters(before, "bias")
        written.add(before, weights, biases, multiplier)
        for name in scenario.model:
            before.get_submodule(name).weight.copy_(weights[name])
            before.get_submodule(name).bias.copy_(biases[name])
    engine = engine_for(model)
    engine.activate(Stack([Entry(written.path, multiplier) for written, multiplier in files], in_order=True))
    assert worst(model(x), before(x)) < FILE


@some_of(("sample", "scenario"), CONV, [QKV, PARTS], strength=1)
def test_convolutions(tmp_path, sample, scenario):
    check(tmp_path, sample, scenario, conv)


@some_of(
    ("sample", "scenario", "dtype"),
    ONE_EACH,
    [UNEVEN, UNEVEN_PARTS, SWAPPED],
    [torch.bfloat16, torch.float16],
    strength=1,
)
def test_half_precision(tmp_path, sample, scenario, dtype):
    check(tmp_path, sample, scenario, linear, dtype=dtype)


@pytest.mark.parametrize("scenario", [QKV, PARTS], ids=ids)
@pytest.mark.parametrize("sample", [one for one in LINEAR if one.bias or one.bias_factor], ids=ids)
@pytest.mark.parametrize("mode", ["live", "merged"])
def test_layers_without_a_bias_get_the_change_of_one(tmp_path, sample, scenario, mode):
    check(tmp_path, sample, scenario, plain, mode)


def ways(model: Blocks) -> set[type]:
    return {type(slot_of(model.get_submodule(name)).executor) for name in model.names}


class TestApart:
    """What of a fused layer is beside the layers, as if they had files of their own."""

    def bound(self, folder: Path, sample: Sample, scenario: Scenario) -> list[Adapter]:
        network = load_network(write(folder, sample, scenario).path, {"transformer": Blocks(scenario.model)})
        return [one.adapter for one in network.bindings]

    @some_of(
        ("sample", "scenario"), [one for one in ONE_EACH if one.name not in BLOCKS], [QKV, UNEVEN, SWAPPED], strength=1
    )
    def test_only_norms_and_singular_vectors_of_the_whole_are_waited_for(self, tmp_path, sample, scenario):
        adapters = self.bound(tmp_path, sample, scenario)
        assert len(adapters) == len(scenario.model)
        assert {adapter.reads_whole for adapter in adapters} == {sample.name in WHOLE}

    @pytest.mark.parametrize(
        ("name", "scenario"),
        [
            ("diag-oft", EVEN),  # blocks of 24
            ("diag-oft bounded", EVEN),  # of 12
            ("diag-oft rescaled", QKV),
            ("oft of kohya", EVEN),
            ("oft of kohya for a fused layer", EVEN),  # of 24, then of 12
            ("oft_diag, early", EVEN),
            ("oft_diag, scaled", EVEN),
            ("boft of one factor", EVEN),
            ("boft bounded and rescaled", SWAPPED),  # of 12, two of which act together
        ],
    )
    def test_turns_come_apart_between_blocks(self, tmp_path, name, scenario):
        assert not any(adapter.reads_whole for adapter in self.bound(tmp_path, NAMED[name], scenario))
        (tmp_path / "output").mkdir()
        check(tmp_path / "output", NAMED[name], scenario, linear)

    def test_blocks_that_act_together_stay_together(self, tmp_path):
        assert all(adapter.reads_whole for adapter in self.bound(tmp_path, NAMED["boft"], EVEN))

    @torch.no_grad()
    @pytest.mark.parametrize("sample", [one for one in LINEAR if one.name in WHOLE - {"bora"}], ids=ids)
    def test_the_whole_is_found_out_once_for_all_its_parts(self, tmp_path, sample, monkeypatch):
        read: list[nn.Module] = []
        monkeypatch.setattr(
            "lib_lora.naming.binding.read_base_weight", lambda *args: read.append(args[0]) or read_base_weight(*args)
        )
        model, written = Blocks(QKV.model), write(tmp_path, sample, QKV)
        engine = engine_for(model)
        engine.activate(Stack([Entry(written.path)]))
        for multiplier in (1.0, 0.5):
            engine.set_multiplier(0, multiplier)
            model(x_for(linear))
        assert ways(model) == {DenseExecutor if sample.name == "dora around a full difference" else LowRankExecutor}
        assert len(read) == len(set(read)) == 3


def of_rows(tensors: Tensors, rows: slice, out: int) -> Tensors:
    """Return the parameters of some rows of a fused layer, as a file with separate layers has them."""
    return {
        name: (value[rows] if value.ndim and value.shape[0] == out else value).clone()
        for name, value in tensors.items()
    }


@torch.no_grad()
@pytest.mark.parametrize(
    "sample",
    [
        NAMED[name]
        for name in (
            "lora",
            "lora with bias",
            "adalora",
            "loha",
            "dora by rows",
            "ia3 on the output, early",
            "full with bias",
            "set weight",
            "lora beside a change of the bias",
            "glora",
            "oft of peft",
            "hra",
            "boft of peft, one factor",
        )
    ],
    ids=ids,
)
def test_a_fused_layer_has_the_bits_of_its_parts(tmp_path, sample):
    x, outputs = x_for(linear, torch.float32), []
    written = write(tmp_path, sample, QKV)
    ((name, own),) = written.tensors.items()
    out = QKV.file[name][-1][2] * 3
    parts = {part: of_rows(own, slice(i * IN, (i + 1) * IN), out) for i, part in enumerate(QKV.model)}
    for path in (written.path, save_all(tmp_path / "parts", sample, parts)):
        model = Blocks(QKV.model, dtype=torch.float32)
        engine = engine_for(model)
        report = engine.activate(Stack([Entry(path, 0.8)])).entries[0]
        assert report.unused == ()
        outputs.append(model(x))
    assert torch.equal(*outputs)


class TestReports:
    """What does not fit says so."""

    @pytest.mark.parametrize("name", ["lora", "dora by columns", "vera", "loha"])
    def test_what_parts_share_is_counted_once(self, tmp_path, name):
        (native,) = PARTS.model
        counted = []
        for scenario in (QKV, Scenario("whole", PARTS.model, {native: ((native, 0, 3 * IN),)})):
            written = write(tmp_path, replace(NAMED[name], name=scenario.name), scenario)
            counted.append(load_network(written.path, {"transformer": Blocks(scenario.model)}).report.nbytes)
        assert counted[0] == counted[1]

    @pytest.mark.parametrize("sample", ONE_EACH, ids=ids)
    def test_a_part_that_the_model_has_not(self, tmp_path, sample):
        *kept, _ = QKV.model
        written = write(tmp_path, sample, QKV)
        report = load_network(written.path, {"transformer": Blocks(dict.fromkeys(kept, IN))}).report
        assert (report.hit, report.changed) == (0, 0)
        own = [key for key in written.tensors[next(iter(QKV.file))] if key.startswith(sample.prefix)]
        reasons = {reason: len(keys) for reason, keys in report.reasons().items()}
        assert reasons.pop("no module of that name in transformer") == len(own)
        assert reasons.keys() <= {"shared by layers of which none acts"}

    def test_a_fused_layer_of_another_size(self, tmp_path):
        written = write(tmp_path, NAMED["lora"], QKV)
        model = Blocks({name: size + 8 for name, size in QKV.model.items()})
        report = load_network(written.path, {"transformer": model}).report
        (reason,) = report.reasons()
        assert reason.startswith("made for a layer of 72 inputs or outputs, where the loaded model has 96; ")
        assert "transformer.transformer_blocks.0.attn.to_q+" in report.unused[0].detail
        assert report.unused[0].detail.endswith("is 96 x 24 in the model, 72 x 24 in the file")

    @pytest.mark.parametrize("first", [QKV, PARTS], ids=ids)
    def test_rows_that_another_layer_of_the_file_changes_already(self, tmp_path, first):
        """Whichever the model has: a file that is for both is for the one that comes first in it."""
        sample, second = NAMED["lora"], PARTS if first is QKV else QKV
        tensors = {**write(tmp_path, sample, first).tensors, **write(tmp_path, sample, second, 1).tensors}
        path = save_all(tmp_path / "both", sample, tensors)
        for model in (Blocks(QKV.model), Blocks(PARTS.model)):
            report = load_network(path, {"transformer": model}).report
            assert (report.hit, report.layers) == ((1, 4) if report.hit == 1 else (3, 4))
            assert all(reason.startswith("a second adapter for") for reason in report.reasons())
            assert len(report.unused) == 3 * (4 - report.hit)


@torch.no_grad()
@some_of(("sample", "own"), ONE_EACH, [QKV, PARTS], strength=1)
def test_fused_and_split_files_add_up(tmp_path, sample, own):
    model, x = Blocks(own.model), x_for(linear)
    native = next(iter(QKV.file))
    split = Scenario("parts", own.model, {name: ((name, 0, IN),) for name in QKV.model} if own is QKV else PARTS.file)
    whole = Scenario("whole", own.model, QKV.file if own is QKV else {native: ((native, 0, 3 * IN),)})
    files = [
        (write(tmp_path, sample, whole), 0.7),
        (write(tmp_path, NAMED["lora"], split, 7), -1.2),
        (write(tmp_path, sample, split, 9), 0.5),
    ]
    want = defined(model, x, files)
    entries = [Entry(written.path, multiplier) for written, multiplier in files]
    engine, outputs = engine_for(model), []
    for order in (entries, entries[::-1]):
        report = engine.activate(Stack(order))
        assert not any(one.unused for one in report.entries)
        outputs.append(model(x))
    assert worst(outputs[0], want) < FILE
    assert torch.equal(*outputs)


@torch.no_grad()
@some_of(("sample", "scenario"), ONE_EACH, [UNEVEN, UNEVEN_PARTS, SWAPPED, SWAPPED_BACK], strength=1)
def test_a_network_tells_the_delta_of_either_name(tmp_path, sample, scenario):
    model = Blocks(scenario.model)
    written = write(tmp_path, sample, scenario)
    network = load_network(written.path, {"transformer": model})
    base, changed = parameters(model, "weight"), parameters(model, "weight")
    written.add(model, changed, parameters(model, "bias"), 1.0)
    deltas = {name: changed[name] - base[name] for name in base}
    for name, want in [*deltas.items(), *((name, joined(deltas, own)) for name, own in scenario.file.items())]:
        got = network.delta_weight("transformer", name, torch.float64)
        assert got.shape == want.shape
        assert (got - want).abs().max() <= FILE * want.abs().max()


@torch.no_grad()
@some_of(("sample", "scenario"), ONE_EACH, [UNEVEN, UNEVEN_PARTS], strength=1)
def test_each_row_of_the_batch_is_its_image_alone(tmp_path, sample, scenario):
    model, x = Blocks(scenario.model), x_for(linear, rows=4)
    plain = model(x)
    written, values = write(tmp_path, sample, scenario), (1.0, 0.0, -0.7, 0.4)
    engine = engine_for(model)
    engine.activate(Stack([Entry(written.path, PerImage(values))]))
    got = model(x)
    assert worst(got[1], plain[1]) < 1e-12
    for image, multiplier in enumerate(values):
        want = defined(model, x[image : image + 1], [(written, multiplier)])
        assert worst(got[image : image + 1], want) < FILE


class TestBases:
    """Weights in storages that cannot be added to, or are elsewhere."""

    KINDS = (
        "lora with bias",
        "ia3 of peft",
        "ia3 on the input",
        "dora by rows",
        "dora by columns",
        "boft",
        "tlora",
        "lokr full, factored",
        "glora",
        "set weight",
    )
    BASES = ("fp8 e4m3 layerwise", "Forge scaled fp8", "SDNQ uint4", "bitsandbytes nf4", "GGUF Q8_0", "torchao int8")

    @torch.no_grad()
    @some_of(("name", "storage", "fused"), KINDS, BASES, [True, False])
    def test_quantized(self, tmp_path, name, storage, fused):
        """Each layer of the model is as large as those that the storages' own tests make."""
        form, sample = FORMATS[storage], NAMED[name]
        if form.needs:
            pytest.importorskip(form.needs, exc_type=ImportError)
        native, size = next(iter(QKV.file)), OUT // 3
        if fused:
            file = {part: ((native, size * i, size * (i + 1)),) for i, part in enumerate(QKV.model)}
            scenario = Scenario("parts", {native: OUT}, file)
        else:
            whole = {native: tuple((part, 0, OUT) for part in QKV.model)}
            scenario = Scenario("whole", dict.fromkeys(QKV.model, OUT), whole)

        def quantized(out: int) -> nn.Module:
            layer = nn.Linear(INSIDE, out).requires_grad_(False).eval()
            return form.make(layer)

        model = Blocks(scenario.model)
        for part, size in scenario.model.items():
            model._put(part, quantized(size))
        twin = Blocks(scenario.model, lambda out: nn.Linear(INSIDE, out))
        for part in scenario.model:
            layer = model.get_submodule(part)
            twin.get_submodule(part).weight.copy_(read_base_weight(layer, "weight").double())
            twin.get_submodule(part).bias.copy_(layer.bias.double())
        x = torch.randn(2, 7, INSIDE, generator=torch.Generator().manual_seed(3)).to(form.dtype)
        written = write(tmp_path, sample, scenario, inside=INSIDE)
        plain = model(x)
        engine = engine_for(model)
        engine.activate(Stack([Entry(written.path, 0.8)]))
        want = defined(twin, x, [(written, 0.8)]) - defined(twin, x, [])
        change = model(x).double() - plain.double()
        assert nn.functional.cosine_similarity(change.flatten(), want.flatten(), dim=0) > 0.999
        engine.deactivate()
        assert torch.equal(model(x), plain)

    @torch.no_grad()
    @pytest.mark.parametrize(
        ("sample", "kept", "scenario"),
        [
            *((one, "memory", (QKV, PARTS)[place % 2]) for place, one in enumerate(ONE_EACH)),
            *((NAMED[name], kept, QKV) for name in sorted(WHOLE) for kept in ("memory", "disk")),
        ],
        ids=ids,
    )
    def test_parts_that_are_on_meta_between_calls(self, tmp_path, sample, kept, scenario):
        """As accelerate's sequential offload has them: when one is called, the others are not there."""
        x, outputs = x_for(linear), []
        written = write(tmp_path, sample, scenario)
        for offloaded in (False, True):
            model = Blocks(scenario.model)
            if offloaded:
                cpu_offload(model, "cpu") if kept == "memory" else disk_offload(model, tmp_path / "disk", "cpu")
                assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
            engine = engine_for(model)
            for mode in ("live", "merged"):
                engine.activate(Stack([Entry(written.path, 0.8)], mode=mode))
                if mode == "live" or offloaded:
                    outputs.append(model(x))
            engine.deactivate()
            if offloaded:
                plain = model(x)
                remove_hook_from_module(model, recurse=True)
                assert torch.equal(Blocks(scenario.model)(x), plain)
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[1], outputs[2])

    def test_the_delta_of_a_part_that_is_on_meta(self, tmp_path):
        written = write(tmp_path, NAMED["dora by columns"], QKV)
        model = Blocks(QKV.model)
        want = load_network(written.path, {"transformer": model}).delta_weight("transformer", next(iter(QKV.file)))
        cpu_offload(model, "cpu")
        got = load_network(written.path, {"transformer": model}).delta_weight("transformer", next(iter(QKV.file)))
        assert torch.equal(got, want)
        model = model.to("meta")
        bare = Blocks(QKV.model).to("meta")
        with pytest.raises(ComponentError, match="on meta, without its numbers"):
            load_network(written.path, {"transformer": bare}).delta_weight("transformer", next(iter(QKV.file)))

    def test_parts_of_several_dtypes_are_read_in_the_best(self, tmp_path):
        model = Blocks(QKV.model, dtype=torch.float32)
        model.get_submodule(model.names[0]).to(torch.float16)
        pristine = joined(parameters(model, "weight"), next(iter(QKV.file.values())))
        written = write(tmp_path, NAMED["dora by columns"], QKV)
        network = load_network(written.path, {"transformer": model})
        delta = network.delta_weight("transformer", next(iter(QKV.file)), torch.float64)
        ((_, own),) = written.tensors.items()
        assert worst(delta, written.sample.weight(own, pristine, 1.0) - pristine) < FILE


@torch.no_grad()
@pytest.mark.skipif(TORCH < (2, 3), reason="compilations are counted as torch 2.3 and later make them")
@pytest.mark.parametrize("scenario", [QKV, PARTS], ids=ids)
@pytest.mark.parametrize(
    "name", ["lora with bias", "dora by rows", "ia3 of peft", "ia3 on the output", "lokr full, factored", "tlora"]
)
def test_compiled_it_is_one_graph_and_strengths_are_inputs(tmp_path, name, scenario):
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    install()
    model, written = Blocks(scenario.model, dtype=torch.float32), write(tmp_path, NAMED[name], scenario)
    counter, x = testing.CompileCounter(), x_for(linear, torch.float32)
    engine = engine_for(model)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    plain = compiled(x)
    engine.activate(Stack([Entry(written.path, 0.5)]))
    assert ways(model) == {LowRankExecutor}
    model(x)
    for multiplier in (0.5, -1.0, 0.0, 2.0):
        engine.set_multiplier(0, multiplier)
        want = model(x)
        assert (compiled(x) - want).abs().max() < 1e-5 * want.abs().max()
    assert counter.frame_count == 2, "the base once, and once with the adapters"
    engine.deactivate()
    assert torch.equal(compiled(x), plain)
    assert counter.frame_count == 2


class TestRows:
    """Windows of windows, and kinds that say nothing of their rows."""

    @given(st.data())
    def test_windows_within_windows(self, data):
        ends = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda two: tuple(sorted(two)))
        windows = tuple(data.draw(st.lists(ends.filter(lambda one: one[0] < one[1]), min_size=1, max_size=4)))
        numbers = [i for start, stop in windows for i in range(start, stop)]
        inner = st.tuples(st.integers(0, len(numbers)), st.integers(0, len(numbers))).map(
            lambda two: tuple(sorted(two))
        )
        rows = tuple(data.draw(st.lists(inner, max_size=4)))
        assert [i for start, stop in within(windows, rows) for i in range(start, stop)] == [
            i for start, stop in rows for i in numbers[start:stop]
        ]

    @torch.no_grad()
    @some_of(("sample", "rows"), ONE_EACH, [((0, 24),), ((48, 72), (0, 24)), ((5, 6), (7, 40), (1, 2))], strength=1)
    def test_rows_of_rows(self, tmp_path, sample, rows):
        """Whatever the windows: in order, taken again, and before or after the base weight is known."""
        native = next(iter(QKV.file))
        model = Blocks({native: 3 * IN})
        weight = model.get_submodule(native).weight
        network = load_network(
            write(tmp_path, sample, Scenario("", {native: 3 * IN}, {native: ((native, 0, 3 * IN),)})).path,
            {"transformer": model},
        )
        (bound,) = network.bindings
        adapter = bound.adapter
        want = delta(adapter, weight)
        chosen = torch.cat([torch.arange(start, stop) for start, stop in rows])
        part = part_of(adapter, rows)
        later = part_of(adapter.on(lambda: weight), rows)
        for one in (known(part, weight, chosen), later.on(lambda: weight) if later.reads_whole else later):
            assert worst(delta(one, weight[chosen]), want[chosen]) < 1e-12
        if not part.reads_whole:
            first = part_of(part, ((0, 1),))
            if not first.reads_whole:
                row = chosen[:1]
                assert worst(delta(known(first, weight, row), weight[row]), want[row]) < 1e-12

    def test_a_kind_that_says_nothing_gets_the_whole_weight(self, tmp_path, monkeypatch):
        from lib_lora.adapters.ia3 import IA3

        monkeypatch.setattr(IA3, "take", lambda self, rows: None)
        adapter = TestApart().bound(tmp_path, NAMED["ia3 on the output"], QKV)[0]
        assert isinstance(adapter, PartOf)
        with pytest.raises(TypeError, match="known only once"):
            delta(adapter, torch.zeros(IN, IN))
        (tmp_path / "output").mkdir()
        for scenario in (QKV, SWAPPED, UNEVEN):
            check(tmp_path / "output", replace(NAMED["ia3 on the output"], name=scenario.name), scenario, linear)


def delta(adapter: Adapter, weight: Tensor) -> Tensor:
    return adapter.delta_weight(At(torch.device("cpu"), torch.float64, 0.7, weight=weight)).reshape(weight.shape)


def known(part: Adapter, weight: Tensor, rows: Tensor) -> Adapter:
    """Return a part with the rows of the base weight that it asks for: its own, or all."""
    return part.on(lambda: weight if part.reads_whole else weight[rows])


@torch.no_grad()
def test_a_change_that_looks_at_the_input_alone_needs_no_second_base_call(tmp_path):
    """Beside a change of the input by another file."""
    names = {"double_blocks.0.img_attn.qkv": 3 * IN}
    shape = Scenario("qkv", names, {"double_blocks.0.img_attn.qkv": (("double_blocks.0.img_attn.qkv", 0, 3 * IN),)})
    files = [write(tmp_path, NAMED["dora by columns"], shape), write(tmp_path, NAMED["lokr full, full"], PARTS, 3)]
    model = Blocks(names)
    layer = model.get_submodule("double_blocks.0.img_attn.qkv")
    engine = engine_for(model)
    engine.activate(Stack([Entry(written.path) for written in files]))
    way = slot_of(layer).executor
    assert isinstance(way, LowRankExecutor)
    calls = []

    def base_forward(layer: nn.Module, x: Tensor) -> Tensor:
        calls.append(x)
        return nn.functional.linear(x, layer.weight, layer.bias)

    x = x_for(linear)
    got = way.run(layer, base_forward, (x,), {})
    assert len(calls) == 1
    assert worst(got, model(x)) < FILE
