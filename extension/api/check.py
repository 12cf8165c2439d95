"""`/remora/v1/check`: what the doctor says of a file, and of files together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from fastapi import HTTPException, Request, Response

from lib_lora import Amount, Curve, Entry, LoraError, Reading

from ..generation.options import default_multiplier, reading
from ..generation.save_places import loaded_model
from ..library.checks import TooManyChecks
from ..text.grammar import read
from ..text.prompt import parse_placed
from ..text.regions import NO_MASK
from ..text.tag import ALWAYS, Tag
from . import records
from .answers import TOO_MANY, UNPROCESSABLE, answer
from .library import find_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lib_lora.inspection.figures import Standing
    from lib_lora.inspection.layers import FileLayers
    from lib_lora.inspection.measures import FileMeasures
    from lib_lora.inspection.stacked import PairMeasures, StackMeasures
    from lib_lora.inspection.verdicts import Published, Verdict

    from ..generation.session import Session
    from ..library import CatalogFile
    from ..library.checks import Check, Measure, Progress

_SHOWN = 20
"""Layers of a verdict that an answer names."""
_DIRECTIONS = 64
"""Of a spectrum, the strongest first."""
_MOST = 10
"""Files of a stack: the work grows with their pairs."""
_LARGEST_MODEL = 8 << 30
"""Bytes of a model whose weights are read for a check; larger ones take too long."""
_LARGEST = 1e6
"""Of the strengths in a query."""
_MEAN = 0.5
"""Of the block weights R and U."""

Result = TypeVar("Result")


class CheckApi:
    """The checks over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def file(self, request: Request, id: str = "", name: str = "") -> Response:  # noqa: A002  # of the query
        """Return what the doctor says of a file, or how far it is; ask again until it is done, or it stops."""
        file = self._file(id, name)
        check = self._check(self._measure(), [file])
        found = {} if check.result is None else self._session.catalog.copies.standings(file)
        told: records.CheckedFile = {
            "done": check.done,
            "layers": check.layers,
            "result": check.result,
            "standings": {name: _standing(one) for name, one in found.items() if one.others},
        }
        return answer(request, told)

    def stack(self, request: Request, ids: str = "", strengths: str = "", tags: str = "") -> Response:
        """Return what the files of tags, or of `ids`, do to each other, or how far that is; else of "Always on"."""
        files, acting = self._by_ids(ids, strengths) if ids else self._by_tags(tags)
        check = self._check(self._stack_measure(acting), files)
        try:
            together = None if check.result is None else self._together(check.result, acting)
        except LoraError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        told: records.CheckedStack = {
            "done": check.done,
            "layers": check.layers,
            "ids": [file.id for file in files],
            "strengths": [_number(tag.unet) for tag in acting],
            "tags": tags,
            "uncounted": _uncounted(acting),
            "result": together,
        }
        return answer(request, told)

    def _measure(self) -> FileMeasure:
        """Return what measures a file beside the loaded model; without it where that is large, or no file on disk."""
        found = loaded_model(self._session)
        if found is None:
            return FileMeasure()
        path, files = found
        stats = [file.stat() for file in files if file.is_file()]
        if not stats or sum(one.st_size for one in stats) > _LARGEST_MODEL:
            return FileMeasure()
        return FileMeasure(path, tuple((one.st_size, one.st_mtime_ns) for one in stats))

    def _stack_measure(self, tags: Sequence[Tag]) -> StackMeasure:
        """Return what measures files as their tags read them."""
        usual = reading(self._session.host)
        entries = [Entry(tag.name, 1.0, tag.rank, tag.alpha, tag.scale) for tag in tags]
        return StackMeasure(tuple([(entry.reading(usual), entry.rank) for entry in entries]))

    def _together(self, measured: StackMeasures, tags: Sequence[Tag]) -> records.FilesTogether:
        """Return the measures at the strengths of tags; rules of block weights see the layers' names in the model."""
        from lib_lora.inspection.stacked import naming_in, own_name

        model = self._session.model
        naming = naming_in(model.components) if any(tag.blocks.elements for tag in tags) else own_name
        acting = measured.at([_everywhere(tag).multiplier for tag in tags], model.blocks, naming)
        return {
            "norm": acting.norm,
            "alone": acting.alone,
            "left": acting.left,
            "factor": acting.factor(),
            "alive": acting.alive(),
            "pairs": [_pair(one) for one in acting.pairs],
        }

    def _by_ids(self, ids: str, strengths: str) -> tuple[list[CatalogFile], list[Tag]]:
        """Return files by their ids, and tags that have their strengths."""
        names = ids.split(",")
        _check_count(names)
        given = _numbers(strengths, len(names))
        tags = [Tag(name, strength, strength) for name, strength in zip(names, given, strict=True)]
        return [self._file(name, "") for name in names], tags

    def _by_tags(self, written: str) -> tuple[list[CatalogFile], list[Tag]]:
        """Return the files of tags, and the tags; without any, of the list "Always on"."""
        entries = () if written else self._session.always_on.stack.wanted()
        text = written or "".join([f"<lora:{entry.written}>" for entry in entries])
        default = default_multiplier(self._session.host)
        try:
            tags = [parse_placed(one, default, self._session.names) for _, one in read(text, on=False).tags]
        except LoraError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        _check_count([tag.name for tag in tags])
        files = [self._file("", tag.name) for tag in tags]
        _check_count([file.id for file in files])
        return files, tags

    def _check(self, measure: Measure[Result], files: Sequence[CatalogFile]) -> Check[Result]:
        try:
            check = self._session.catalog.checks.of(measure, files)
        except TooManyChecks as error:
            raise HTTPException(TOO_MANY, "too many other files are being checked; try again later") from error
        if check.problem:
            raise HTTPException(UNPROCESSABLE, check.problem)
        return check

    def _file(self, id: str, name: str) -> CatalogFile:  # noqa: A002
        """Return a file as it is now."""
        catalog = self._session.catalog
        file = find_file(catalog, id, name)
        if not file.is_current():
            catalog.refresh()
            file = find_file(catalog, id, name)
        return file


