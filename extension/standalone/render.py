"""Makes the pictures of one text-to-image job."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..generation.options import Overridden, enabled, hashes_wanted, settings, to_parameters
from ..generation.options import grammar as grammar_wanted
from ..generation.outcomes import TagOutcome, read_tags, state_at
from ..hosts import Outcome
from ..hosts.txt2img import Picture, Progress, Result, Txt2Img
from ..kept import always_on
from ..text import placed, regions
from ..text.grammar import Grammar, read
from ..text.infotext import Infotext, format_hashes, format_infotext
from .encode import encode_each, encode_skipping
from .preview import preview
from .sampling import Sampling, find_sampling

if TYPE_CHECKING:
    from ..generation.activation import Activation, Active
    from ..generation.options import Values
    from ..text.placed import PlacedTag
    from ..text.tag import Tag
    from .studio import Studio

_PREVIEW_EVERY = 0.3  # seconds; on a GPU each one waits for the step to end
_LATENT = 8  # pixels

_OFF = (
    "Remora is turned off in the settings (remora_enabled), so no LoRA of the prompt is applied",
    "turn on “Apply LoRA with Remora” in the settings",
    "Remora is turned off in the settings (remora_enabled), so no LoRA of the prompt is applied",
)

logger = logging.getLogger(__name__)


class Cancelled(Exception):  # noqa: N818  # a way out, not an error
    """The job was cancelled; raised within a step to stop the computation."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Watch:
    """A job's progress, and how it is to end early."""

    report: Callable[[Progress], None]
    cancelled: Callable[[], bool]
    """Drop the pictures of the present batch, and make no more."""
    interrupted: Callable[[], bool] = _never
    """Finish the present batch as it is, and make no more."""
    skipped: Callable[[], bool] = _never
    """Finish the present batch as it is, and go on with the next."""
    batch_begins: Callable[[], object] = _never
    """What was skipped before is over."""


@dataclass(frozen=True)
class _Rendering:
    """A checked job."""

    request: Txt2Img
    prompt: Grammar
    negative: Grammar
    sampling: Sampling
    seed: int
    unfinished: list[str] = field(default_factory=list)
    """A sentence about each batch that ended early."""

    @property
    def written(self) -> tuple[PlacedTag, ...]:
        """Return what the tags of both prompts say."""
        return tuple(one for _, one in (*self.prompt.tags, *self.negative.tags))


def check(studio: Studio, request: Txt2Img) -> None:
    """Check a job before it waits for its turn.

    Raises:
        RequestError: a value is out of bounds, or the sampler is unknown.
        LoraError: a LoRA tag cannot be parsed, and the setting is to fail.
    """
    plan, values = _plan(studio, request), Overridden(studio.host, request.settings)
    if enabled(values):
        _, bad, _ = read_tags(plan.written, studio.session.names)
        if not settings(values).skip_bad:
            studio.session.skip_or_raise(bad, skip_bad=False)


def render(studio: Studio, request: Txt2Img, watch: Watch) -> Result:
    """Make the pictures; a cancelled job returns the finished ones, an interrupted one the unfinished as well.

    However it ends, no LoRA stays active. Text is encoded with the job's LoRA, and never cached for another job.

    Raises:
        RequestError: as `check`.
        LoraError: a LoRA tag, name or file failed, and the setting is to fail.
    """
    plan = _plan(studio, request)
    pictures: list[Picture] = []
    cancelled, former = False, studio.session.passes
    try:
        parameters, notes = _begin(studio, plan)
        for batch in range(request.n_iter):
            watch.batch_begins()
            if pictures and watch.interrupted():  # who interrupts gets a picture
                raise Cancelled
            pictures += _batch(studio, plan, batch, parameters, watch)
    except Cancelled:
        cancelled = True
    except BaseException as error:
        pictures.clear()  # nobody sees those that were finished
        if studio.session.passes is not former:  # it had begun
            studio.session.ended_by(error)
        raise
    finally:
        studio.session.end()
        studio.session.pictures_made([(one.seed, one.image) for one in pictures])
        studio.model.pipeline.maybe_free_model_hooks()  # an interrupted pipeline has not done it
    last = studio.session.last
    cancelled |= bool(plan.unfinished) and watch.interrupted()
    notes = [*plan.unfinished, *notes]
    states = tuple(state_at(last.report, index) for index in range(len(last.report.entries)))
    warnings = tuple(studio.session.warnings())
    return Result(tuple(pictures), plan.seed, cancelled, last.lines(), states, tuple(notes), warnings)


