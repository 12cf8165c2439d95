"""Pictures that the embedded web UI makes for Remora, between the ones for its users."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .render import check
from .sampling import choices

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..hosts.txt2img import Txt2Img
    from .jobs import Job, Runner

_TICK = 0.1  # seconds between two looks at a job


class RunnerPainter:
    """`hosts.Painter` over a runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._job: Job | None = None

    def check(self, request: Txt2Img) -> None:
        check(self._runner.studio, request)

    def paint(self, request: Txt2Img, cancelled: Callable[[], bool]) -> Image | None:
        job = self._job = self._runner.submit(request)
        try:
            while not job.wait(_TICK):
                if cancelled():
                    job.cancel()
            result = job.result()
            if not result.pictures or result.cancelled:
                return None
            picture = result.pictures[0]
            picture.image.info["parameters"] = picture.infotext  # as in other web UIs
            return picture.image
        finally:
            self._job = None

    def interrupt(self) -> None:
        if (job := self._job) is not None:
            job.cancel()

    @property
    def fraction(self) -> float:
        job = self._job
        return 0.0 if job is None else job.progress.fraction

    @property
    def samplers(self) -> list[str]:
        return list(choices())
