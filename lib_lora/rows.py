"""Which image of a batch each row of a call belongs to: of a model's call, and of a layer's within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .errors import RowsError


class RowMap:
    """How hosts lay out the images of a batch in the rows of a model call."""

    def __init__(self) -> None:
        self.told: Callable[[int], Sequence[int]] | None = None
        """Gives the image of each row for a number of rows; None for the rule that all known hosts follow."""
        self.chosen = 0
        """The image that calls are for which tell no rows, such as those of a text encoder."""

    def choose(self, index: int, images: int) -> None:
        """Say which image the next calls of text encoders are for; a batch of one image has all indexes.

        Raises:
            RowsError: there is no such image.
        """
        if index < 0 or (index >= images > 1):
            raise RowsError(f"there is no image {index}; the stack has {images}")
        self.chosen = index if images > 1 else 0

    def of(self, rows: int | None, images: int) -> tuple[int, ...]:
        """The image of each row of a model call.

        Args:
            rows: of the call; None where it does not tell.
            images: of the stack.

        Raises:
            RowsError: rows and images do not fit; the text says how many there are of each.
        """
        if rows is None:
            raise RowsError(f"a model call does not tell its rows, and the stack has {images} images")
        if self.told is None:
            if rows % images:
                raise RowsError(f"a model call of {rows} rows holds no whole batches of the stack's {images} images")
            return tuple(row % images for row in range(rows))
        found = tuple(self.told(rows))
        if len(found) != rows:
            raise RowsError(f"a model call has {rows} rows, and {len(found)} were told")
        strange = next((image for image in found if not 0 <= image < images), None)
        if strange is not None:
            raise RowsError(f"a row is said to be of image {strange}; the stack has {images}")
        return found


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
