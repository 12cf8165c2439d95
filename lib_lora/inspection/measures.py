"""The measures of a file: norms, singular values and ranks of each layer, block and component."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from ..files.components import TEXT_ENCODER, role
from ..naming.blocks import block_order
from ..naming.parsed import Group
from ..tensors import LARGEST
from .deltas import count_of
from .layers import FileLayer, FileLayers, Progress, counted, unheard
from .training import trained

Name = TypeVar("Name")

_SHOWN = 4
"""Singular values that a layer's JSON has."""
_NOTHING = 1e-14
"""The share of a layer's energy below which a singular value's square is an error of rounding."""
RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
"""The ranks of the table of what a lower rank keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerMeasures:
    """The measures of one layer's change of its weight, at strength 1."""

    layer: FileLayer
    squares: Tensor
    """Squares of the singular values, the largest first, without those that are errors of rounding; fp64."""
    base_norm: float | None
    """Frobenius norm of the base weight; None where it is not known."""
    has_bias: bool

    @property
    def energy(self) -> float:
        """Return the sum of the squares of all entries, which is that of the singular values."""
        return float(self.squares.sum())

    @property
    def norm(self) -> float:
        """Return the Frobenius norm."""
        return math.sqrt(self.energy)

    @property
    def spectral(self) -> float:
        """Return the largest singular value."""
        return math.sqrt(float(self.squares[0])) if len(self.squares) else 0.0

    @property
    def stable_rank(self) -> float:
        """Return the energy divided by the largest singular value's square; 0 of nothing."""
        return self.energy / float(self.squares[0]) if len(self.squares) else 0.0

    @property
    def largest(self) -> list[float]:
        """Return the largest singular values, as many as the JSON of a layer has."""
        return [float(one) for one in self.squares[:_SHOWN].sqrt()]

    def effective_rank(self, share: float) -> int:
        """Return how many singular values have this share of the energy; 0 of nothing."""
        return count_of(self.squares.sqrt(), share) if len(self.squares) else 0

    @property
    def relative(self) -> float | None:
        """Return the norm divided by the base weight's."""
        return self.norm / self.base_norm if self.base_norm else None

    @property
    def first_share(self) -> float:
        """Return the share of the largest singular value in the energy; 0 of nothing."""
        return 1 / self.stable_rank if len(self.squares) else 0.0

    @property
    def is_dead(self) -> bool:
        """Return whether it changes nothing."""
        return not len(self.squares) and not self.has_bias

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        layer = self.layer
        return {
            "component": layer.component,
            "layer": layer.name,
            "block": layer.block,
            "kind": layer.kind,
            "rank": layer.adapter.rank,
            "scale": layer.scale,
            "norm": self.norm,
            "relative_norm": self.relative,
            "spectral_norm": self.spectral,
            "singular_values": self.largest,
            "stable_rank": self.stable_rank,
            "effective_rank_90": self.effective_rank(0.9),
            "effective_rank_99": self.effective_rank(0.99),
        }


@dataclass(frozen=True, eq=False)
class PartMeasures:
    """The measures of some layers of a file together: of a block, of a component, of all."""

    layers: tuple[LayerMeasures, ...]

    @cached_property
    def energy(self) -> float:
        """Return the energy of all layers."""
        return sum([one.energy for one in self.layers])

    @property
    def norm(self) -> float:
        """Return the Frobenius norm of all layers together."""
        return math.sqrt(self.energy)

    @property
    def spectral(self) -> float:
        """Return the largest singular value of all layers; 0 of nothing."""
        return max([one.spectral for one in self.layers], default=0.0)

    @property
    def relative(self) -> float | None:
        """Return the norm divided by that of the base weights of the same layers; None where none is known."""
        known = [one for one in self.layers if one.base_norm]
        base = sum([one.base_norm**2 for one in known if one.base_norm])
        return math.sqrt(sum([one.energy for one in known]) / base) if base else None

    def rank_for(self, share: float) -> int:
        """Return the least rank of all layers at which each keeps this share of its energy; 0 of nothing."""
        return max([one.effective_rank(share) for one in self.layers], default=0)


