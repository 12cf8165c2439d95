"""Which image and prompt each row of a call belongs to: of a model's call, and of a layer's within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from .calls import Call
from .errors import RowsError


class Row(NamedTuple):
    """What a row of a model call is of."""

    image: int
    """Of the batch, from 0."""
    negative: bool = False
    """Of its negative prompt."""
    part: int | None = None
    """Of a positive prompt in several parts, each with rows of its own, such as by AND; from 0."""


class RowsOfCall(NamedTuple):
    """What the rows of a model call are of."""

    variants: tuple[int, ...]
    """Of the stack; see `RowMap`."""
    parts: tuple[int | None, ...]
    """Of the prompt."""


Rows: TypeAlias = Callable[[int], "Sequence[int | Row] | None"]
"""From the number of rows of a model call to what each is of; a number alone is an image. None: what the rule says."""


class RowMap:
    """How hosts lay out the images of a batch, and their positive and negative prompts, in the rows of a model call.

    What has strengths of its own is a variant of the stack: image by image, and the positive half before the negative
    where these differ.
    """

    def __init__(self) -> None:
        self.told: Rows | None = None
        """None for the rule that all known hosts follow: whole batches one after the other."""
        self.chosen = 0
        """The variant that calls are for which tell no rows, such as those of a text encoder."""

    def choose(self, index: int, images: int, *, halved: bool = False) -> None:
        """Say which image the next calls of text encoders are for; a batch of one image has all indexes.

        Raises:
            RowsError: there is no such image.
        """
        if index < 0 or (index >= images > 1):
            raise RowsError(f"there is no image {index}; the stack has {images}")
        self.chosen = (index if images > 1 else 0) * (1 + halved)

    def of(self, call: Call, images: int, *, halved: bool = False) -> RowsOfCall:
        """What each row of a model call is of.

        Args:
            call: of the model.
            images: of the stack.
            halved: whether positive and negative rows have strengths of their own.

        Raises:
            RowsError: rows and images do not fit, or the halves are not told; the text says how many there are.
        """
        if call.rows is None:
            raise RowsError(f"a model call does not tell its rows, and the stack has {images} images")
        found = self._of(call, call.rows, images)
        if images == 1:  # what is the same for all images is, whatever the host counts
            found = [(row._replace(image=0), knows) for row, knows in found]
        strange = next((row.image for row, _ in found if not 0 <= row.image < images), None)
        if strange is not None:
            raise RowsError(f"a row is said to be of image {strange}; the stack has {images}")
        if halved and not all(knows for _, knows in found):
            raise RowsError(
                "a LoRA is for the positive or the negative prompt alone, and nothing tells which of the "
                f"{call.rows} rows of a model call are of which"
            )
        return RowsOfCall(
            tuple(row.image * (1 + halved) + (halved and row.negative) for row, _ in found),
            tuple(row.part for row, _ in found),
        )

    def _of(self, call: Call, rows: int, images: int) -> list[tuple[Row, bool]]:
        """What each row is of, and whether its half is known."""
        halves = call.halves
        told = None if self.told is None else self.told(rows)
        if told is not None:
            if len(told) != rows:
                raise RowsError(f"a model call has {rows} rows, and {len(told)} were told")
            if halves is None:
                return [(one, True) if isinstance(one, Row) else (Row(one), False) for one in told]
            rows_told = [one if isinstance(one, Row) else Row(one) for one in told]
            return [(one._replace(negative=half), True) for one, half in zip(rows_told, halves, strict=True)]
        if rows % images:
            raise RowsError(f"a model call of {rows} rows holds no whole batches of the stack's {images} images")
        return [(Row(row % images, bool(halves and halves[row])), halves is not None) for row in range(rows)]


def parts_per_row(layer: nn.Module, x: Tensor, rows: int, least: int, dim: int = 0) -> int:
    """How many rows of a layer's input make one row of the model's: windows, heads and frames lie behind the image.

    Args:
        layer: for the message.
        x: its input.
        rows: of the model call.
        least: dimensions that a batched input has, or more.
        dim: of the batch.

    Raises:
        RowsError: the input has no batch, or another one.
    """
    if x.ndim < least or x.shape[dim] % rows:
        raise RowsError(
            f"the images of the batch have LoRA of their own, and the input {tuple(x.shape)} of a "
            f"{type(layer).__name__} cannot be divided among {rows} rows"
        )
    return x.shape[dim] // rows
