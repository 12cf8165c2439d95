"""The page's events, as functions from its inputs to its outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from lib_lora import LoraError

from ..generation.options import TABLE
from ..hosts.txt2img import RequestError, Result, Txt2Img
from ..text.infotext import parse_infotext
from . import shown
from .parameters import applied, parameters_in

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
        self._jobs: dict[str, RunningJob] = {}  # by browser tab
        self._latest: Result | None = None
        """What has the latest pictures, for pages that open later."""

    def generate(self, request: gr.Request, *values: Any) -> Iterator[Update]:
        """Run a job and show its progress; the arguments are the page's inputs."""
        tab = request.session_hash or ""
        try:
            job = self._backend.submit(_request(*self.understood(*values)))
        except (RequestError, LoraError) as error:
            yield Update(outcome=self._why(error), older=shown.older())
            return
        self._jobs[tab] = job
        try:
            yield from self._follow(job)
        finally:
            job.cancel()  # the tab was closed; without effect on a job that is done
            self._jobs.pop(tab, None)

    def understood(self, *values: Any) -> list[Any]:
        """Return the page's inputs; if the prompt is a parameters text, what that says."""
        found = parameters_in(values[0] or "")
        if found is None:
            return list(values)
        asked, left = applied(_request(*values), found.settings, self._backend.samplers)
        if left:
            gr.Warning(f"The parameters text has values that cannot be used here: {'; '.join(left)}.")
        prompt = self._backend.pasted({**found.settings, "Prompt": found.prompt})
        made = replace(asked, prompt=prompt, negative_prompt=found.negative_prompt)
        return [getattr(made, name) for name in _INPUTS]

    def first(self, request: gr.Request, *values: Any) -> Iterator[Update]:
        """Make a first picture if the backend wants one; else show the latest pictures again."""
        if self._backend.first_visit():
            yield from self.generate(request, *values)
        else:
            yield Update() if self._latest is None else _pictures(self._latest)

    def _follow(self, job: RunningJob) -> Iterator[Update]:
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
            _wait(job, _TICK)
        yield self._finished(job)

    def _finished(self, job: RunningJob) -> Update:
        over = Update(
            progress=shown.idle(),
            preview=gr.update(value=None, visible=False),
            gallery=gr.update(visible=True),
            older=shown.older(),
            generate=gr.update(interactive=True),
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

    def last_seed(self, infotext: str, seed: float) -> float:
        """Return the seed of the displayed picture."""
        return float(parse_infotext(infotext or "").settings.get("Seed", seed))

    def options(self) -> list[Any]:
        """Return the present values of Remora's settings, in the order of their table."""
        return [self._backend.option(option.key) for option in TABLE]

    def set_option(self, key: str, value: object) -> None:
        """Change one of Remora's settings; an invalid value changes nothing, and the reason is shown."""
        try:
            self._backend.set_option(key, value)
        except ValueError as error:
            raise gr.Error(str(error)) from error

    def offload(self, mode: str) -> str:
        """Change the offload mode; return the present one."""
        try:
            self._backend.set_offload(mode)
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


def _wait(job: RunningJob, seconds: float) -> None:
    """Wait at most `seconds` for the end of the job."""
    try:
        job.result(seconds)
    except Exception:  # noqa: BLE001  # whatever it is, `_finished` asks again and shows it
        return


def _request(
    prompt: str,
    negative: str,
    steps: float,
    sampler: str,
    cfg: float,
    width: float,
    height: float,
    seed: float | None,
    batch_size: float,
    n_iter: float,
) -> Txt2Img:
    return Txt2Img(
        prompt=prompt or "",
        negative_prompt=negative or "",
        steps=int(steps),
        sampler=sampler,
        cfg_scale=float(cfg),
        width=int(width),
        height=int(height),
        seed=-1 if seed is None else int(seed),
        batch_size=int(batch_size),
        n_iter=int(n_iter),
    )