def _check_count(names: Sequence[str]) -> None:
    if not 2 <= len(set(names)) == len(names) <= _MOST:
        raise HTTPException(UNPROCESSABLE, f"a check of a stack takes 2 to {_MOST} different files")


def _number(amount: Amount) -> float:
    """Return a strength; of a schedule, the value farthest from 0."""
    return max([value for _, value in amount.points], key=abs) if isinstance(amount, Curve) else amount


def _numbers(text: str, count: int) -> list[float]:
    """Return the strengths of a query; 1 each where it has none."""
    texts = text.split(",") if text else ["1"] * count
    if len(texts) == count:
        with suppress(ValueError):
            found = [float(one) for one in texts]
            if all(abs(one) <= _LARGEST for one in found):
                return found
    raise HTTPException(UNPROCESSABLE, f"strengths must be a number for each of the {count} ids, separated by commas")


@dataclass(frozen=True)
class FileMeasure:
    """Measures a file, on the loaded model where the file is for it."""

    model: Path | None = None
    """On disk: the weights in memory move while pictures are made."""
    state: tuple[object, ...] = ()
    """Changes with the model's files."""

    def __call__(self, paths: Sequence[Path], progress: Progress) -> records.FileCheck:
        """Return what the doctor says of a file.

        Raises:
            LoraError: it cannot be used, or changed on disk.
        """
        from lib_lora.inspection.measures import measure
        from lib_lora.inspection.training import trained
        from lib_lora.inspection.verdicts import verdicts

        (path,) = paths
        measured = measure(self._layers(path), progress)
        return {
            "norm": measured.norm,
            "relative": measured.relative,
            "rank": measured.rank,
            "rank_90": measured.rank_for(0.9),
            "rank_99": measured.rank_for(0.99),
            "components": {name: measured.share(part) for name, part in measured.by_component().items()},
            "blocks": _blocks(measured),
            "kept": list(measured.kept().items()),
            "spectrum": measured.spectrum()[:_DIRECTIONS],
            "trained": trained(measured.file.report.metadata, path.stem),
            "unmeasured": dict(measured.unmeasured),
            "faults": list(measured.file.report.faults),
            "verdicts": [_verdict(one) for one in verdicts(measured)],
        }

    def _layers(self, path: Path) -> FileLayers:
        """Return the layers of a file: on the model if all fit, else by themselves."""
        from lib_lora.inspection.layers import layers_of
        from lib_lora.inspection.skeleton import mapped_model

        if self.model is not None:
            with suppress(LoraError):  # it is for another model; what is wrong with the file itself is raised below
                found = layers_of(path, mapped_model(self.model))
                if found.report.hit == found.report.layers:
                    return found
        return layers_of(path)


