"""Which image each row of a UNet call belongs to, in A1111's denoiser.

A step has rows in this order: each image's positive prompt, as often as it has parts joined by AND, image by image;
then each image's negative prompt once. The host calls the UNet with all of them, with all but the negative ones, or
with some after the other; always in that order, and beginning anew with each step.
"""

from __future__ import annotations

from collections.abc import Sequence


class CfgRows:
    """The rows of the present step, and how many of them were called already."""

    def __init__(self) -> None:
        self._images: tuple[int, ...] = ()
        self._done = 0

    def begin(self, parts: Sequence[int], rows: int) -> None:
        """A step begins.

        Args:
            parts: of each image's positive prompt.
            rows: of the step, all in all.
        """
        positive = [image for image, count in enumerate(parts) for _ in range(count)]
        negative = [row % len(parts) for row in range(rows - len(positive))]
        self._images, self._done = (*positive, *negative), 0

    def __call__(self, rows: int) -> Sequence[int]:
        """The image of each row of the next call; where others call more often than the host, it begins again."""
        count = len(self._images)
        first, self._done = self._done, (self._done + rows) % count
        return [self._images[(first + row) % count] for row in range(rows)]
