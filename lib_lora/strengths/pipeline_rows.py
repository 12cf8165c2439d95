"""Which image and prompt each row of a denoiser's call belongs to, in pipelines of diffusers.

A pipeline makes as many images of each prompt, one prompt after the other, and has them all in `latents`. A call of the
denoiser has these rows once, or once for each prompt of guidance. Most pipelines put the negative prompts before the
positive ones in one call. The ones that call the denoiser twice in a step do so for the positive prompts first. Source:
huggingface/diffusers src/diffusers/pipelines.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from traceback import walk_stack
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import RowsError

_LATENTS = ("latents", "intermediate_images", "prior_latents", "decoder_latents")
"""The variables of a pipeline's call with a row for each image; callbacks at the end of a step know the first."""
_POSITIVE_FIRST = ("ZImage", "LuminaPipeline", "StableCascade", "Wuerstchen")
"""Prefixes of the names of pipelines that put the positive prompts first in one call."""


class Row(NamedTuple):
    """The image and the prompt of one row of a model call."""

    image: int
    """Of the batch, from 0."""
    negative: bool = False
    """Whether it is of the negative prompt."""
    part: int | None = None
    """Of a positive prompt in several parts, each with rows of its own, such as by AND; from 0."""


class PipelineRows:
    """The rows of calls that a pipeline of diffusers makes, by the variables of its `__call__`."""

    def __init__(self) -> None:
        self._step: tuple[object, object] = None, None
        self._calls = 0  # of one half each, in that step

    def __call__(self, rows: int, images: int) -> Sequence[int | Row] | None:
        """Return the rows of the present call for a stack of so many images; None where no pipeline calls.

        Where the prompt is not known, a row is its image alone. Raise RowsError where the pipeline makes other numbers.
        """
        frames = (frame for frame, _ in walk_stack(sys._getframe(1)) if frame.f_code.co_name == "__call__")
        calls = (frame.f_locals for frame in frames)
        # every pipeline registers its modules
        variables = next((one for one in calls if hasattr(one.get("self"), "register_modules")), None)
        if variables is None:
            return None
        found = [variables.get(name) for name in _LATENTS]
        made = next((len(x) for x in found if (isinstance(x, Tensor) and x.ndim) or (isinstance(x, list) and x)), 0)
        if not made or rows % made or made % images:
            if images == 1:
                return [0] * rows
            text = f"a pipeline that makes {made or 'an unknown number of'} images calls its model with {rows} rows"
            raise RowsError(f"{text}, and the stack has strengths of their own for {images} images")
        negative = self._negative(variables, rows // made)
        image = [row % made * images // made for row in range(rows)]
        return image if negative is None else [Row(image[i], negative[i // made]) for i in range(rows)]

    def _negative(self, variables: Mapping[str, Any], chunks: int) -> Sequence[bool] | None:
        """Return whether each chunk of a call, with a row for every image, is of the negative prompts."""
        if chunks == 1:
            step = variables.get("t"), variables.get("timesteps")
            if step[0] is None:
                return None
            is_again = step[0] is self._step[0] and step[1] is self._step[1]
            self._calls, self._step = self._calls + 1 if is_again else 0, step
            return (self._calls == 1,)  # a third call, as with skipped layers, is of the positive prompts again
        pipeline = variables["self"]
        names = [cls.__name__ for cls in type(pipeline).__mro__]
        is_perturbed = any("PAG" in name for name in names)
        guided = variables.get("do_classifier_free_guidance", getattr(pipeline, "do_classifier_free_guidance", None))
        if guided is False and is_perturbed:
            return (False,) * chunks
        if not guided or (chunks > 2 and not is_perturbed):
            return None
        if any(name.startswith(_POSITIVE_FIRST) for name in names):
            return (False, *(True,) * (chunks - 1))
        return (True, *(False,) * (chunks - 1))  # perturbed attention has the positive prompts twice