def _blocks(measured: FileMeasures) -> list[records.CheckBlock]:
    """Return the part of a file in each block, as the blocks lie in a model."""
    return [
        {
            "component": component,
            "block": block,
            "layers": len(part.layers),
            "share": measured.share(part),
            "spectral": part.spectral,
            "relative": part.relative,
            "rank_90": part.rank_for(0.9),
            "rank_99": part.rank_for(0.99),
        }
        for (component, block), part in measured.by_place().items()
    ]


def _standing(one: Standing) -> records.Standing:
    return {"others": one.others, "smaller": one.smaller, "same": one.same}


def _published(one: Published) -> records.PublishedRange:
    return {
        "measure": one.measure,
        "low": one.low,
        "high": one.high,
        "source": one.source,
        "address": one.address,
    }


def _verdict(one: Verdict) -> records.CheckVerdict:
    return {
        "name": one.name,
        "sure": one.sure,
        "numbers": dict(one.numbers),
        "blocks": list(one.blocks),
        "figure": one.figure,
        "published": None if one.published is None else _published(one.published),
        "text": str(one),
        "layers": list(one.layers[:_SHOWN]),
        "count": len(one.layers),
    }


@dataclass(frozen=True)
class StackMeasure:
    """Measures files on one model together, each as its tag reads it."""

    readings: tuple[tuple[Reading, int | None], ...]
    """Of each file, and how many of its rank components are used; None is all."""

    def __call__(self, paths: Sequence[Path], progress: Progress) -> StackMeasures:
        """Return the measures at strength 1.

        Raises:
            LoraError: a file cannot be used, or changed on disk.
        """
        from lib_lora.inspection.layers import layers_of
        from lib_lora.inspection.stacked import measure_stack

        read = zip(paths, self.readings, strict=True)
        return measure_stack([layers_of(path, reading=own, rank=rank) for path, (own, rank) in read], progress)


def _uncounted(tags: Sequence[Tag]) -> list[records.Uncounted]:
    """Return what tags have that a check of a stack does not count."""
    found: dict[records.Uncounted, bool] = {
        "schedule": any(tag.during != ALWAYS or tag.curve is not None for tag in tags),
        "region": any(tag.mask != NO_MASK for tag in tags),
        "passes": any(tag.passes or (tag.hires_te, tag.hires_unet) != (None, None) for tag in tags),
        "prompt": any(tag.half or tag.part is not None for tag in tags),
        "images": any(tag.rows for tag in tags),
        "rule": any(tag.rule is not None for tag in tags),
        "random": any(tag.blocks.random for tag in tags),
    }
    return [name for name, is_set in found.items() if is_set]


def _everywhere(tag: Tag) -> Tag:
    """Return a tag as if it acted everywhere and always; block weights that are drawn at random have their mean."""
    values = tuple([_MEAN if value in ("R", "U") else value for value in tag.blocks.values])
    return replace(tag.alone, blocks=replace(tag.blocks, values=values))


def _pair(one: PairMeasures) -> records.CheckPair:
    (outputs, outputs_by_chance, _), (inputs, inputs_by_chance, _) = one.overlap(0), one.overlap(1)
    return {
        "files": one.files,
        "component": one.component,
        "band": one.band,
        "layers": one.layers,
        "relation": one.relation,
        "cosine": one.cosine,
        "cosine_by_chance": one.cosine_by_chance,
        "mean_cosine": one.mean_cosine,
        "outputs": outputs,
        "outputs_by_chance": outputs_by_chance,
        "inputs": inputs,
        "inputs_by_chance": inputs_by_chance,
    }
