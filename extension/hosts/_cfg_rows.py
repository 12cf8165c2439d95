"""Which image each row of a UNet call belongs to, in A1111's denoiser.

A step has rows in this order: each image's positive prompt, as often as it has parts joined by AND, image by image;
then each image's negative prompt once. The host calls the UNet with all of them, with all but the negative ones, or
with some after the other; always in that order, and each step starts again.
"""

from __future__ import annotations

from collections.abc import Sequence

from lib_lora import Row


class CfgRows:
    """The rows of the present step, and how many of them were called already."""

    def __init__(self) -> None:
        self._rows: tuple[Row, ...] = ()
        self._done = 0

    def begin(self, parts: Sequence[int], rows: int) -> None:
        """Start a step.

        Args:
            parts: number of parts of each image's positive prompt.
            rows: total number of rows of the step.
        """
        positive = [
            Row(image, part=part if count > 1 else None) for image, count in enumerate(parts) for part in range(count)
        ]
        negative = [Row(row % len(parts), negative=True) for row in range(rows - len(positive))]
        self._rows, self._done = (*positive, *negative), 0

    def __call__(self, rows: int) -> Sequence[Row]:
        """Return the image of each row of the next call; extra calls by others start again."""
        count = len(self._rows)
        first, self._done = self._done, (self._done + rows) % count
        return [self._rows[(first + row) % count] for row in range(rows)]
