"""The page's events, as functions from its inputs to its outputs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr
from fastapi.concurrency import run_in_threadpool

from lib_lora import LoraError

from ..generation.options import TABLE
from ..hosts.txt2img import RequestError, Result, Txt2Img
from ..text.infotext import parse_infotext
from . import shown
from .pasted import applied, parameters_in

if TYPE_CHECKING:
    from .backend import Backend, RunningJob

logger = logging.getLogger(__name__)

_INPUTS = (
    "prompt",
    "negative_prompt",
    "steps",
    "sampler",
    "cfg_scale",
    "width",
    "height",
    "seed",
    "batch_size",
    "n_iter",
)
"""The page's inputs in their order, as fields of a request."""
_TICK = 0.2  # seconds between two looks at a job


class Update(NamedTuple):
    """New values for the outputs, in the page's order; others stay."""

    progress: Any = gr.skip()
    preview: Any = gr.skip()
    older: Any = gr.skip()
    gallery: Any = gr.skip()
    infotext: Any = gr.skip()
    outcome: Any = gr.skip()
    infotexts: Any = gr.skip()
    generate: Any = gr.skip()
    cancel: Any = gr.skip()


class Handlers:
    """The page's events, over a backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._jobs: dict[str, RunningJob | None] = {}  # by browser tab; None until it is submitted
        self._latest: Result | None = None
        """What has the latest pictures, for pages that open later."""

    async def generate(self, request: gr.Request, *values: Any) -> AsyncIterator[Update]:
        """Run a job and show its progress; the arguments are the page's inputs."""
        tab = request.session_hash or ""
        self._jobs[tab] = job = None
        try:
            self._jobs[tab] = job = await run_in_threadpool(
                lambda: self._backend.submit(_request(*self._understood(values)))
            )
            async for update in self._follow(job):
                yield update
        except (RequestError, LoraError) as error:
            yield Update(outcome=self._why(error), older=shown.older(), generate=gr.update(interactive=False))
        finally:
            if job is not None:
                job.cancel()  # the tab was closed; without effect on a job that is done
            self._jobs.pop(tab, None)

    def enabled(self, request: gr.Request) -> Any:
        """Enable the button, unless this browser tab has a job again."""
        return gr.skip() if (request.session_hash or "") in self._jobs else gr.update(interactive=True)

    def understood(self, *values: Any) -> list[Any]:
        """Return the page's inputs and Remora's settings; if the prompt is a parameters text, what that says."""
        return [*self._understood(values), *self.options()]

    def _understood(self, values: Sequence[Any]) -> list[Any]:
        found = parameters_in(values[0] or "")
        if found is None:
            return list(values)
        asked, left = applied(_request(*values), found.settings, self._backend.samplers)
        if left:
            gr.Warning(f"The parameters text has values that cannot be used here: {'; '.join(left)}.")
        prompt, settings = self._backend.pasted({**found.settings, "Prompt": found.prompt})
        self._set_options(settings)
        made = replace(asked, prompt=prompt, negative_prompt=found.negative_prompt)
        return [getattr(made, name) for name in _INPUTS]

    def _set_options(self, settings: Mapping[str, object]) -> None:
        """Change Remora's settings to the settings of a picture, and say which ones differed."""
        present = self._backend.option
        others = [one for one in TABLE if one.key in settings and settings[one.key] != present(one.key)]
        for option in others:
            self._backend.set_option(option.key, settings[option.key])
        if others:
            gr.Info(f"The parameters text changed these LoRA settings: {', '.join(one.label for one in others)}.")

    async def first(self, request: gr.Request, *values: Any) -> AsyncIterator[Update]:
        """Make a first picture if the backend wants one; else show the latest pictures again."""
        if self._backend.first_visit():
            async for update in self.generate(request, *values):
                yield update
        else:
            yield Update() if self._latest is None else _pictures(self._latest)

    async def _follow(self, job: RunningJob) -> AsyncIterator[Update]:
        over = job.over()
        yield Update(
            progress=shown.bar(job.progress),
            outcome="",
            older="",
            generate=gr.update(interactive=False),
            cancel=gr.update(interactive=True),
        )
        last: Any = None
        while not job.done:
            progress = job.progress
            if progress.preview is not None and progress.preview is not last:
                last = progress.preview
                picture, gallery = gr.update(value=last, visible=True), gr.update(visible=False)
                yield Update(progress=shown.bar(progress), preview=picture, gallery=gallery)
            else:
                yield Update(progress=shown.bar(progress))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), _TICK)
        yield self._finished(job)

    def _finished(self, job: RunningJob) -> Update:
        over = Update(
            progress=shown.idle(),
            preview=gr.update(value=None, visible=False),
            gallery=gr.update(visible=True),
            older=shown.older(),
            cancel=gr.update(interactive=False),
        )
        try:
            result = job.result()
        except (RequestError, LoraError) as error:
            return over._replace(outcome=self._why(error))
        except Exception as error:  # the page's boundary: whatever a model raises is shown, and the page lives on
            logger.exception("the job failed")
            return over._replace(outcome=shown.failure(error))
        if not result.pictures:
            return over._replace(outcome=shown.outcome(result))
        self._latest = result
        return _pictures(result, over)

    def _why(self, error: RequestError | LoraError) -> str:
        told = self._backend.told(error) if isinstance(error, LoraError) else None
        return shown.failure(error) if told is None else shown.pointer(told)

    def cancel(self, request: gr.Request) -> None:
        """Cancel the job of this browser tab."""
        if (job := self._jobs.get(request.session_hash or "")) is not None:
            job.cancel()

    def select(self, infotexts: list[str], event: gr.SelectData) -> str:
        """Show the parameters of the clicked picture."""
        index = event.index if isinstance(event.index, int) else 0
        return infotexts[index] if index < len(infotexts) else ""

    def last_seed(self, infotext: str, seed: float | None) -> float | None:
        """Return the seed of the displayed picture; the one that is set if no picture has one."""
        written = parse_infotext(infotext or "").settings.get("Seed", "")
        return float(written) if written.isascii() and written.isdigit() else seed

    def options(self) -> list[Any]:
        """Return the present values of Remora's settings, in the order of their table."""
        return [self._backend.option(option.key) for option in TABLE]

    def set_option(self, key: str, value: object) -> None:
        """Change one of Remora's settings; an invalid value changes nothing, and the reason is shown."""
        try:
            self._backend.set_option(key, value)
        except ValueError as error:
            raise gr.Error(str(error)) from error

    async def offload(self, mode: str) -> str:
        """Change the offload mode between two jobs; return the present one."""
        try:
            await self._backend.set_offload(mode)
        except RequestError as error:
            raise gr.Error(str(error)) from error
        return self._backend.offload_mode


