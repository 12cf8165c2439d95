"""A call of a layer in several passes, each for some rows of the batch: for a layer with one weight per pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .operation import named_arguments, place_of_input
from .rows import parts_per_row

Run = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""Run the pass of a number with arguments that hold its rows alone."""


def in_passes(
    layer: nn.Module,
    passes: Sequence[Sequence[int]],
    least: int,
    run: Run,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a layer once for each group of rows, and put the rows of the results where they belong.

    Args:
        layer: asked for nothing but where its batch is.
        passes: the rows of each, of the model's call; together all of them.
        least: dimensions that a batched input has, or more.
        run: the layer's forward.
        args: of the call.
        kwargs: of the call.

    Raises:
        RowsError: the input has no batch, or one that is no multiple of the rows.
    """
    named = named_arguments(args, kwargs)
    if isinstance(layer, nn.MultiheadAttention):
        x, dims = _attention(layer, named)
    else:
        x, dims = _plain(named, place_of_input(args, kwargs))
    rows, dim = sum(map(len, passes)), dims[next(iter(dims))]
    parts_per_row(layer, x, rows, least, dim)
    results = []
    for number, own in enumerate(passes):
        cut = _cut(named, dims, own, rows)
        results.append(run(number, tuple(cut[i] for i in range(len(args))), {name: cut[name] for name in kwargs}))
    if isinstance(results[0], Tensor):
        return _joined(results, passes, dim)
    # attention's: the output, and its weights (rows, …) or None; and layers that return more than their output
    outputs, *others = zip(*results, strict=True)
    step = x.shape[dim] // rows
    return _joined(outputs, passes, dim), *(_other(one, passes, step) for one in others)


def _other(results: Sequence[Any], passes: Sequence[Sequence[int]], step: int) -> Any:
    """What a layer returns beside its output: with the rows of the passes where it has some, else that of one pass."""
    pairs = zip(results, passes, strict=True)
    has_rows = all(isinstance(one, Tensor) and one.shape[:1] == (len(own) * step,) for one, own in pairs)
    return _joined(results, passes, 0) if has_rows else results[0]


def _plain(named: Mapping[int | str, Any], place: int | str) -> tuple[Tensor, dict[int | str, int]]:
    """Return the input, and where each argument has its rows: what is as long as the input has them, too."""
    x: Tensor = named[place]
    own = {name for name, value in named.items() if isinstance(value, Tensor) and value.shape[:1] == x.shape[:1]}
    return x, dict.fromkeys([place, *(name for name in named if name in own)], 0)


def _attention(layer: nn.MultiheadAttention, named: Mapping[int | str, Any]) -> tuple[Tensor, dict[int | str, int]]:
    """The same of torch's attention: masks that have rows have them first, together with the heads or alone."""
    dim = 0 if layer.batch_first else 1
    dims: dict[int | str, int] = {}
    for places, ndim, at in _ATTENTION:
        for place in places:
            if isinstance(named.get(place), Tensor) and named[place].ndim == ndim:
                dims[place] = dim if at is None else at
    return named.get(0, named.get("query")), dims


_ATTENTION: tuple[tuple[tuple[int | str, ...], int, int | None], ...] = (
    ((0, "query", 1, "key", 2, "value"), 3, None),
    ((3, "key_padding_mask"), 2, 0),
    ((5, "attn_mask"), 3, 0),
)
"""Arguments of torch's attention by place or name; dimensions if they have rows; where these are, if not by layer."""


def _cut(
    named: Mapping[int | str, Any], dims: Mapping[int | str, int], own: Sequence[int], rows: int
) -> dict[int | str, Any]:
    """The arguments with some rows only; one tensor stays one, for attention looks whether its inputs are the same."""
    cut: dict[int, Tensor] = {}
    for name, dim in dims.items():
        whole: Tensor = named[name]
        if id(whole) not in cut:
            step = whole.shape[dim] // rows
            cut[id(whole)] = torch.cat([whole.narrow(dim, row * step, step) for row in own], dim)
    return {name: cut[id(value)] if name in dims else value for name, value in named.items()}


def _joined(results: Sequence[Tensor], passes: Sequence[Sequence[int]], dim: int) -> Tensor:
    """The rows of the passes in the order of the batch."""
    found: dict[int, Tensor] = {}
    for result, own in zip(results, passes, strict=True):
        found.update(zip(own, result.chunk(len(own), dim), strict=True))
    return torch.cat([found[row] for row in sorted(found)], dim)
