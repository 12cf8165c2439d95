"""Layers that have a number in the file instead of a name: which of a model's they are.

A number is right only if the trainer counted the same layers in the same order, which nothing in the file says in full.
So all numbers of a component are held against the model's shapes together: one layer that does not fit means that the
counting was another, and then none of them is to be trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ..files.formats.base import Numbering
from .index import LayerIndex
from .places import Place

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Numbered:
    """What the numbers of one component of a file mean in one component of a model."""

    places: Mapping[str, Place] = field(default_factory=dict)
    """By the number as the file spells it; empty where the numbers mean nothing."""
    reason: str = ""
    """Why they do not."""
    detail: str = ""


def numbered(
    shapes: Mapping[str, Shape | None], index: LayerIndex, numberings: Sequence[Numbering], header: str | None
) -> Numbered:
    """Find the layers that numbers mean.

    Args:
        shapes: number -> the weight its parameters were made for, None where they do not tell.
        index: the layers of the model.
        numberings: how the trainer may have counted.
        header: the classes of the modules that were trained, as the file's header lists them; None where it does not.
    """
    classes = None if header is None else _classes(header)
    usable = [one for one in numberings if classes is None or one.layers.keys() >= set(classes)]
    if not usable:
        return Numbered(reason="numbered among modules of a class not known here", detail=f"classes {header}")
    counted = [dict(_places(shapes, index, one.numbered(index.names(), classes))) for one in usable]
    misfits = [next(_misfits(shapes, places), None) for places in counted]
    fitting = [places for places, misfit in zip(counted, misfits, strict=True) if misfit is None]
    if not fitting:
        return Numbered(
            reason="numbered as the layers of this model are not", detail=f"{index.component}: {misfits[0]}"
        )
    if any(places != fitting[0] for places in fitting):
        return Numbered(reason="numbered in a way that means more than one layer", detail=index.component)
    return Numbered(fitting[0])


def _classes(header: str) -> list[str]:
    """The classes that a header lists; itself where it is no list."""
    try:
        found = json.loads(header)
    except (ValueError, RecursionError):
        return [header]
    return [str(name) for name in found] if isinstance(found, list) else [header]


def _places(numbers: Iterable[str], index: LayerIndex, names: Sequence[str]) -> Iterator[tuple[str, Place]]:
    for number in numbers:
        place = index.find(names[int(number)]) if int(number) < len(names) else None
        if place is not None:
            yield number, place


def _misfits(shapes: Mapping[str, Shape | None], places: Mapping[str, Place]) -> Iterator[str]:
    """What is wrong with a way of counting."""
    for number in sorted(shapes, key=int):
        shape = shapes[number]
        place = places.get(number)
        if place is None:
            yield f"there is no layer {number}"
        elif shape is not None and not _alike(shape, place.shape):
            yield f"layer {number} is {place.name} of {place.shape}, in the file of {shape}"


def _alike(one: Shape, other: Shape) -> bool:
    """Whether they are the same but for a kernel of 1, which a linear layer may be saved with."""
    return all(a == b for a, b in zip_longest(one, other, fillvalue=1))
