"""`SD_LORA_DEBUG` and `SD_MOVE_DEBUG`: what they tell, that they change nothing, and that nobody else pays."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, uninstall
from lib_lora.placement import trace
from tests.fakes.accelerator import device, simulated
from tests.fakes.files import pair, save
from tests.fakes.schemes import CPU


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(1)
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    trace.ask({})
    uninstall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = pair("lora_unet_first", (8, 8), 4) | pair("lora_unet_second", (8, 8), 4) | pair("lora_unet_no", (8, 8), 4)
    return save(tmp_path / "mine.safetensors", tensors)


def lines(caplog: pytest.LogCaptureFixture, variable: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.getMessage().startswith(variable)]


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_a_variable_asks(value: str) -> None:
    trace.ask({"SD_LORA_DEBUG": value})
    assert (trace.decisions, trace.moves) == (True, False)
    trace.ask({"SD_MOVE_DEBUG": value})
    assert (trace.decisions, trace.moves) == (False, True)


@pytest.mark.parametrize("environment", [{}, {"SD_LORA_DEBUG": "0", "SD_MOVE_DEBUG": " "}])
def test_nothing_and_zero_do_not_ask(environment: dict[str, str]) -> None:
    trace.ask(environment)
    assert (trace.decisions, trace.moves) == (False, False)


def test_the_environment_of_the_process_asks_and_a_log_that_nobody_set_up_shows_it(path: Path) -> None:
    code = f"""
from pathlib import Path
from torch import nn
from lib_lora import Engine, Entry, Stack
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
model = Model()
Engine({{"unet": model}}).activate(Stack([Entry(Path({str(path)!r}), 1.0)]))
"""
    shown = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", **asked},
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for asked in ({}, {"SD_LORA_DEBUG": "1", "SD_MOVE_DEBUG": "1"})
    ]
    assert shown[0] == ""
    assert "SD_LORA_DEBUG: unet.first: low-rank: mine.safetensors (LoRA)" in shown[1]
    assert "SD_MOVE_DEBUG: unet.first: mine.safetensors: file -> cpu" in shown[1]


def test_decisions_name_layers_executors_and_unused_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace.ask({"SD_LORA_DEBUG": "1"})
    model = Model()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 1.0)]))
    told = lines(caplog, "SD_LORA_DEBUG")
    assert any("unet.first: low-rank: mine.safetensors (LoRA)" in line for line in told)
    assert any("unet.second: low-rank" in line for line in told)
    unused = [line for line in told if "unused lora_unet_no.lora_" in line]
    assert len(unused) == 2
    assert all(line.split(": ", 3)[3] for line in unused)  # the reason
    assert any("unet (2 layers): executors chosen" in line for line in told)
    caplog.clear()
    engine.activate(Stack([Entry(path, 0.5)]))
    assert any("unet (2 layers): the same files and layers" in line for line in lines(caplog, "SD_LORA_DEBUG"))
    assert not any("low-rank" in line for line in lines(caplog, "SD_LORA_DEBUG"))
    engine.activate(Stack())
    caplog.clear()
    engine.activate(Stack([Entry(path, 0.5)]))
    assert any("unet (2 layers): a plan that was kept is used again" in line for line in lines(caplog, "SD_LORA_DEBUG"))
    assert not any("executors chosen" in line for line in lines(caplog, "SD_LORA_DEBUG"))


def test_the_lines_alarm_nobody_and_are_shown_once(
    path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host counts warnings, and hides information of libraries unless their logger has a level."""
    trace.ask({"SD_LORA_DEBUG": "1", "SD_MOVE_DEBUG": "1"})
    model = Model()
    Engine({"unet": model}).activate(Stack([Entry(path, 1.0)]))
    told = [record for record in caplog.records if record.getMessage().startswith(("SD_LORA_DEBUG", "SD_MOVE_DEBUG"))]
    assert {record.levelno for record in told} == {logging.INFO}
    assert "SD_" not in capsys.readouterr().err, "the host's own handlers show the lines"
    trace.ask({})
    assert (trace.logger.level, trace.logger.handlers) == (logging.NOTSET, [])


def test_decisions_say_why_a_layer_is_not_merged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace.ask({"SD_LORA_DEBUG": "1"})
    model = Model()
    model.second.weight = model.first.weight
    Engine({"unet": model}).activate(Stack([Entry(path, 1.0)], mode="merged"))
    told = lines(caplog, "SD_LORA_DEBUG")
    assert any("unet.first: low-rank" in line and "live: the weight belongs to several layers" in line for line in told)


def test_every_move_is_told_with_from_to_bytes_and_why(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace.ask({"SD_MOVE_DEBUG": "1"})
    with simulated():
        model = Model().to(device())
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(path, 1.0)]))
        placed = engine.memory().placed
        told = lines(caplog, "SD_MOVE_DEBUG")
        assert len(told) == 2
        assert f"unet.first: mine.safetensors: the computer's memory -> {device()}" in told[0]
        assert "the layer is there" in told[0]
        assert sum(int(line.split(", ")[1].split()[0]) for line in told) == sum(placed.values())
        caplog.clear()
        model.to(CPU)
        told = lines(caplog, "SD_MOVE_DEBUG")
        assert len(told) == 2
        assert all(f"{device()} -> the computer's memory" in line and "the layer left" in line for line in told)
        caplog.clear()
        model(torch.ones(1, 8))
        assert all("file -> cpu" in line and "its input is there" in line for line in lines(caplog, "SD_MOVE_DEBUG"))
        caplog.clear()
        engine.deactivate()
        assert all("it is taken off" in line for line in lines(caplog, "SD_MOVE_DEBUG"))


def test_what_streams_is_told_call_by_call(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace.ask({"SD_MOVE_DEBUG": "1"})
    with simulated():
        model = Model().to(device())
        engine = Engine({"unet": model}, device_budget=1)
        engine.activate(Stack([Entry(path, 1.0)]))
        caplog.clear()
        model(torch.ones(1, 8).to(device()))
        told = lines(caplog, "SD_MOVE_DEBUG")
    assert any("for this call only: no room" in line for line in told)
    assert any("the call is over" in line for line in told)
    assert any("the computer's memory -> " in line for line in told)


def test_nothing_changes_by_telling(path: Path) -> None:
    x, results = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)), []
    for environment in ({}, {"SD_LORA_DEBUG": "1", "SD_MOVE_DEBUG": "1"}):
        trace.ask(environment)
        model = Model()
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(path, 0.7)]))
        results.append(model(x))
        engine.close()
    assert torch.equal(*results)


def test_nobody_else_pays(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """While nobody asks, no line is even made."""

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("made a line that nobody asked for")

    for name in ("files", "decision", "move"):
        monkeypatch.setattr(trace, name, never)
    caplog.set_level(logging.DEBUG)
    model = Model()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 1.0)]))
    model(torch.ones(1, 8))
    engine.deactivate()
