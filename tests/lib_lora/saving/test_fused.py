"""Files whose layers are one in the file and several in the model, the reverse, and swapped halves, saved once more."""

from __future__ import annotations

import pytest
import torch

from lib_lora import Engine, Entry, Moment, Stack, save_stack
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
