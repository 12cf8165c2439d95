"""`/remora/v1/save`: LoRA as one file, in a model, or as the difference of two models; one job at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from lib_lora import LoraError, Moment, Stack

from ..generation.combined import fits_model
from ..generation.combined_files import combination_of
from ..generation.save_places import SaveError, folders, model_of, models, place, place_beside
from ..generation.saving import (
    SaveRun,
    Wanted,
    as_difference,
    as_file,
    into_model,
    latest_tags,
    stack_of,
)
from . import records
from .answers import CONFLICT, UNPROCESSABLE, answer

if TYPE_CHECKING:
    from lib_lora import SavedFile
    from lib_lora.saving import Combination, SaveOptions

    from ..generation.session import Session

_MOST = 50  # tags
_STEPS = 20
_TIMES = {"file": 3.0, "inputs": 1.5, "model": 2.0, "difference": 2.0}
"""How often saving goes through the layers for each time that a preview does; `inputs` is of a file, with inputs."""


class SaveApi:
    """The latest job of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._latest: SaveRun | None = None

    def start(self, request: Request, body: records.SaveWanted) -> Response:
        """Begin to save LoRA as one file or in a model, or a difference of models; answer the progress."""
        try:
            wanted = self._wanted(body)
        except (SaveError, LoraError) as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        with self._lock:
            former = self._latest
            if former is not None and former.running:
                if not former.is_preview:
                    raise HTTPException(CONFLICT, "a file is being saved; wait for it or cancel it")
                former.cancel()
            self._latest = SaveRun(self._session, wanted, former)
            self._latest.start()
        return self.state(request)

    def state(self, request: Request) -> Response:
        """Return the progress of the latest job, then its result; `job` is null without one."""
        inputs, model = self._session.inputs, self._session.model.components
        told: records.Save = {
            "job": None if self._latest is None else _job(self._latest),
            "inputs": "wanted" if inputs.wanted else "" if inputs.of(model) is None else "taken",
        }
        return answer(request, told)

    def measure(self, request: Request, body: records.InputsWanted) -> Response:
        """Take inputs of layers in the next picture, by which the error of a saved file is told, too; or do not."""
        self._session.inputs.wanted = body["on"]
        return self.state(request)

    def choices(self, request: Request) -> Response:
        """Return the folders that a file may be saved in, and the models of the web UI."""
        told: records.SaveChoices = {"folders": folders(self._session), "models": list(models(self._session))}
        return answer(request, told)

    def cancel(self, request: Request) -> Response:
        """Cancel the job; nothing is written then."""
        if self._latest is not None:
            self._latest.cancel()
        return self.state(request)

    def _wanted(self, body: records.SaveWanted) -> Wanted:
        """Return what a body asks for; raise SaveError or LoraError where it cannot be."""
        if body.get("what") == "model":
            return self._model(body)
        path = place(self._session, _name(body), body.get("folder", ""))
        is_preview = body.get("preview", False)
        if not is_preview:
            _check_free(path, replaces=body.get("replace", False))
        if body.get("what") == "difference":
            base, tuned = (model_of(self._session, name) for name in (body.get("model", ""), body.get("tuned", "")))
            return Wanted(
                path, as_difference(base, tuned, path, _options(body)), is_preview, times=_TIMES["difference"]
            )
        stack, combination, moment = self._stack(body)
        is_for_model = fits_model(self._session.catalog, self._session.model, stack)
        options = _options(body)
        if is_for_model:
            options["inputs"] = self._session.inputs.of(self._session.model.components)
        write = as_file(stack, path, combination, options, moment, body.get("negative"))
        times = _TIMES["file"] if options.get("inputs") is None else _TIMES["inputs"]
        return Wanted(path, write, is_preview, is_for_model, body.get("picture", False), times)

    def _model(self, body: records.SaveWanted) -> Wanted:
        model, is_preview = model_of(self._session, body.get("model", "")), body.get("preview", False)
        path = place_beside(model, _name(body))
        if not is_preview and os.path.lexists(path):
            raise SaveError(f"there is a model {path.name} already; choose another name")
        stack, combination, moment = self._stack(body)
        rounding, seed = body.get("rounding", "nearest"), body.get("seed", 0)
        at = moment, body.get("negative")
        write = into_model(stack, model, path, combination, *at, rounding=rounding, seed=seed, preview=is_preview)
        return Wanted(path, write, is_preview, times=_TIMES["model"])

    def _stack(self, body: records.SaveWanted) -> tuple[Stack, Combination, Moment | None]:
        """Return the stack of the tags in a body, how it is combined, and the moment of which it is."""
        from lib_lora.saving import Combination

        tags = body.get("tags", latest_tags(self._session))
        if len(tags) > _MOST:
            raise SaveError(f"a file is made of at most {_MOST} tags")
        moment = _moment(body)
        stack, rule = stack_of(self._session, tags, moment, body.get("negative"))
        given = Combination(body.get("how", "sum"), body.get("density"), body.get("seed", 0))
        return stack, given if "how" in body else combination_of(rule), moment


