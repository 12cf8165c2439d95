"""What a check is, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a check."""

    ok: bool
    figure: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    """For the tables of the report; empty where nothing was measured."""


class SkipError(Exception):
    """The check cannot be tried here; the text says why."""


Check: TypeAlias = Callable[[], Found]
Checks: TypeAlias = Iterator[tuple[str, Check]]
"""The checks of a section by name, in the order in which they run. It makes what they share in between."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What each section is given."""

    device: torch.device
    small: bool
    """Small models, one round, no goals for times."""
    folder: Path
    """For files; it is empty at first."""
    dtypes: tuple[torch.dtype, ...]
    """Those that the device computes in."""

    @property
    def half(self) -> torch.dtype:
        """The dtype of most models on this device."""
        return self.dtypes[-1]

    @property
    def on_cpu(self) -> bool:
        """Whether there is no accelerator."""
        return self.device.type == "cpu"


def apart(got: Tensor, want: Tensor) -> float:
    """Return the norm of the difference in units of the norm of `want`; infinite where `got` is not finite."""
    one, other = got.detach().cpu().double(), want.detach().cpu().double()
    found = ((one - other).norm() / other.norm().clamp_min(1e-30)).item()
    return found if torch.isfinite(one).all() else float("inf")


def short(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")
