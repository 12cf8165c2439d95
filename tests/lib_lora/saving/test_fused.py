"""Files whose layers are one in the file and several in the model, the reverse, and swapped halves, saved once more."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import ref

import pytest
import torch

from lib_lora import Engine, Entry, Moment, Stack, save_stack
from lib_lora.naming.places import Target
from lib_lora.saving.difference import Difference
from lib_lora.saving.trees import TreeLayer, _Part
from tests.covering import some_of
from tests.fakes.contract import worst
from tests.fakes.fused import IN, SCENARIOS, Blocks, defined, write
from tests.fakes.kinds import SAMPLES

pytestmark = pytest.mark.usefixtures("names_of_every_family")
BOUND = 3e-6


@some_of(("sample", "scenario"), [one for one in SAMPLES if "linear" in one.layers], SCENARIOS, strength=1)
@torch.no_grad()
def test_the_file_does_what_the_stack_does(tmp_path, sample, scenario):
    lora = next(one for one in SAMPLES if one.name == "lora")
    model, x = Blocks(scenario.model), torch.randn(3, 7, IN, dtype=torch.float64)
    files = [(write(tmp_path, sample, scenario), 0.7), (write(tmp_path, lora, scenario, 9), -0.4)]
    wanted, engine = defined(model, x, files), Engine({"transformer": model})
    engine.activate(Stack([Entry(one.path, strength) for one, strength in files]))
    saved = save_stack(engine, tmp_path / "saved.safetensors", moment=Moment(step=0, steps=1, timestep=0.0))
    report = engine.activate(Stack([Entry(saved.path)])).entries[0]
    assert not report.unused
    assert worst(model(x), wanted) < BOUND
    engine.close()


@dataclass
class Rows:
    """Rows of a layer of a file, which are a layer of the model; its change is whole."""

    target: Target
    read: list[ref] = field(default_factory=list)

    @property
    def place(self):
        return "transformer", self.target.name

    def difference(self):
        assert all(one() is None for one in self.read), "another part is in memory"
        rest = torch.full(self.target.shape, float(self.target.name), dtype=torch.float64)
        self.read.append(ref(rest))
        return Difference(self.target.shape, rest=rest, bias=rest[:, 0].clone())


def test_one_part_of_a_fused_layer_is_in_memory_at_once():
    read = []
    rows = [Rows(Target((size, 2), "linear", path=name, name=name), read) for name, size in (("1", 3), ("2", 1))]
    parts = (_Part(rows[0], slice(1, 3), 0), _Part(rows[1], slice(0, 1), 2))
    found = TreeLayer(Target((3, 2), "linear", path="all", name="all"), ("transformer", "all"), parts).difference()
    assert found.dense().tolist() == [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]
    assert found.bias.tolist() == [1.0, 1.0, 2.0]
    assert all(one() is None for one in read)
