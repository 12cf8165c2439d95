"""Which image and prompt each row of a call is of, in diffusers' pipelines.

Most put the negative prompts' rows before the positive ones' in one call; Z-Image does it the other way round. Others
call the transformer twice in a step, for the positive prompts first (Flux with a true guidance, Qwen-Image, Wan).
Source: huggingface/diffusers src/diffusers/pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lib_lora import Row

_POSITIVE_FIRST = ("ZImage",)
"""Beginnings of the names of pipelines."""


class DiffusersRows:
    """`base.Rows` over a pipeline.

    Args:
        pipeline: the present one.
        images: how many it makes at once.
    """

    def __init__(self, pipeline: Callable[[], Any], images: Callable[[], int]) -> None:
        self._pipeline = pipeline
        self._images = images
        self._step: tuple[object, object] | None = None  # of the latest call with one half

    def __call__(self, rows: int) -> Sequence[int | Row]:
        images, pipeline = max(self._images(), 1), self._pipeline()
        if rows % images:  # of something else than pictures; who asks for halves is told that there are none
            return [row % images for row in range(rows)]
        if rows == images:
            negative = self._is_second(pipeline)
            return [Row(row, negative) for row in range(rows)]
        # with a third part, as of perturbed attention, that is of the positive prompts
        chunk = rows // images - 1 if type(pipeline).__name__.startswith(_POSITIVE_FIRST) else 0
        return [Row(row % images, row // images == chunk) for row in range(rows)]

    def _is_second(self, pipeline: Any) -> bool:
        """Whether there was a call in this step already."""
        scheduler = getattr(pipeline, "scheduler", None)
        step = (getattr(scheduler, "timesteps", None), getattr(scheduler, "step_index", None))
        again = self._step is not None and self._step[0] is step[0] and self._step[1] == step[1]
        self._step = None if again else step
        return again
