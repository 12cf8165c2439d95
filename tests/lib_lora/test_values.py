"""Public values are copied, pickled, hashed, compared and printed in a line; errors survive a pool of processes."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import is_dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import nn

import lib_lora
from lib_lora import (
    ActivationError,
    ActivationReport,
    AdapterFile,
    ArgumentError,
    BlockNames,
    BlockWeights,
    Curve,
    Element,
    Engine,
    Entry,
    Family,
    FileError,
    Glance,
    Halves,
    LoraError,
    MemoryReport,
    Moment,
    NetworkReport,
    PerImage,
    Reading,
    Region,
    Row,
    SavedFile,
    SavedLayer,
    StackError,
    Strength,
    Uncalled,
    UnknownFormatError,
    Unused,
    Window,
    inspect_file,
    load_network,
)
from lib_lora import errors as all_errors
from lib_lora.stack import Stack
from tests.fakes.files import pair, save

LEFT = Region.rectangle(0, 0, 0.5, 1)
FADE = Curve([(0, 1.0), (10, 0.0)])
RULES = BlockWeights([1, 0.5], (Element(["OUT05"], ["attn"], 0.5),))
FULL = Strength(
    {"unet": FADE, "text_encoder": 0.5}, {"mid": 0.5}, Window(start=2, within=Window(high=5)), RULES, LEFT, 1
)
REPORT = NetworkReport(
    Path("/a.safetensors"), "kohya", Family("sd1", "SD 1.5"), {"lora": 3}, (4, 8), 3, 4, 99,
    (Unused("key", "shape", "reason"),) * 500, {"ss_tag": "x" * 5000},
)  # fmt: skip
VALUES = [
    LEFT,
    FADE,
    RULES,
    FULL,
    Halves(1.0, FULL),
    PerImage([1.0, {"unet": 0.5}, FULL, Halves({"unet": 1.0}, 0)]),
    Moment(3, 20, 1.5, 500),
    Row(1, True),
    Reading(alpha=8.0),
    BlockNames(["IN00", "M00"]),
    Entry("a.safetensors", {"unet": 0.5}, rank=4, name="style"),
    Entry("a.safetensors", FULL),
    Stack([Entry("a.safetensors", FULL), Entry("b.safetensors", {"unet": 1.0})], mode="merged"),
    REPORT,
    ActivationReport((REPORT,) * 9, live={"why": 2}, uncalled=(Uncalled("unet", "a.b", "why"),), idle={0: "why"}),
    MemoryReport({"cuda:0": 5}, 0, 0, 0, 0, 0),
    Glance({"a": "b"}, b"c"),
    SavedFile(Path("/a.safetensors"), 99, (SavedLayer("unet", "a.b", 4, 0.5),) * 500, 0.5, ("note",)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_pickled_copied_hashed_compared_and_printed_in_a_line(value):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert again == value
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert repr(again) == repr(value)
    assert len(repr(value)) < 1000, "characters"
    assert "\n" not in repr(value)
    if not isinstance(value, Glance):  # its metadata are a plain dict
        assert hash(again) == hash(value)
        assert len({value, again, copy.deepcopy(value)}) == 1


def test_all_public_values_are_tried():
    tried = {
        type(value)
        for value in [
            *VALUES,
            REPORT.family,
            *REPORT.unused,
            SavedLayer("unet", "a.b", None, 0.0),
            Uncalled("", "", ""),
            Window(),
            *RULES.elements,
        ]
    }
    public = {getattr(lib_lora, name) for name in lib_lora.__all__}
    assert {one for one in public if inspect.isclass(one) and is_dataclass(one)} <= tried


def test_values_of_a_mapping_cannot_be_changed():
    entry, given = Entry("a", {"unet": 1.0}), {"unet": 0.5}
    strength = Strength(given)
    given["unet"] = 2.0
    assert strength.of == {"unet": 0.5}
    assert Entry("a", {"unet": 1.0}) == entry != Entry("a", {"unet": 0.9})
    with pytest.raises(TypeError):
        entry.multiplier["unet"] = 0.5


def _errors():
    path = Path("/loras/a.safetensors")
    unknown = UnknownFormatError(path, "it has no keys of a LoRA")
    made = [ActivationError(["a", "b"], {1: unknown, 0: StackError("bad", 0)}), StackError("bad", 3)]
    for name, cls in vars(all_errors).items():
        if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, (ActivationError, StackError)):
            made.append(cls(path, "why") if issubclass(cls, FileError) else cls(f"{name} says why"))
    return made


def _fail(i):
    raise _errors()[i]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
def test_an_error_is_pickled_and_copied(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert repr(again.args) == repr(error.args)
        assert getattr(again, "index", None) == getattr(error, "index", None)
        assert repr(getattr(again, "causes", None)) == repr(getattr(error, "causes", None))


@pytest.mark.full
def test_errors_survive_a_pool_of_processes():
    with ProcessPoolExecutor(1, mp_context=get_context("fork" if sys.platform == "linux" else "spawn")) as pool:
        for i, error in enumerate(_errors()):
            with pytest.raises(type(error), match=str(error)[:10].replace("(", ".")):
                pool.submit(_fail, i).result()


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)


def test_an_engine_and_a_network_say_that_they_cannot_be_copied(tmp_path):
    file, model = save(tmp_path / "a.safetensors", pair("lora_unet_q", (8, 8), 2)), _Net()
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(file)]))
        for value in (engine, load_network(file, {"unet": model})):
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(ArgumentError, match="neither copied nor pickled") as caught:
                    act(value)
                assert isinstance(caught.value, LoraError)
                assert isinstance(caught.value, TypeError)
        report = engine.report
        assert pickle.loads(pickle.dumps(report)) == report
        assert hash(report) == hash(copy.deepcopy(report))
    assert pickle.loads(pickle.dumps(inspect_file(file))) == inspect_file(file)


def test_an_open_file_is_pickled_by_its_path(tmp_path):
    file = save(tmp_path / "a.safetensors", pair("lora_unet_q", (8, 8), 2))
    opened = AdapterFile.open(file)
    want = opened.tensor("lora_unet_q.lora_up.weight")
    for again in (pickle.loads(pickle.dumps(opened)), copy.deepcopy(opened)):
        assert torch.equal(again.tensor("lora_unet_q.lora_up.weight"), want)
