"""`/remora/v1/check`: what the doctor says of a file, and of files together."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from fastapi import HTTPException, Request, Response

from ..library.checks import TooManyChecks
from . import records
from .answers import TOO_MANY, UNPROCESSABLE, answer
from .library import find_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lib_lora.inspection.measures import FileMeasures, LayerMeasures
    from lib_lora.inspection.verdicts import Verdict

    from ..generation.session import Session
    from ..library import CatalogFile
    from ..library.checks import Check, Measure, Progress

_SHOWN = 20
"""Layers of a verdict that an answer names."""

Result = TypeVar("Result")


class CheckApi:
    """The checks over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def file(self, request: Request, id: str = "", name: str = "") -> Response:  # noqa: A002  # of the query
        """Return what the doctor says of a file, or how far it is; ask again until it is done, or it stops."""
        check = self._check(file_check, [self._file(id, name)])
        told: records.Check = {"done": check.done, "layers": check.layers, "result": check.result}
        return answer(request, told)

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


def file_check(paths: Sequence[Path], progress: Progress) -> records.FileCheck:
    """Measure a file, and return what the doctor says of it.

    Raises:
        LoraError: it cannot be used, or changed on disk.
    """
    from lib_lora.inspection.layers import layers_of
    from lib_lora.inspection.measures import measure, trained
    from lib_lora.inspection.verdicts import verdicts

    (path,) = paths
    measured = measure(layers_of(path), progress)
    return {
        "norm": measured.norm,
        "rank": measured.rank,
        "rank_90": measured.rank_for(0.9),
        "rank_99": measured.rank_for(0.99),
        "components": measured.by_component(),
        "blocks": _blocks(measured),
        "kept": list(measured.kept().items()),
        "trained": trained(measured.file.report.metadata),
        "unmeasured": dict(measured.unmeasured),
        "verdicts": [_verdict(one) for one in verdicts(measured)],
    }


def _blocks(measured: FileMeasures) -> list[records.CheckBlock]:
    """Return the part of a file in each block, in the order of the file."""
    blocks: dict[tuple[str, str], list[LayerMeasures]] = {}
    for one in measured.layers:
        blocks.setdefault((one.layer.component, one.layer.block), []).append(one)
    return [
        {
            "component": component,
            "block": block,
            "layers": len(layers),
            "share": sum([one.energy for one in layers]) / (measured.energy or 1.0),
            "rank_90": max([one.effective_rank(0.9) for one in layers]),
            "rank_99": max([one.effective_rank(0.99) for one in layers]),
        }
        for (component, block), layers in blocks.items()
    ]


def _verdict(one: Verdict) -> records.CheckVerdict:
    return {
        "name": one.name,
        "sure": one.sure,
        "numbers": dict(one.numbers),
        "text": str(one),
        "layers": list(one.layers[:_SHOWN]),
        "count": len(one.layers),
    }
