"""Which image and prompt each row of a call belongs to, in diffusers' pipelines.

Most put the negative prompts' rows before the positive ones' in one call; Z-Image does it the other way round. Others
call the transformer twice in a step, for the positive prompts first (Flux with a true guidance, Qwen-Image, Wan).
Source: huggingface/diffusers src/diffusers/pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lib_lora import Row

_POSITIVE_FIRST = ("ZImage",)
"""Prefixes of the names of pipelines."""


class DiffusersRows:
    """`base.Rows` over a pipeline.

    Args:
        pipeline: returns the present one.
        images: returns the batch size.
    """

    def __init__(self, pipeline: Callable[[], Any], images: Callable[[], int]) -> None:
        self._pipeline = pipeline
        self._images = images
        self._step: tuple[object, object] | None = None  # of the latest call with one half

    def __call__(self, rows: int) -> Sequence[int | Row]:
        images, pipeline = max(self._images(), 1), self._pipeline()
        if rows % images:  # rows that are no pictures; `half` has no effect on them
            return [row % images for row in range(rows)]
        if rows == images:
            negative = self._is_second(pipeline)
            return [Row(row, negative) for row in range(rows)]
        # a third part, as with perturbed attention, belongs to the positive prompts
        chunk = rows // images - 1 if type(pipeline).__name__.startswith(_POSITIVE_FIRST) else 0
        return [Row(row % images, row // images == chunk) for row in range(rows)]

    def _is_second(self, pipeline: Any) -> bool:
        """Tell whether this step has already made a call."""
        scheduler = getattr(pipeline, "scheduler", None)
        step = (getattr(scheduler, "timesteps", None), getattr(scheduler, "step_index", None))
        again = self._step is not None and self._step[0] is step[0] and self._step[1] == step[1]
        self._step = None if again else step
        return again
