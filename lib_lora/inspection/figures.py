"""The figures of a file that verdicts judge, and where each stands among other files.

A figure is the larger, the more of the measure a file has. Layers whose change has no factors take long to measure, so
a file with one has no figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from ..errors import LoraError
from ..files.sources import whole_of
from .layers import FileLayers, Progress, layers_of, unheard
from .measures import FileMeasures, LayerMeasures, measure
from .sketches import has_factors

Figures: TypeAlias = Mapping[str, float]
VERSION = 1
"""Rises when a figure changes its meaning; figures of another version are computed again."""
SPIKE = 0.8
"""A layer has a spike where one singular value has this share of its energy."""
KEPT = 0.99
"""The energy that a lower rank must keep."""


class Standing(NamedTuple):
    """Where a figure of a file is among other files."""

    others: int
    """Files that have this figure."""
    smaller: int
    """Of these."""
    same: int

    def __str__(self) -> str:
        same = f", and the same in {self.same}" if self.same else ""
        return f"higher than in {self.smaller} of {self.others} other files for this model{same}"


def figures_of(file: FileMeasures) -> dict[str, float]:
    """Return the figures of a file by the name of the verdict on it; `strong` and `weak` judge `norm`."""
    needed, usual = file.rank_for(KEPT), usual_spectral(file)
    layers = file.parts(lambda one: one.layer.name).values()
    found = {
        "norm": file.norm,
        "not_finite": len(file.file.not_finite),
        "clipped": len(file.clipped),
        "dead": sum(one.is_dead for one in file.layers) / max(len(file.layers), 1),
        "spike": max([one.spectral for one in spikes(file)], default=0.0) / (usual or 1.0),
        "dominant": max([file.share(part) for part in layers], default=0.0),
        "text_encoder": file.text_encoder_share,
        "resized": file.rank,
        "spare_rank": file.rank / (needed or 1),
    }
    return found | ({"alpha": max(file.scales)} if file.scales else {})


def usual_spectral(file: FileMeasures) -> float:
    """Return the median of the layers' spectral norms; 0 of nothing."""
    return median([one.spectral for one in file.layers] or [0.0])


def spikes(file: FileMeasures) -> list[LayerMeasures]:
    """Return the layers that have most of their energy in one direction."""
    return [one for one in file.layers if one.first_share > SPIKE]


def figures_by_factors(file: FileLayers, progress: Progress = unheard) -> dict[str, float]:
    """Return the figures of a file without a model; none if a layer has no factors, or depends on its base weight.

    Args:
        file: its layers.
        progress: is called before each layer.

    Raises:
        FileError: it changed on disk.
    """
    if file.shapeless or not all(has_factors(layer.adapter) for layer in file.layers):
        return {}
    measured = measure(file, progress)
    return {} if measured.unmeasured else figures_of(measured)


def standings(own: Figures, others: Iterable[Figures]) -> dict[str, Standing]:
    """Compare each figure of a file with the other files that have it."""
    every = list(others)
    found = {}
    for name, value in own.items():
        values = [one[name] for one in every if name in one]
        found[name] = Standing(len(values), sum(one < value for one in values), sum(one == value for one in values))
    return found


def standings_in(folder: Path, files: Sequence[FileLayers]) -> list[dict[str, Standing]]:
    """Compare each file with the others for the same model in a folder and the folders in it.

    What is no LoRA there is left out. A file of an unknown model stands nowhere.

    Args:
        folder: with LoRA files; all of them are measured.
        files: opened without a model.

    Raises:
        FileError: one of `files` changed on disk.
    """
    own = {file.report.path.resolve(): figures_by_factors(file) for file in files}
    families, others = set(map(_family, files)), list[tuple[Path, str, Figures]]()
    for path in dict.fromkeys(map(whole_of, sorted(folder.rglob("*.safetensors")))):
        with suppress(LoraError):
            opened, place = layers_of(path), path.resolve()
            family = _family(opened)
            if family is not None and family in families:
                others.append((place, family, own[place] if place in own else figures_by_factors(opened)))
    found = []
    for file in files:
        place, family = file.report.path.resolve(), _family(file)
        found.append(standings(own[place], [one for path, of, one in others if path != place and of == family]))
    return found


def _family(file: FileLayers) -> str | None:
    family = file.report.family
    return None if family is None or not family.known else family.name
