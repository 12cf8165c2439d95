"""Picture jobs and their results; plain values, shared by the page, the API and the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

MAX_PROMPT = 100_000  # characters
MAX_TAGS = 1000  # of LoRA, in a prompt and its negative one
MAX_SIDE = 2048  # pixels
SIDE_STEP = 8  # pixels per latent
MAX_STEPS = 150
MAX_BATCH = 16
MAX_COUNT = 100
MAX_CFG = 30.0
MAX_SEED = 2**63 - 1 - MAX_BATCH * MAX_COUNT  # torch seeds are signed 64 bit, and image i uses seed + i


class RequestError(ValueError):
    """A job cannot be done; the message is one sentence for the user."""


@dataclass(frozen=True)
class Txt2Img:
    """One text-to-image job."""

    prompt: str
    negative_prompt: str = ""
    steps: int = 20
    sampler: str = "Euler a"
    schedule: str = "Automatic"
    cfg_scale: float = 7.0
    width: int = 512
    height: int = 512
    seed: int = -1
    """Of the first picture; picture i uses seed + i; -1 draws one."""
    batch_size: int = 1
    n_iter: int = 1
    clip_skip: int = 1
    """1 uses the text encoder's last layer, 2 the one before, as in A1111."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Remora's settings that have another value for this job, by key."""

    @property
    def count(self) -> int:
        return self.batch_size * self.n_iter

    def check(self) -> None:
        """Check every bound.

        Raises:
            RequestError: a value is out of bounds.
        """
        for name, text in (("prompt", self.prompt), ("negative prompt", self.negative_prompt)):
            if len(text) > MAX_PROMPT:
                raise RequestError(f"the {name} has {len(text):,} characters; at most {MAX_PROMPT:,} are allowed")
        for name, side in (("width", self.width), ("height", self.height)):
            if side % SIDE_STEP or not 64 <= side <= MAX_SIDE:
                raise RequestError(f"{name} is {side}; it must be a multiple of {SIDE_STEP} from 64 to {MAX_SIDE}")
        bounds: tuple[tuple[str, float, float, float], ...] = (
            ("steps", self.steps, 1, MAX_STEPS),
            ("CFG scale", self.cfg_scale, 1, MAX_CFG),
            ("batch size", self.batch_size, 1, MAX_BATCH),
            ("batch count", self.n_iter, 1, MAX_COUNT),
            ("clip skip", self.clip_skip, 1, 12),
            ("seed", self.seed, -1, MAX_SEED),
        )
        for name, value, low, high in bounds:
            if not low <= value <= high:
                raise RequestError(f"{name} is {value:g}; it must be from {low:g} to {high:g}")


@dataclass(frozen=True)
class Picture:
    """One finished picture."""

    image: Image
    seed: int
    infotext: str
    """The parameters text that is also in the PNG."""
    path: Path | None = None
    """The file it was saved to."""


@dataclass(frozen=True)
class Result:
    """The result of a job."""

    pictures: tuple[Picture, ...]
    seed: int
    """Of the first picture; drawn if the request has -1."""
    cancelled: bool = False
    lora_reports: tuple[str, ...] = ()
    """One line per LoRA: hit layers, kinds, unused keys; and one on merging if it was requested."""
    states: tuple[str, ...] = ()
    """For the line of each LoRA, what became of it: `applied`, `partly`, `none` or `failed`."""
    notes: tuple[str, ...] = ()
    """For the user: skipped LoRA, embeddings without effect, a truncated prompt."""
    warnings: tuple[str, ...] = ()
    """One sentence for each LoRA made for another model family."""


@dataclass(frozen=True)
class Progress:
    """The progress of a job."""

    step: int = 0
    steps: int = 0
    """Of the whole job, over all its batches."""
    waiting: bool = False
    """Another job runs first."""
    preview: Image | None = None

    @property
    def fraction(self) -> float:
        return self.step / self.steps if self.steps else 0.0