def _begin(studio: Studio, plan: _Rendering) -> tuple[dict[str, str], list[str]]:
    """Activate the LoRA of a job; return the parameters of its pictures, and what the user is told."""
    request = plan.request
    values = Overridden(studio.host, request.settings)
    wanted, on = settings(values), enabled(values)
    always, tags, apart = _tags(studio, plan, wanted.skip_bad) if on else ([], [], _left(plan))
    seeds = [plan.seed + image for image in range(request.batch_size)]
    activation = studio.session.begin(tags, wanted, always, seeds, apart)
    parameters = _parameters(studio, plan, activation, values) | always_on.parameters(always, activation.always)
    parameters |= regions.parameters(tag.mask for tag in (*always, *tags))
    parameters |= placed.parameters(plan.written if on else ())
    far_off = activation.far_off(request.steps, request.cfg_scale)
    found = (*activation.skipped, *activation.notes, *far_off)
    return parameters, [*found, *_notes(studio, plan)]


def _tags(studio: Studio, plan: _Rendering, skip_bad: bool) -> tuple[list[Tag], list[Tag], list[TagOutcome]]:
    """Return the always-on tags, the tags of the prompts, and the outcomes of the tags that are none of these."""
    always, unread = studio.session.always_tags(skip_bad)
    tags, bad, words = read_tags(plan.written, studio.session.names)
    return always, tags, [*unread, *studio.session.skip_or_raise(bad, skip_bad), *words]


def _left(plan: _Rendering) -> list[TagOutcome]:
    """Return the outcomes of the tags while Remora is turned off."""
    return [TagOutcome(one.place, one.name, "none", *_OFF) for one in plan.written]


def _plan(studio: Studio, request: Txt2Img) -> _Rendering:
    request.check()
    seed = secrets.randbelow(2**32) if request.seed == -1 else request.seed
    on = grammar_wanted(Overridden(studio.host, request.settings))
    prompt, negative = read(request.prompt, on=on), read(request.negative_prompt, on=on, negative=True)
    return _Rendering(request, prompt, negative, find_sampling(request.sampler, request.schedule), seed)


def _batch(studio: Studio, plan: _Rendering, batch: int, parameters: Mapping[str, str], watch: Watch) -> list[Picture]:
    if watch.cancelled():
        raise Cancelled
    first = plan.seed + batch * plan.request.batch_size
    seeds = range(first, first + plan.request.batch_size)
    pipeline = studio.model.pipeline
    pipeline.scheduler = plan.sampling.make(pipeline.scheduler.config)
    arguments = _arguments(studio, plan, list(seeds))
    with np.errstate(invalid="ignore"):  # of numbers that are not finite the report says more
        images = pipeline(**arguments, callback_on_step_end=_step(studio, plan, batch, watch)).images
    pictures = []
    doubtful = Outcome(warnings=studio.session.warnings).parameters
    for image, seed in zip(images, seeds, strict=True):
        own = {name: str(seed) if name == "Seed" else value for name, value in parameters.items()} | doubtful
        text = format_infotext(Infotext(plan.request.prompt, plan.request.negative_prompt, own))
        pictures.append(Picture(image, seed, text))
    return pictures


