"""The compiler that people use, on the CPU: a model as a whole and block by block, through a session of changes."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import RANK_BUCKETS, Curve, Engine, Entry, Moment, PerImage, Region, Stack, Strength, install
from tests.conftest import TORCH
from tests.fakes.contract import worst
from tests.fakes.files import pair, save

testing = pytest.importorskip("torch._dynamo.testing")
pytestmark = [
    pytest.mark.skipif(TORCH < (2, 4), reason="operations of our own are made as torch 2.4 and later take them"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),  # torch's own, when it is imported
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on the CPU"),
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No processes of the compiler, and nothing of it left: other tests look at the memory of this one."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # it is read when the compiler is first used
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.out(torch.tanh(self.query(x)) * self.key(x))
        return y


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.blocks = nn.Conv2d(4, 16, 3, padding=1), nn.ModuleList([Block(), Block()])

    def forward(self, sample: Tensor) -> Tensor:
        x: Tensor = self.conv(sample).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x


def files(folder: Path, model: nn.Module) -> list[Path]:
    """Of ranks of one bucket."""
    made = []
    for seed, rank in enumerate((8, 5)):
        tensors: dict[str, Tensor] = {}
        for path, layer in model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                tensors |= pair(f"lora_unet_{path.replace('.', '_')}", tuple(layer.weight.shape), rank, seed=seed)
        made.append(save(folder / f"{rank}.safetensors", tensors))
    return made


def full(folder: Path, model: nn.Module) -> Path:
    """Of whole differences."""
    names = (name for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
    tensors = {f"lora_unet_{name.replace('.', '_')}.diff": torch.randn(16, 16) * 0.1 for name in names}
    return save(folder / "full.safetensors", tensors)


@torch.no_grad()
@pytest.mark.parametrize("how", ["whole", "blocks"])
def test_nothing_but_the_first_lora_and_the_first_rows_compile(tmp_path: Path, how: str) -> None:
    torch._dynamo.reset()
    install()
    model = Denoiser().requires_grad_(False)
    one, other = files(tmp_path, model)
    bare = copy.deepcopy(model)
    counter = testing.CompileCounterWithBackend("inductor")
    for module in [model] if how == "whole" else model.blocks:
        module.compile(backend=counter, fullgraph=True, dynamic=False)
    engine, plainly = Engine({"unet": model}, rank_buckets=RANK_BUCKETS), Engine({"unet": bare})
    sample = torch.linspace(-2, 2, 2 * 4 * 36).view(2, 4, 6, 6)

    def compiled(*entries: Entry) -> int:
        for own in (engine, plainly):
            own.activate(Stack(entries))
        return same()

    def same() -> int:
        """How many graphs there are, after it was checked that they give what the model gives uncompiled."""
        assert worst(model(sample), bare(sample)) < 1e-5
        return counter.frame_count

    plain = compiled()
    with_lora = compiled(Entry(one, 0.8))
    assert with_lora == plain + 1
    for step, strength in enumerate((-1.0, 0.3)):
        for own in (engine, plainly):
            own.set_multiplier(0, strength)
        assert same() == with_lora, f"strength {step}"
    assert compiled(Entry(other, 0.8)) == with_lora, "another file"
    assert compiled() == with_lora, "none"
    for own in (engine, plainly):
        own.set_moment(Moment(step=0))
    assert compiled(Entry(other, Strength(Curve(((0, 0), (8, 1)))))) == with_lora, "a schedule"
    for step in (2, 6):
        for own in (engine, plainly):
            own.set_moment(Moment(step=step))
        assert same() == with_lora, f"step {step}"
    rows = compiled(Entry(one, PerImage((0.2, 0.9))))
    assert rows == with_lora + 1
    assert compiled(Entry(other, PerImage((-0.2, 0.0)))) == rows
    assert compiled(Entry(one, 0.8)) == rows
    assert compiled() == rows
    built = compiled(Entry(full(tmp_path, model), 0.5))
    assert built == rows + 1, "a weight that is built is an operation of the graph"
    for own in (engine, plainly):
        own.set_multiplier(0, -0.5)
    assert same() == built
    region = compiled(Entry(one, Strength(0.8, region=Region.rectangle(0, 0, 0.5, 1))))
    assert region == built + 1
    assert compiled(Entry(other, Strength(-0.8, region=Region.rectangle(0.5, 0, 1, 1)))) == region
