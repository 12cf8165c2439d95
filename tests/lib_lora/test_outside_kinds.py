"""MiSS and FourierFT as another package would write them in place of the library's, on files that PEFT saves: a class
each, and no list of parameters to edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import peft
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import Self

from lib_lora import Engine, Entry, Stack, register, uninstall, unregister
from lib_lora.plugins import Adapter, At, Origin, Params, Rows, Site, taken


@dataclass(frozen=True, slots=True, eq=False)
class MiSS(Adapter):
    """Each block of r inputs gets the same change. PEFT tuners/miss/layer.py, https://arxiv.org/abs/2409.15371."""

    block: Tensor  # (r, out)
    inside: int

    name: ClassVar[str] = "other_miss"
    before: ClassVar[tuple[str, ...]] = ("miss",)
    params: ClassVar[Params] = Params(frozenset({"miss_block"}))
    by_rows: ClassVar[bool] = True

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        block = params["miss_block"]
        if block.ndim != 2 or block.shape[1] != site.shape[0]:
            raise ValueError(f"want miss_block (r, {site.shape[0]}), got {tuple(block.shape)}")
        return cls(block, site.inside)

    @property
    def rank(self) -> int:
        return self.block.shape[0]

    def take(self, rows: Rows) -> Self:
        return replace(self, block=taken(self.block, rows, 1))

    def delta_weight(self, at: At) -> Tensor:
        one = at.cut(self.block.t())
        return one.repeat(1, -(-self.inside // one.shape[1]))[:, : self.inside] * at.multiplier


@dataclass(frozen=True, slots=True, eq=False)
class FourierFT(Adapter):
    """Some coefficients of the delta's spectrum. PEFT tuners/fourierft/layer.py, https://arxiv.org/abs/2405.03003."""

    spectrum: Tensor  # (n,)
    scale: float
    seed: int
    shape: tuple[int, ...]

    name: ClassVar[str] = "other_fourierft"
    before: ClassVar[tuple[str, ...]] = ("fourierft",)
    params: ClassVar[Params] = Params(frozenset({"fourierft_spectrum"}))

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        scale, seed = (
            origin.config.get(name, default) for name, default in (("scaling", 150.0), ("random_loc_seed", 777))
        )
        if not isinstance(scale, int | float) or not isinstance(seed, int):
            raise ValueError(f"want numbers as scaling and random_loc_seed, got {scale!r} and {seed!r}")
        return cls(params["fourierft_spectrum"], float(scale), seed, site.shape)

    def delta_weight(self, at: At) -> Tensor:
        out, inside = self.shape[0], self.shape[1]
        places = torch.randperm(out * inside, generator=torch.Generator().manual_seed(self.seed))
        dense = torch.zeros(out * inside, device=at.device, dtype=at.dtype)
        dense[places[: self.spectrum.numel()].to(at.device)] = at.put(self.spectrum)
        return torch.fft.ifft2(dense.reshape(out, inside)).real * (self.scale * at.multiplier)


@pytest.fixture
def registered() -> Iterator[None]:
    register(MiSS, FourierFT)
    yield
    unregister(MiSS, FourierFT)
    uninstall()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


CONFIGS = {
    "miss": peft.MissConfig(target_modules=["first", "second"], r=4, init_weights=False),
    "fourierft": peft.FourierFTConfig(
        target_modules=["first", "second"], n_frequency=20, scaling=40.0, init_weights=False
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_file_of_peft_gives_the_output_of_peft(name: str, registered: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().double()
    trained = peft.get_peft_model(model, CONFIGS[name])
    for key, parameter in trained.named_parameters():
        if "miss_" in key or "fourierft_" in key:
            parameter.normal_()
    trained.save_pretrained(str(tmp_path))
    x = torch.randn(3, 10, dtype=torch.float64)
    want, plain = trained(x), trained.unload()
    engine = Engine({"unet": plain})
    before = plain(x)
    report = engine.activate(Stack([Entry(tmp_path / "adapter_model.safetensors")])).entries[0]
    assert (dict(report.kinds), report.unused) == ({f"other_{name}": 2}, ())
    assert (plain(x) - want).abs().max() < 1e-5
    assert (want - before).abs().max() > 0.1
    engine.deactivate()
    assert torch.equal(plain(x), before)