def _arguments(studio: Studio, plan: _Rendering, seeds: list[int]) -> dict[str, Any]:
    request = plan.request
    # one CPU generator per picture: it depends neither on its batch nor on the device
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    arguments: dict[str, Any] = {
        "prompt": [studio.inversions.spell(plan.prompt.text)] * len(seeds),
        "negative_prompt": [studio.inversions.spell(plan.negative.text)] * len(seeds),
        "num_inference_steps": request.steps,
        "guidance_scale": request.cfg_scale,
        "generator": generators,
    }
    unet = studio.model.pipeline.unet
    shape = (1, unet.config.in_channels, request.height // _LATENT, request.width // _LATENT)
    if studio.model.family == "sdxl-refiner":  # has no text-to-image: start from an empty picture, all noise
        return arguments | {"image": torch.zeros(len(seeds), *shape[1:], dtype=unet.dtype), "strength": 1.0}
    latents = torch.cat([torch.randn(shape, generator=generator) for generator in generators])
    arguments |= {"latents": latents.to(unet.dtype), "height": request.height, "width": request.width}
    if len(set(studio.session.last.text_keys)) > 1:
        prompt, negative = (studio.inversions.spell(one.text) for one in (plan.prompt, plan.negative))
        del arguments["prompt"], arguments["negative_prompt"]
        use_images = [partial(studio.session.use_image, image) for image in range(len(seeds))]
        clip_skip = request.clip_skip if studio.model.family == "sd" else 1
        return arguments | encode_each(studio.model.pipeline, prompt, negative, clip_skip, use_images)
    if studio.model.family == "sd" and request.clip_skip > 1:  # XL always takes the last layer but one
        for name in ("prompt", "negative_prompt"):
            texts = arguments.pop(name)
            arguments[f"{name}_embeds"] = encode_skipping(studio.model.pipeline, texts, request.clip_skip)
    return arguments


def _step(studio: Studio, plan: _Rendering, batch: int, watch: Watch) -> Callable[..., dict[str, Any]]:
    shown = 0.0

    def on_step_end(pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        nonlocal shown
        if watch.cancelled():
            raise Cancelled
        steps = pipeline.num_timesteps  # of this batch; some samplers take two per step asked for
        if step + 1 < steps and (watch.interrupted() or watch.skipped()):
            pipeline._interrupt = True  # as diffusers documents: the loop ends, and the picture is decoded as it is
            how = "interrupted" if watch.interrupted() else "skipped"
            plan.unfinished.append(f"{how} after {step + 1} of {steps} steps: the picture is unfinished")
        picture = None
        if time.monotonic() - shown > _PREVIEW_EVERY:
            picture, shown = preview(tensors["latents"], studio.model.family, pipeline.vae), time.monotonic()
        watch.report(Progress(batch * steps + step + 1, plan.request.n_iter * steps, preview=picture))
        return tensors

    return on_step_end


def _parameters(studio: Studio, plan: _Rendering, activation: Activation, values: Values) -> dict[str, str]:
    request = plan.request
    parameters = {
        "Steps": str(request.steps),
        "Sampler": plan.sampling.sampler.name,
        "Schedule type": plan.sampling.schedule,
        "CFG scale": f"{request.cfg_scale:g}",
        "Seed": str(plan.seed),
        "Size": f"{request.width}x{request.height}",
        "Model hash": studio.model.shorthash,
        "Model": studio.model.name,
    }
    if request.clip_skip > 1:
        parameters["Clip skip"] = str(request.clip_skip)
    if activation.active:
        parameters |= to_parameters(values)
    if activation.active and hashes_wanted(values):
        parameters["Lora hashes"] = format_hashes(_hashes(studio, activation.active).items())
    return parameters


def _hashes(studio: Studio, active: Sequence[Active]) -> dict[str, str]:
    """Hash the files by name; an unreadable file only loses its own hash."""
    hashes = {}
    for one in active:
        try:
            hashes[one.name] = studio.session.catalog.shorthash(one.file)
        except OSError as error:
            logger.warning("remora: no hash of %s for the parameters text: %s", one.name, error)
    return hashes


def _notes(studio: Studio, plan: _Rendering) -> list[str]:
    notes = []
    pipeline = studio.model.pipeline
    tokenizer = getattr(pipeline, "tokenizer", None) or pipeline.tokenizer_2
    for what, text in (("prompt", plan.prompt.text), ("negative prompt", plan.negative.text)):
        tokens = len(tokenizer(studio.inversions.spell(text), truncation=False, verbose=False).input_ids)
        if tokens > tokenizer.model_max_length:
            room = tokenizer.model_max_length - 2
            notes.append(f"the {what} has {tokens - 2} tokens; only the first {room} were read")
    return notes
