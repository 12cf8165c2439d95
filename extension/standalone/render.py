"""Makes the pictures of one job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..generation.options import Overridden, enabled, settings
from ..generation.options import grammar as grammar_wanted
from ..generation.outcomes import State, TagOutcome, read_tags, state_at, weight_of
from ..hosts import NotMadeError, Outcome
from ..hosts.txt2img import MAX_TAGS, Picture, Progress, RequestError, Result, Txt2Img
from ..text.grammar import read
from ..text.infotext import Infotext, format_infotext
from .canvas import has_empty_mask
from .latents import check_upscaler, decode, upscaled
from .parameters import PassTags, parameters_of
from .passes import Pass, from_source, image_to_image, text_to_image
from .preview import preview
from .sampling import find_sampling

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ..generation.activation import Activation, Passes
    from ..hosts.txt2img import Hires
    from .studio import Studio

_PREVIEW_EVERY = 0.3  # seconds; on a GPU each one waits for the step to end
_IS_OFF = "Remora is turned off in the settings (remora_enabled), so no LoRA of the prompt is applied"
_OFF = _IS_OFF, "turn on “Apply LoRA with Remora” in the settings", _IS_OFF


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

    def goes_on(self, text: str) -> bool:
        """Show a text beside the progress; tell whether the user lets the batch go on."""
        self.report(Progress(text=text))
        return not (self.cancelled() or self.interrupted() or self.skipped())


@dataclass
class _Told:
    """What a job tells its user, over all its passes."""

    unfinished: list[str] = field(default_factory=list)
    """A sentence about each batch that ended early."""
    notes: dict[str, None] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    """By the line of each LoRA."""
    merging: dict[str, None] = field(default_factory=dict)
    batches: list[Passes] = field(default_factory=list)
    """The passes of each batch."""

    def end_pass(self, studio: Studio) -> None:
        """Take up the outcome of a pass."""
        studio.session.warnings()  # this reads the report
        last = studio.session.last
        lines = last.lines()
        for index, line in enumerate(lines[: len(last.active)]):
            state = state_at(last.report, index)
            self.states[line] = max(state, self.states.get(line, state), key=weight_of)
        self.merging |= dict.fromkeys(lines[len(last.active) :])

    def join_batches(self, studio: Studio) -> None:
        """Count the earlier batches among the passes of the session."""
        if self.batches:
            studio.session.passes.follow(self.batches[:-1])


@dataclass(frozen=True)
class Rendering:
    """A checked job."""

    request: Txt2Img
    first: Pass
    hires: Pass | None
    seed: int

    @property
    def passes(self) -> tuple[Pass, ...]:
        return (self.first,) if self.hires is None else (self.first, self.hires)


def check(studio: Studio, request: Txt2Img) -> None:
    """Check a job before it waits for its turn.

    Raises:
        RequestError: a value is out of bounds, or the sampler is unknown.
        LoraError: a LoRA tag cannot be parsed, and the setting is to fail.
    """
    plan, values = plan_of(studio, request), Overridden(studio.host, request.settings)
    if enabled(values):
        _, bad, _ = read_tags([tag for run in plan.passes for tag in run.written], studio.session.names)
        if not settings(values).skip_bad:
            studio.session.skip_or_raise(bad, skip_bad=False)


def render(studio: Studio, request: Txt2Img, watch: Watch) -> Result:
    """Make the pictures; a cancelled job returns the finished ones, an interrupted one the unfinished as well.

    However it ends, no LoRA stays active. Text is encoded with the job's LoRA, and never cached for another job.

    Raises:
        RequestError: as `check`.
        LoraError: a LoRA tag, name or file failed, and the setting is to fail.
    """
    plan = plan_of(studio, request)
    told = _Told()
    pictures: list[Picture] = []  # a job that fails has none
    try:
        pictures, cancelled = _pictures(studio, plan, told, watch)
    except BaseException as error:
        told.join_batches(studio)
        if told.batches:  # it had begun
            studio.session.ended_by(error)
        raise
    else:
        told.join_batches(studio)
    finally:
        studio.session.end()
        studio.session.pictures_made([(one.seed, one.image) for one in pictures])
        studio.model.pipeline.maybe_free_model_hooks()  # an interrupted pipeline has not done it
    cancelled |= bool(told.unfinished) and watch.interrupted()
    lines, states = (*told.states, *told.merging), tuple(told.states.values())
    notes, warnings = (*told.unfinished, *told.notes), tuple(studio.session.warnings()) if told.batches else ()
    return Result(tuple(pictures), plan.seed, cancelled, lines, states, notes, warnings)


def _pictures(studio: Studio, plan: Rendering, told: _Told, watch: Watch) -> tuple[list[Picture], bool]:
    """Make the pictures; tell whether the user wants no more."""
    pictures: list[Picture] = []
    tags = tags_of(studio, plan)
    for batch in range(plan.request.n_iter):
        watch.batch_begins()
        if watch.cancelled() or (pictures and watch.interrupted()):  # who interrupts gets a picture
            return pictures, True
        try:
            pictures += _batch(studio, plan, tags, batch, told, watch)
        except Cancelled:
            if told.batches:
                told.end_pass(studio)
            return pictures, True
        except NotMadeError as error:
            told.unfinished.append(str(error))
            if watch.cancelled() or watch.interrupted():
                return pictures, True
    return pictures, False


def plan_of(studio: Studio, request: Txt2Img) -> Rendering:
    """Return a checked job.

    Raises:
        RequestError: as `check`.
    """
    request.check()
    seed = secrets.randbelow(2**32) if request.seed == -1 else request.seed
    on = grammar_wanted(Overridden(studio.host, request.settings))
    prompt, negative = read(request.prompt, on=on), read(request.negative_prompt, on=on, negative=True)
    sampling = find_sampling(request.sampler, request.schedule)
    steps = request.steps if request.source is None else request.source.steps_of(request.steps)
    usual = request.cfg_scale, request.clip_skip
    first, second = Pass("base", prompt, negative, sampling, steps, request.steps, *usual), None
    if (hires := request.hires) is not None:
        check_upscaler(hires.upscaler, latent=True)
        prompt = read(hires.prompt, on=on) if hires.prompt else prompt
        negative = read(hires.negative_prompt, on=on, negative=True) if hires.negative_prompt else negative
        sampling = find_sampling(hires.sampler or request.sampler, hires.schedule or request.schedule)
        second = Pass("hires", prompt, negative, sampling, hires.steps, hires.levels, *usual)
    plan = Rendering(request, first, second, seed)
    if (count := max(len(run.written) for run in plan.passes)) > MAX_TAGS:
        raise RequestError(f"the prompts have {count:,} LoRA tags; at most {MAX_TAGS:,} are allowed")
    return plan


def tags_of(studio: Studio, plan: Rendering) -> tuple[PassTags, ...]:
    """Return the tags of each pass.

    Raises:
        LoraError: a tag cannot be parsed, and the setting is to fail.
    """
    values = Overridden(studio.host, plan.request.settings)
    if not enabled(values):
        left = ([TagOutcome(tag.place, tag.name, "none", *_OFF) for tag in run.written] for run in plan.passes)
        return tuple(PassTags(apart=outcomes) for outcomes in left)
    session, skip_bad = studio.session, settings(values).skip_bad
    always, unread = session.always_tags(skip_bad)
    passes: list[PassTags] = []
    for run in plan.passes:
        if passes and (run.prompt, run.negative) == (plan.first.prompt, plan.first.negative):
            passes.append(passes[0])  # so that its tags are not logged twice
            continue
        tags, bad, words = read_tags(run.written, session.names)
        apart = [*unread, *session.skip_or_raise(bad, skip_bad), *words]
        passes.append(PassTags(always, tags, apart, run.written))
    return tuple(passes)


def _begin(
    studio: Studio, plan: Rendering, run: Pass, tags: PassTags, seeds: list[int], told: _Told, watch: Watch
) -> Activation:
    """Activate the LoRA of a pass, and take up what the user is told."""
    wanted = settings(Overridden(studio.host, plan.request.settings))
    session, by_pass = studio.session, (run.at, tags.apart, run.steps)
    activation = session.begin_batch([tags.own], wanted, tags.always, seeds, *by_pass, watch.goes_on)
    if run.at == "base":
        told.batches.append(session.passes)
    far_off = activation.far_off(run.levels, run.cfg_scale)
    sentences = (*activation.skipped, *activation.notes, *far_off)
    told.notes |= dict.fromkeys((*sentences, *notes_on(studio, plan, run)))
    return activation


def _batch(
    studio: Studio, plan: Rendering, tags: Sequence[PassTags], batch: int, told: _Told, watch: Watch
) -> list[Picture]:
    made = _Batch(studio, plan, tags, batch, told, watch)
    images = made.images()
    parameters = parameters_of(studio, plan.request, plan.first.sampling, tags, made.begun)
    parameters |= Outcome(warnings=studio.session.warnings).parameters
    return [picture_of(plan.request, image, seed, parameters) for image, seed in zip(images, made.seeds, strict=True)]


def picture_of(request: Txt2Img, image: Image, seed: int, parameters: Mapping[str, str]) -> Picture:
    """Return a finished picture with its parameters text."""
    parameters = {name: str(seed) if name == "Seed" else value for name, value in parameters.items()}
    return Picture(image, seed, format_infotext(Infotext(request.prompt, request.negative_prompt, parameters)))


class _Batch:
    """The passes of one batch, and their steps."""

    def __init__(
        self, studio: Studio, plan: Rendering, tags: Sequence[PassTags], batch: int, told: _Told, watch: Watch
    ) -> None:
        self._studio, self._plan, self._tags = studio, plan, tags
        self._number, self._told, self._watch = batch, told, watch
        first = plan.seed + batch * plan.request.batch_size
        self.seeds = list(range(first, first + plan.request.batch_size))
        self.begun: list[Activation] = []
        """The LoRA of each pass."""
        self._lengths = [run.steps for run in plan.passes]  # some samplers take two for each
        self._shown = 0.0
        self._ended_early = False

    def images(self) -> list[Image]:
        """Make the pictures."""
        request, first = self._plan.request, self._plan.first
        size = request.width, request.height
        with self._pass(first):
            if request.source is not None:
                return from_source(self._studio, first, request.source, size, self.seeds, self._on_step(0))
            output = "pil" if self._plan.hires is None else "latent"
            made = text_to_image(self._studio, first, size, self.seeds, self._on_step(0), output)
        images: list[Image] = made if request.hires is None else self._second(request.hires, made)
        return images

    def _second(self, hires: Hires, latents: Tensor) -> list[Image]:
        """Make the pictures of the hires pass; if the user wants no more, decode the first pass."""
        pipeline, run = self._studio.model.pipeline, self._plan.hires
        if run is None or not self._may_go_on():
            return decode(pipeline, latents)
        larger = upscaled(pipeline, latents, hires.upscaler, hires.width, hires.height)
        with self._pass(run):
            return image_to_image(self._studio, run, larger, self.seeds, self._on_step(1))

    @contextmanager
    def _pass(self, run: Pass) -> Iterator[None]:
        """Activate the LoRA of a pass, and take up its outcome at the end."""
        tags = self._tags[len(self.begun)]
        self.begun.append(_begin(self._studio, self._plan, run, tags, self.seeds, self._told, self._watch))
        yield
        self._told.end_pass(self._studio)

    def _may_go_on(self) -> bool:
        """Tell whether the next pass is wanted, and say so if it is not."""
        if self._watch.cancelled():
            raise Cancelled
        if self._is_to_end and not self._ended_early:
            self._end_early("before the hires pass")
        return not self._ended_early

    @property
    def _is_to_end(self) -> bool:
        return self._watch.interrupted() or self._watch.skipped()

    def _end_early(self, when: str) -> None:
        how = "interrupted" if self._watch.interrupted() else "skipped"
        self._told.unfinished.append(f"{how} {when}: the picture is unfinished")
        self._ended_early = True

    def _on_step(self, number: int) -> Callable[..., dict[str, Any]]:
        """Return what a pipeline calls after each step of a pass."""
        return partial(self._ended, number)

    def _ended(self, number: int, pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if self._watch.cancelled():
            raise Cancelled
        steps = self._lengths[number] = pipeline.num_timesteps
        if step + 1 < steps and self._is_to_end:
            pipeline._interrupt = True  # as diffusers documents: the loop ends, and the picture is decoded as it is
            of = " of the hires pass" if number else ""
            self._end_early(f"after {step + 1} of {steps} steps{of}")
        picture, model = None, self._studio.model
        if time.monotonic() - self._shown > _PREVIEW_EVERY:
            picture, self._shown = preview(tensors["latents"], model.family, pipeline.vae), time.monotonic()
        whole = sum(self._lengths)
        done = self._number * whole + sum(self._lengths[:number]) + step + 1
        run = self._number * len(self._lengths) + number
        self._watch.report(Progress(done, self._plan.request.n_iter * whole, False, picture, run, step + 1, steps))
        return tensors


def notes_on(studio: Studio, plan: Rendering, run: Pass) -> list[str]:
    """Return a sentence for each thing in the prompts or the mask of a pass that has no effect."""
    notes = []
    source = plan.request.source
    if source is not None and has_empty_mask(source):
        kind = "so the whole picture was painted" if source.only_masked else "so nothing was painted"
        notes.append(f"the mask names nothing to paint, {kind}")
    pipeline = studio.model.pipeline
    tokenizer = getattr(pipeline, "tokenizer", None) or pipeline.tokenizer_2
    for what, text in (("prompt", run.prompt.text), ("negative prompt", run.negative.text)):
        tokens = len(tokenizer(studio.inversions.spell(text), truncation=False, verbose=False).input_ids)
        if tokens > tokenizer.model_max_length:
            room = tokenizer.model_max_length - 2
            notes.append(f"the {what} has {tokens - 2} tokens; only the first {room} were read")
    return notes