def _pictures(result: Result, others: Update | None = None) -> Update:
    """Return the outputs with the pictures of a result. They are made anew each time: gradio empties an update."""
    kept = [one.path is not None and one.path.is_file() for one in result.pictures]  # the user may have deleted some
    pictures = [str(one.path) if there else one.image for one, there in zip(result.pictures, kept, strict=True)]
    texts = [picture.infotext for picture in result.pictures]
    return (others or Update())._replace(
        gallery=gr.update(value=pictures, visible=True, selected_index=0 if len(pictures) == 1 else None),
        older="",
        infotext=texts[0],
        infotexts=texts,
        outcome=shown.outcome(result),
    )


def _request(
    prompt: str | None,
    negative: str | None,
    steps: float | None,
    sampler: str | None,
    cfg: float | None,
    width: float | None,
    height: float | None,
    seed: float | None,
    batch_size: float | None,
    n_iter: float | None,
) -> Txt2Img:
    """Return the job that the page's inputs describe; an input that the user emptied is None.

    Raises:
        RequestError: an input that needs a number has none.
    """
    if not sampler:
        raise RequestError("“Sampler” is empty; choose one of the list")
    return Txt2Img(
        prompt=prompt or "",
        negative_prompt=negative or "",
        steps=_whole(steps, "Steps"),
        sampler=sampler,
        cfg_scale=_number(cfg, "CFG scale"),
        width=_whole(width, "Width"),
        height=_whole(height, "Height"),
        seed=-1 if seed is None else _whole(seed, "Seed"),
        batch_size=_whole(batch_size, "Batch size"),
        n_iter=_whole(n_iter, "Batch count"),
    )


def _number(value: float | None, label: str) -> float:
    if value is None:
        raise RequestError(f"“{label}” is empty; write a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"“{label}” is {value!r:.60}; write a number")
    return value


def _whole(value: float | None, label: str) -> int:
    number = _number(value, label)
    if number != int(number):
        raise RequestError(f"“{label}” is {number:g}; write a whole number")
    return int(number)