@dataclass(frozen=True, eq=False)
class FileMeasures(PartMeasures):
    """The measures of a file."""

    file: FileLayers
    unmeasured: Mapping[str, int]
    """Kind -> how many layers depend on base weights that are not known."""

    @property
    def rank(self) -> int:
        """Return the largest rank of its layers; of one that has none, how many singular values it has."""
        return max([one.layer.adapter.rank or len(one.squares) for one in self.layers], default=0)

    @property
    def text_encoder_share(self) -> float:
        """Return the share of the text encoders in the energy."""
        return sum([self.share(part) for name, part in self.by_component().items() if role(name) == TEXT_ENCODER])

    def share(self, part: PartMeasures) -> float:
        """Return the share of a part in the energy; 0 where the file is nothing."""
        return part.energy / (self.energy or 1.0)

    def by_component(self) -> dict[str, PartMeasures]:
        """Return component -> its measures."""
        return self.parts(lambda one: one.layer.component)

    def by_block(self) -> dict[str, PartMeasures]:
        """Return block -> its measures, as the blocks lie in a model, text encoders first."""
        found = self.parts(lambda one: one.layer.block or one.layer.component)
        return {name: found[name] for name in sorted(found, key=block_order)}

    def by_place(self) -> dict[tuple[str, str], PartMeasures]:
        """Return component and block -> its measures, as they lie in a model, text encoders first."""
        found = self.parts(lambda one: (one.layer.component, one.layer.block))
        return {
            place: found[place] for place in sorted(found, key=lambda one: (block_order(one[0]), block_order(one[1])))
        }

    def parts(self, name_of: Callable[[LayerMeasures], Name]) -> dict[Name, PartMeasures]:
        """Return the layers that have the same name together, in the order of the file."""
        found: dict[Name, list[LayerMeasures]] = {}
        for one in self.layers:
            found.setdefault(name_of(one), []).append(one)
        return {name: PartMeasures(tuple(layers)) for name, layers in found.items()}

    def kept(self) -> dict[int, float]:
        """Return rank -> the share of the energy that no layer loses at this rank, up to the first that keeps all."""
        most = max([len(one.squares) for one in self.layers], default=0)
        ranks = [rank for rank in RANKS if rank < most]
        found = {}
        for rank in (*ranks, most) if most else ():
            found[rank] = sum([float(one.squares[:rank].sum()) for one in self.layers]) / self.energy
        return found

    def spectrum(self) -> list[float]:
        """Return the share of the energy in the strongest direction of all layers, in the second of all, and so on."""
        found = torch.zeros(max([len(one.squares) for one in self.layers], default=0), dtype=torch.float64)
        for one in self.layers:
            found[: len(one.squares)] += one.squares
        return (found / (self.energy or 1.0)).tolist()

    @cached_property
    def clipped(self) -> tuple[str, ...]:
        """Return the keys of tensors whose largest number is the largest of their dtype."""
        found = [
            (key, one.file.infos[key].dtype, size)
            for one in self.file.files
            for key, size in one.file.magnitudes.items()
        ]
        narrow = [
            (key, torch.finfo(dtype).max, size)
            for key, dtype, size in found
            if dtype.is_floating_point and dtype.itemsize < 4
        ]
        return tuple([key for key, largest, size in narrow if largest <= size <= LARGEST])

    @property
    def scales(self) -> tuple[float, ...]:
        """Return the different scales, alpha / rank, of its layers."""
        return tuple(sorted({scale for one in self.layers if (scale := one.layer.scale) is not None}))

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        report = self.file.report
        return {
            "file": str(report.path),
            "kinds": dict(report.kinds),
            "ranks": None if report.ranks is None else list(report.ranks),
            "base_model": report.base_model,
            "trained": trained(report.metadata, report.path.stem),
            "norm": self.norm,
            "relative_norm": self.relative,
            "spectral_norm": self.spectral,
            "components": {name: self._part(part) for name, part in self.by_component().items()},
            "blocks": {name: self._part(part) for name, part in self.by_block().items()},
            "text_encoder_share": self.text_encoder_share,
            "kept": self.kept(),
            "scales": list(self.scales),
            "clipped": list(self.clipped),
            "not_finite": list(self.file.not_finite),
            "unmeasured": dict(self.unmeasured),
            "layers": [one.to_json() for one in self.layers],
        }

    def _part(self, part: PartMeasures) -> dict[str, object]:
        return {
            "share": self.share(part),
            "norm": part.norm,
            "relative_norm": part.relative,
            "spectral_norm": part.spectral,
        }


def measure(file: FileLayers, progress: Progress = unheard) -> FileMeasures:
    """Measure a file layer by layer; one layer's tensors are in memory at a time.

    Args:
        file: its layers.
        progress: is called before each layer.

    Raises:
        FileError: the file changed on disk.
    """
    measured, unmeasured = list[LayerMeasures](), Counter([_kind(group) for _, group in file.shapeless])
    with file.reading():
        for layer in counted(file.layers, progress):
            delta = layer.delta()
            if delta is None:
                unmeasured[layer.kind] += 1
                continue
            squares = delta.singular_values().square()
            squares = squares[squares > _NOTHING * squares.sum()]
            measured.append(LayerMeasures(layer, squares, layer.base_norm(), layer.adapter.has_bias))
    return FileMeasures(tuple(measured), file, unmeasured)


def _kind(group: Group) -> str:
    return "" if group.recipe is None else group.recipe.name
