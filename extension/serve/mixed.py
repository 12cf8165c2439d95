"""Makes the pictures of several requests in one batch, each with its own prompts, LoRA, strengths and seeds.

The LoRA of all requests are one stack with strengths for each image, and the rows of every model call, of text encoders
too, have the strengths of their image. A row never reads another one, so the picture of a request depends on the others
only by the size of the matrices, which are summed in another order.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from lib_lora import LoraError

from ..generation.activation import Activation, Passes
from ..generation.options import Overridden, enabled, settings
from ..generation.outcomes import state_at
from ..generation.request import Request
from ..generation.shared import failed_in, placed_in, share_of
from ..hosts import Outcome
from ..hosts.txt2img import Progress, RequestError, Result, Txt2Img
from ..standalone.parameters import PassTags, parameters_of
from ..standalone.passes import text_to_image
from ..standalone.render import Cancelled, Rendering, Watch, notes_on, picture_of, plan_of, render, tags_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..standalone.studio import Studio

logger = logging.getLogger(__name__)


def batch_key(studio: Studio, request: Txt2Img) -> Hashable | None:
    """Return a key that is equal for requests that may share a batch; None for a request that has to be alone.

    Alone are: image to image, a hires pass, several batches, a sampler whose noise is drawn for the whole batch, tags
    that name images of a batch, and merged LoRA.

    Raises:
        RequestError: a value is out of bounds, or the sampler is unknown.
    """
    plan = plan_of(studio, request)
    if request.source is not None or request.hires is not None or request.n_iter > 1:
        return None
    values = Overridden(studio.host, request.settings)
    if plan.first.sampling.sampler.needs == "torchsde" or settings(values).mode == "merged":
        return None
    with suppress(LoraError):  # a tag that cannot be parsed is told when the request is made
        (tags,) = tags_of(studio, plan)
        if any(tag.rows or tag.rule for tag in (*tags.own, *tags.always)):
            return None
    return (
        *(request.width, request.height, plan.first.sampling.sampler.name, plan.first.sampling.schedule),
        *(request.steps, request.cfg_scale, request.clip_skip, enabled(values)),
        tuple(sorted((key, repr(value)) for key, value in request.settings.items())),
    )


@dataclass(frozen=True)
class Mixed:
    """What became of the requests of a batch."""

    results: tuple[Result | Exception, ...]
    """Of each request; an error is the one that it would have alone."""
    together: int = 0
    """How many of them shared their model calls."""
    loras: int = 0
    """How many LoRA were active in these calls."""


@dataclass(frozen=True)
class _Member:
    """One request of a batch."""

    number: int
    request: Txt2Img
    plan: Rendering
    tags: PassTags

    @property
    def seeds(self) -> range:
        return range(self.plan.seed, self.plan.seed + self.request.batch_size)


def render_mixed(studio: Studio, requests: Sequence[Txt2Img], watches: Sequence[Watch]) -> Mixed:
    """Make the pictures of requests with the same `batch_key`.

    A request that is cancelled gets no pictures; the batch ends early once all are. A request whose LoRA fails, or
    whose LoRA bring embeddings for the tokenizer, is made alone after the others: it has the error, or the pictures,
    that it would have without them. After any other error, each request is made alone.

    Args:
        studio: the model.
        requests: at least one.
        watches: one for each request.
    """
    together = None
    try:
        if len(requests) > 1 and batch_key(studio, requests[0]) is not None:
            together = _Together(studio, requests, watches)
            together.make()
    except Cancelled:
        return Mixed(tuple(Result((), max(one.seed, 0), cancelled=True) for one in requests), len(requests))
    except Exception as error:
        known = isinstance(error, LoraError | RequestError | torch.cuda.OutOfMemoryError)
        text = "remora: a batch of %d requests is made one by one: %s"
        logger.log(logging.INFO if known else logging.ERROR, text, len(requests), error, exc_info=not known)
        together = None
    made = {} if together is None else together.results
    results = tuple(
        made[number] if number in made else _alone(studio, request, watch)
        for number, (request, watch) in enumerate(zip(requests, watches, strict=True))
    )
    return Mixed(results, max(len(made), 1), 0 if together is None else together.loras)


def _alone(studio: Studio, request: Txt2Img, watch: Watch) -> Result | Exception:
    try:
        return render(studio, request, watch)
    except (RequestError, LoraError) as error:  # it costs its own request
        return error
    except Exception as error:
        logger.exception("remora: a request failed")
        return error


class _Together:
    """The requests of a batch that share their model calls."""

    def __init__(self, studio: Studio, requests: Sequence[Txt2Img], watches: Sequence[Watch]) -> None:
        self._studio, self._watches = studio, watches
        self._members = []
        for number, request in enumerate(requests):
            with suppress(LoraError, RequestError):  # alone, it is told why
                plan = plan_of(studio, request)
                (tags,) = tags_of(studio, plan)
                own = replace(tags, own=placed_in(tags.own, number))
                self._members.append(_Member(number, request, plan, own))
        self.results: dict[int, Result | Exception] = {}
        """By the position of the request; one that is missing has to be made alone."""
        self.loras = 0

    def make(self) -> None:
        """Make the pictures.

        Raises:
            Cancelled: every request was cancelled.
            LoraError: a LoRA failed, and it is unknown whose.
        """
        session = self._studio.session
        images: list[Image] = []
        try:
            if self._begin() is not None:
                images = self._images()
                session.warnings()  # this reads the report
                self.loras = len(session.last.active)
                self._share(images)
        except BaseException as error:
            session.ended_by(error)
            raise
        finally:
            seeds = [seed for member in self._members for seed in member.seeds]
            session.end()
            session.pictures_made(list(zip(seeds, images, strict=False)))
            self._studio.model.pipeline.maybe_free_model_hooks()

    def _begin(self) -> Activation | None:
        """Activate the LoRA of the members, without these whose LoRA fail; None if fewer than two are left."""
        session = self._studio.session
        while len(self._members) > 1:
            first = self._members[0]
            wanted = settings(Overridden(self._studio.host, first.request.settings))
            activation = session.begin_batch(
                [member.tags.own for member in self._members for _ in member.seeds],
                replace(wanted, skip_bad=True),
                first.tags.always,
                [seed for member in self._members for seed in member.seeds],
                steps=first.plan.first.steps,
            )
            engine = session.model.engine
            lent = engine is not None and any(engine.embeddings)
            kept = [one for one in self._members if wanted.skip_bad or not failed_in(activation, one.number)]
            if not lent and len(kept) == len(self._members):
                return activation
            self._members = self._without_embeddings(activation) if lent else kept
        return None

    def _without_embeddings(self, activation: Activation) -> list[_Member]:
        """Return the members none of whose LoRA brings embeddings: words of every prompt would stand for them."""
        engine = self._studio.session.model.engine
        lending = [] if engine is None else engine.embeddings
        images = {i for one, lent in zip(activation.active, lending, strict=True) if lent for i in one.images}
        return [one for one, own in self._placed() if images.isdisjoint(own)]

    def _placed(self) -> list[tuple[_Member, range]]:
        """Return each member with its images in the batch."""
        placed, first = [], 0
        for member in self._members:
            placed.append((member, range(first, first + len(member.seeds))))
            first += len(member.seeds)
        return placed

    def _images(self) -> list[Image]:
        first = self._members[0]
        prompts = [
            (member.plan.first.prompt.text, member.plan.first.negative.text)
            for member in self._members
            for _ in member.seeds
        ]
        seeds = [seed for member in self._members for seed in member.seeds]
        size = first.request.width, first.request.height
        images: list[Image] = text_to_image(self._studio, first.plan.first, size, seeds, self._ended, "pil", prompts)
        return images

    def _ended(self, pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Take note of the end of a step, as a callback of the pipeline."""
        watches = [self._watches[member.number] for member in self._members]
        if all(watch.cancelled() for watch in watches):
            raise Cancelled
        steps = pipeline.num_timesteps
        for watch in watches:
            watch.report(Progress(step + 1, steps, run_step=step + 1, run_steps=steps))
        return tensors

    def _share(self, images: Sequence[Image]) -> None:
        """Give each request its pictures, and what became of its LoRA."""
        session = self._studio.session
        for member, own in self._placed():
            if self._watches[member.number].cancelled():
                self.results[member.number] = Result((), member.plan.seed, cancelled=True)
                continue
            run, wanted = member.plan.first, settings(Overridden(self._studio.host, member.request.settings))
            asked = Request(
                (tuple(member.tags.own),),
                wanted,
                tuple(member.tags.always),
                tuple(member.seeds),
                apart=tuple(member.tags.apart),
                steps=run.steps,
            )
            components, note_on = session.model.components.keys(), session.catalog.names.note_on
            share = share_of(session.last, asked, member.number, own, components, note_on)
            self.results[member.number] = self._result(member, share, [images[i] for i in own])

    def _result(self, member: _Member, share: Activation, images: Sequence[Image]) -> Result:
        studio, plan = self._studio, member.plan
        warnings = Passes([share], {"base"}).sentences
        parameters = parameters_of(studio, member.request, plan.first.sampling, [member.tags], [share])
        parameters |= Outcome(warnings=lambda: warnings).parameters
        notes = (
            *(*share.skipped, *share.notes, *share.far_off(plan.first.levels, plan.first.cfg_scale)),
            *notes_on(studio, plan, plan.first),
        )
        lines = share.lines()
        return Result(
            tuple(
                picture_of(member.request, image, seed, parameters)
                for image, seed in zip(images, member.seeds, strict=True)
            ),
            plan.seed,
            lora_reports=tuple(dict.fromkeys(lines)),
            states=tuple(state_at(share.report, index) for index in range(len(share.active))),
            notes=tuple(dict.fromkeys(notes)),
            warnings=warnings,
        )