def _name(body: records.SaveWanted) -> str:
    return body.get("name", "preview" if body.get("preview") else "")


def _check_free(path: Path, *, replaces: bool) -> None:
    """Raise SaveError where a file that is there stays."""
    if not replaces and os.path.lexists(path):
        raise SaveError(f"there is a file {path.name} already; choose another name, or replace it")
    if path.is_symlink():
        raise SaveError(f"{path.name} is a link to another file, which stays as it is; choose another name")


def _moment(body: records.SaveWanted) -> Moment | None:
    step, steps = _whole(body.get("step")), body.get("steps", _STEPS)
    if step is None:
        return None
    if not 0 <= step < steps:
        raise SaveError(f"the step must be from 0 to {steps - 1}, not {step}")
    return Moment(step, steps)


def _options(body: records.SaveWanted) -> SaveOptions:
    from lib_lora.saving import DTYPES

    return {
        "spelling": body.get("spelling", "kohya"),
        "dtype": DTYPES[body.get("dtype", "float32")],
        "rank": _whole(body.get("rank")),
        "size": _whole(body.get("size")),
        "error": None if (error := body.get("error")) is None else float(error),
        "kind": body.get("kind", "lora"),
        "factor": _whole(body.get("factor")),
        "pad": _whole(body.get("pad")),
        "replace": body.get("replace", False),
        "preview": body.get("preview", False),
    }


def _whole(number: float | None) -> int | None:
    """Return a whole number, which JSON may write as 16.0, as an int."""
    return None if number is None else int(number)


def _job(run: SaveRun) -> records.SaveJob:
    running = run.running  # first: what is told beside it is complete then
    return {
        "id": run.id,
        "preview": run.is_preview,
        "done": run.done,
        "layers": run.layers,
        "running": running,
        "cancelled": run.cancelled,
        "problem": run.problem,
        "result": None if running or run.saved is None else _result(run, run.saved),
    }


def _result(run: SaveRun, saved: SavedFile) -> records.SavedLora:
    ranks = [one.rank for one in saved.layers if one.rank]
    worst = max(saved.layers, key=lambda one: one.error)
    catalog = run.session.catalog
    return {
        "id": "" if run.file is None else run.file.id,
        "name": "" if run.file is None else catalog.names.name_of(run.file),
        "path": str(Path(saved.path)),
        "bytes": saved.nbytes,
        "layers": len(saved.layers),
        "ranks": (min(ranks), max(ranks)) if ranks else None,
        "whole": len([one for one in saved.layers if one.rank is None]),
        "left_out": len([one for one in saved.layers if one.rank == 0]),
        "error": saved.error,
        "worst": worst.name,
        "worst_error": worst.error,
        "output_error": saved.output_error,
        "each": [
            {"component": one.component, "name": one.name, "rank": one.rank, "error": one.error}
            for one in sorted(saved.layers, key=lambda one: -one.error)
        ],
        "notes": list(run.notes),
        "seconds": run.seconds,
    }
