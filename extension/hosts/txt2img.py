"""Picture jobs and their results; plain values, shared by the page, the API and the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

MAX_PROMPT = 100_000  # characters
MAX_TAGS = 1000  # of LoRA, in a prompt and its negative one
MAX_SIDE = 2048  # pixels
SIDE_STEP = 8  # pixels per latent
LATENT_RESIZE = 3  # see `Source.resize_mode`
MAX_STEPS = 150
MAX_BATCH = 16
MAX_COUNT = 100
MAX_CFG = 30.0
MAX_SOURCE_PIXELS = 64_000_000  # of all pictures that a job starts from, and its mask
MOST_NOISE_LEVELS = 1000  # of a schedule: the models were trained with so many
MAX_SEED = 2**63 - 1 - MAX_BATCH * MAX_COUNT  # torch seeds are signed 64 bit, and image i uses seed + i


class RequestError(ValueError):
    """A job cannot be done; the message is one sentence for the user."""


@dataclass(frozen=True)
class Hires:
    """The second pass of a picture, at a larger size."""

    width: int
    height: int
    upscaler: str = "Latent"
    steps: int = 20
    denoising: float = 0.7
    """How much of the first pass is replaced, from 0 to 1."""
    prompt: str = ""
    """Empty means the prompt of the first pass; likewise the next three."""
    negative_prompt: str = ""
    sampler: str = ""
    schedule: str = ""

    @property
    def levels(self) -> int:
        """Return the noise levels of the whole schedule: as in A1111, `steps` are made, whatever is replaced."""
        return max(self.steps, int(self.steps / min(self.denoising, 0.999)))

    def check(self) -> None:
        """Check every bound; see `Txt2Img.check`."""
        for name, text in (("hires prompt", self.prompt), ("hires negative prompt", self.negative_prompt)):
            _check_length(name, text)
        _check_sides(self.width, self.height, "hires ")
        _check_bounds((("hires steps", self.steps, 1, MAX_STEPS), ("denoising strength", self.denoising, 0, 1)))
        if not self.denoising or self.steps / self.denoising >= MOST_NOISE_LEVELS + 1:
            least = self.steps / MOST_NOISE_LEVELS
            raise RequestError(
                f"denoising strength is {self.denoising:g}; a hires pass of {self.steps} steps needs {least:g} or more"
            )


@dataclass(frozen=True)
class Source:
    """The pictures that a job changes."""

    images: tuple[Image, ...]
    """One for all pictures of a batch, or one for each."""
    denoising: float = 0.75
    """How much of a picture is replaced, from 0 to 1."""
    resize_mode: int = 0
    """0 stretches, 1 crops, 2 fills the edges, 3 stretches the latents."""
    mask: Image | None = None
    """White is painted, black is kept."""
    blur: int = 4
    """Of the mask, in pixels."""
    inverted: bool = False
    """Paint the black part instead."""
    content: int = 1
    """What the masked part starts from: 0 the colours around it, 1 the picture, 2 noise, 3 nothing."""
    only_masked: bool = False
    """Work on a box around the mask, at the size of the job."""
    padding: int = 0
    """Of that box, in pixels."""

    @property
    def pixels(self) -> int:
        """Return how many pixels are kept in memory."""
        pictures = self.images if self.mask is None else (*self.images, self.mask)
        return sum(picture.width * picture.height for picture in pictures)

    def steps_of(self, steps: int) -> int:
        """Return how many of a job's steps are made: as in A1111, one more than its share, rounded down."""
        return min(steps, int(min(self.denoising, 0.999) * steps) + 1)

    def check(self) -> None:
        """Check every bound; see `Txt2Img.check`."""
        _check_bounds(
            (
                ("denoising strength", self.denoising, 0, 1),
                ("resize_mode", self.resize_mode, 0, 3),
                ("mask_blur", self.blur, 0, 64),
                ("inpainting_fill", self.content, 0, 3),
                ("inpaint_full_res_padding", self.padding, 0, MAX_SIDE),
            )
        )
        if self.pixels > MAX_SOURCE_PIXELS:
            raise RequestError(
                f"the pictures have {self.pixels:,} pixels together; at most {MAX_SOURCE_PIXELS:,} are allowed"
            )
        largest = max(max(picture.size) for picture in self.images)
        if self.resize_mode == LATENT_RESIZE and largest > MAX_SIDE:
            raise RequestError(f"a picture has a side of {largest} pixels; resize_mode=3 takes at most {MAX_SIDE}")


@dataclass(frozen=True)
class Txt2Img:
    """One job: text to image, or image to image with a `source`."""

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
    hires: Hires | None = None
    source: Source | None = None

    @property
    def count(self) -> int:
        return self.batch_size * self.n_iter

    def check(self) -> None:
        """Check every bound.

        Raises:
            RequestError: a value is out of bounds.
        """
        for name, text in (("prompt", self.prompt), ("negative prompt", self.negative_prompt)):
            _check_length(name, text)
        _check_sides(self.width, self.height)
        _check_bounds(
            (
                ("steps", self.steps, 1, MAX_STEPS),
                ("CFG scale", self.cfg_scale, 1, MAX_CFG),
                ("batch size", self.batch_size, 1, MAX_BATCH),
                ("batch count", self.n_iter, 1, MAX_COUNT),
                ("clip skip", self.clip_skip, 1, 12),
                ("seed", self.seed, -1, MAX_SEED),
            )
        )
        if self.hires is not None:
            self.hires.check()
            self._check_shape(self.hires)
        if self.source is not None:
            self.source.check()
            if len(self.source.images) not in (1, self.batch_size):
                raise RequestError(
                    f"{len(self.source.images)} pictures were sent for a batch of {self.batch_size}; "
                    "send one for all, or one for each"
                )

    def _check_shape(self, hires: Hires) -> None:
        """Check the size to which the picture is upscaled before its edges are cut off."""
        factor = max(hires.width / self.width, hires.height / self.height)
        if factor**2 * self.width * self.height > MAX_SIDE**2:
            raise RequestError(
                f"a picture of {self.width} x {self.height} pixels is too large before it is cut to "
                f"{hires.width} x {hires.height}; choose a hires size of a similar shape"
            )


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_PROMPT:
        raise RequestError(f"the {name} has {len(text):,} characters; at most {MAX_PROMPT:,} are allowed")


def _check_sides(width: int, height: int, which: str = "") -> None:
    for name, side in (("width", width), ("height", height)):
        if side % SIDE_STEP or not 64 <= side <= MAX_SIDE:
            raise RequestError(f"{which}{name} is {side}; it must be a multiple of {SIDE_STEP} from 64 to {MAX_SIDE}")


def _check_bounds(bounds: Iterable[tuple[str, float, float, float]]) -> None:
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
    run: int = 0
    """The run of the sampler, from 0: each batch has one for each of its passes."""
    run_step: int = 0
    run_steps: int = 0
    text: str | None = None
    """What is done before the next step."""

    @property
    def fraction(self) -> float:
        return self.step / self.steps if self.steps else 0.0
