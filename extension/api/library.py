"""`/remora/v1/loras` and related routes: the files, their data, and notes on them."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

import lib_lora
from lib_lora import AdapterFile, Family, LoraError

from ..library import (
    EDITABLE,
    Facts,
    Found,
    Notes,
    NotesError,
    Structure,
    Training,
    beside,
    notes_lock,
    notes_of,
    read_training,
    write_notes,
)
from ..library.catalog import CatalogError, Lookup
from ..library.pictures import PictureError, Replaced, Thumbnails, set_picture
from ..online.sidecars import read_online
from . import records
from .answers import BROKEN, NO_CONTENT, NOT_FOUND, UNPROCESSABLE, answer, refuse_stale, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..generation.session import Session
    from ..library import CatalogFile, Row
    from ..library.catalog import Catalog

logger = logging.getLogger(__name__)

_MAX_NAMES = 50
_SUGGESTED_FOR = 10  # unknown names of a request: each is compared with all names
_PATIENCE = 0.3  # seconds that a list waits for unread files: a list of few files is complete at once
_WEEK = "private, max-age=604800"


class Library:
    """The files over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thumbnails: Thumbnails | None = None
        self._few = asyncio.Semaphore(2)
        self._replaced: tuple[Path, Replaced] | None = None
        """The file whose picture was set last, and what was in its place."""

    def list(self, request: Request, since: str = "0") -> Response:
        """List the files; with `since`, the `revision` of an earlier list, only what has changed."""
        known = whole(since, "since")
        catalog = self._session.catalog
        catalog.scan_often()
        catalog.read_for(_PATIENCE)
        revision = catalog.index.revision
        known = known if known <= revision else 0  # from an earlier process
        rows, gone = catalog.index.since(known)
        progress = catalog.progress
        told: records.Loras = {
            "revision": revision,
            "whole": not known,
            "loras": [listed(row) for row in rows],
            "gone": gone,
            "families": self._families(),
            "scan": {"running": progress.running, "done": progress.done, "total": progress.total},
            "problem": catalog.problem_of_list,
        }
        return answer(request, told)

    def refresh(self, request: Request) -> Response:
        """Scan the folders again, and list the files."""
        self._session.catalog.refresh()
        return self.list(request)

    def one(self, request: Request, id: str = "", name: str = "") -> Response:  # noqa: A002  # of the query
        """Return all data of one file: training, captions, files beside it."""
        return self._answered(request, self._file(id, name))

    def change(self, request: Request, body: records.NotesWanted, id: str = "", name: str = "") -> Response:  # noqa: A002
        """Change the notes on one file, in the file beside it that web UIs read."""
        file = self._file(id, name)
        return self._changed(request, file, "notes", lambda: write_notes(file, body))

    async def thumbnail(self, request: Request, id: str = "", name: str = "") -> Response:  # noqa: A002
        """Return a thumbnail of one file as WebP; no content if the picture is damaged."""
        async with self._few:  # a page requests dozens at once, and the host needs its threads
            return await run_in_threadpool(self._thumbnail, id, name)

    def _thumbnail(self, id: str, name: str) -> Response:  # noqa: A002
        file = self._file(id, name)
        row = self._session.catalog.row(file)
        if not _picture(row):
            raise HTTPException(NOT_FOUND, f"{file.path.name} has no picture")
        headers = {"Cache-Control": _WEEK}
        made = self._made().of(Found(file, picture=row.picture, stamp=row.beside), row.picture is None)
        if made is None:  # listed, but decoding shows that it is damaged
            return Response(status_code=NO_CONTENT, headers=headers)
        return Response(made, media_type="image/webp", headers=headers)

    def set_picture(self, request: Request, body: bytes, id: str = "", name: str = "") -> Response:  # noqa: A002
        """Replace the picture beside one file; the body is a picture of at most 25 million pixels."""
        file = self._file(id, name)

        def work() -> None:
            self._replaced = (file.path, set_picture(file, beside(file), body))

        return self._changed(request, file, "picture", work)

    def restore_picture(self, request: Request, id: str = "", name: str = "") -> Response:  # noqa: A002
        """Put back the picture that the latest `PUT` replaced, if that was of this file."""
        file = self._file(id, name)

        def work() -> None:
            path, replaced = self._replaced or (None, None)
            if replaced is None or path != file.path:
                raise HTTPException(NOT_FOUND, f"there is no former picture of {file.path.name} to restore")
            replaced.restore()
            self._replaced = None

        return self._changed(request, file, "picture", work)

    def resolve(self, request: Request, body: records.NamesWanted) -> Response:
        """Return the file that each name means, or why it means none; ambiguous names have candidates."""
        if len(body["names"]) > _MAX_NAMES:
            raise HTTPException(UNPROCESSABLE, f"names must be a list of no more than {_MAX_NAMES} texts")
        told: records.Meanings = {"names": self._meanings(body["names"])}
        return answer(request, told)

    def inspect(self, request: Request, name: str = "", model: str = "") -> Response:
        """Return the content of a file; with `model=loaded`, what of it would change the loaded model."""
        from lib_lora.inspection.zeros import changes_nothing

        file = self._file("", name)
        if model not in ("", "loaded"):
            raise HTTPException(UNPROCESSABLE, f"model must be 'loaded' or left out, not {model!r}")
        try:
            parts = self._session.host.components() if model else {}
            network = lib_lora.load_network(file.source, parts) if parts else None
            report = lib_lora.inspect_file(file.source) if network is None else network.report
            files = map(AdapterFile.open, file.files) if network is None else network.files
            zero = all(map(changes_nothing, files))
        except LoraError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        return answer(request, records.Inspection({**report.to_json(), "changes_nothing": zero}))

    def _file(self, id: str, name: str) -> CatalogFile:  # noqa: A002
        return find_file(self._session.catalog, id, name)

    def _meanings(self, names: Sequence[str]) -> dict[str, records.Meaning]:
        """Look up names; similar names, which take a while, are found for the first unknown ones."""
        catalog, unknown = self._session.catalog, 0
        meant: dict[str, records.Meaning] = {}
        for name in names:
            try:
                file = catalog.find(name, suggest=unknown < _SUGGESTED_FOR)
                own, problem, note = catalog.names.name_of(file), catalog.problem(file), catalog.names.note_on(name)
                meant[name] = {"id": file.id, "name": own, "problem": problem, "note": note, "candidates": []}
            except CatalogError as error:
                meant[name] = {"id": None, "problem": error.reason, "note": "", "candidates": list(error.candidates)}
                unknown += not error.fits_several
        return meant

    def _told(self, file: CatalogFile) -> records.LoraDetails:
        catalog = self._session.catalog
        found = beside(file)
        try:
            row = catalog.reread(found)
        except CatalogError as error:  # removed since it was found
            raise HTTPException(NOT_FOUND, str(error)) from error
        notes = notes_of(found)
        training, problems = _training(file)
        digest = row.shorthash or (row.facts.stored_hash if row.facts is not None else "")
        if not digest and file.readable:
            catalog.hashes.later(file)
        return {
            **listed(row),
            "path": str(file.source),
            "description": notes.description,
            "problems": [*notes.problems, *problems],
            "kinds": dict(row.facts.structure.kinds) if row.facts is not None else {},
            "training": dict(training.settings),
            "training_tags": [(_without_tags(tag), count) for tag, count in training.tags],
            "distilled": _distilled(row, training.header),
            "scale_is_guess": _scale_is_guess(file),
            "sidecars": [path.name for path in (*found.notes, *filter(None, [found.picture]))],
            "hash": digest,
            "online": read_online(file),
        }

    def _changed(self, request: Request, file: CatalogFile, what: str, work: Callable[[], object]) -> Response:
        """Change a file beside a LoRA unless it has changed since the client read it; return its data."""

        def write() -> Response:
            with notes_lock(file):  # for the answer, too: the file may be moved as soon as it can be
                refuse_stale(request, lambda: _editable(self._told(file)), f"the entry of {file.path.name}")
                work()
                return self._answered(request, file)

        return _kept(file, what, write)

    def _answered(self, request: Request, file: CatalogFile) -> Response:
        told = self._told(file)
        return answer(request, told, _editable(told))

    def _made(self) -> Thumbnails:
        if self._thumbnails is None:
            folder = self._session.host.data_dir()
            self._thumbnails = Thumbnails(None if folder is None else Path(folder) / "thumbnails")
        return self._thumbnails

    def _families(self) -> dict[str, records.FamilyFit]:
        """Return the families of all files, and whether each is the loaded model's."""
        model = self._session.model.family
        families = {
            family_key(family): family
            for row in self._session.catalog.index.rows()
            if row.facts is not None and (family := row.facts.structure.family) is not None
        }
        loads = self._session.host.families
        return {key: _family(family, model, loads) for key, family in families.items()}


def find_file(catalog: Catalog, id: str, name: str) -> CatalogFile:  # noqa: A002
    """Return the file that a query names by its id or its name.

    Raises:
        HTTPException: it names none, or there is none.
    """
    if not id and not name:
        raise HTTPException(UNPROCESSABLE, "the query names no LoRA: give its id or its name")
    try:
        return catalog.with_id(id) if id else Lookup(catalog).find(name)
    except CatalogError as error:
        raise HTTPException(NOT_FOUND, str(error)) from error


def _editable(told: records.LoraDetails) -> dict[str, object]:
    """Return the data that clients change; hash and uses change while pictures are made."""
    return {field: value for field, value in told.items() if field in (*EDITABLE, "picture")}


def _kept(file: CatalogFile, what: str, write: Callable[[], Response]) -> Response:
    """Write a file beside a LoRA, and answer; a refusal or a failure changes nothing."""
    try:
        return write()
    except (NotesError, PictureError) as error:
        raise HTTPException(UNPROCESSABLE, str(error)) from error
    except OSError as error:
        detail = f"the {what} cannot be saved beside {file.path}; nothing was changed: {error.strerror or error}"
        raise HTTPException(BROKEN, detail) from error


def _training(file: CatalogFile) -> tuple[Training, list[str]]:
    """Return a header's data on the training, and problems in reading it."""
    try:
        return read_training(file.path), []
    except LoraError:  # `reason` says why
        return Training(), []
    except Exception as error:  # a bad header must not hide the file's notes
        logger.exception("remora: the training metadata of %s cannot be read", file.path)
        return Training(), [f"its training metadata cannot be read: {error!r:.300}"]


def _scale_is_guess(file: CatalogFile) -> bool:
    with suppress(LoraError):  # `reason` says why
        return "guess" in lib_lora.inspect_file(file.source).scales
    return False


def family_key(family: Family) -> str:
    """Return a text that is equal unless `Family.differs`."""
    return f"{family.titles}{'' if family.known else '?'}"


def listed(row: Row) -> records.Lora:
    """Return the data of a file in a list."""
    facts, notes = row.facts or Facts(), row.notes or Notes()
    structure = facts.structure
    return {
        "id": row.file.id,
        "name": row.name,
        "alias": facts.alias or row.file.name,
        "file": row.file.relative,
        "folder": row.file.folder,
        "read": row.complete,
        "readable": not facts.problem,
        "reason": facts.problem,
        "family": None if structure.family is None else family_key(structure.family),
        "named": _named(structure, notes),
        "base_model": facts.base_model or notes.base_model or None,
        "kind": "+".join(sorted(structure.kinds, key=lambda kind: -structure.kinds[kind])),
        "rank": structure.ranks,
        "layers": structure.layers,
        "format": structure.format,
        "size": row.file.size,
        "mtime": row.file.mtime_ns / 1e9,
        "words": notes.words or _without_tags(", ".join(facts.words)),
        "captions": _without_tags(facts.tags),
        "added": row.added,
        "used": row.used,
        "uses": row.uses,
        "picture": _picture(row),
        **_listed_notes(notes),
    }


def _listed_notes(notes: Notes) -> records.ListedNotes:
    return {
        "negative": notes.negative,
        "groups": [*map(_without_tags, notes.groups)],
        "tags": list(notes.tags),
        "notes": notes.notes,
        "rating": notes.rating,
        "favourite": notes.favourite,
        "hidden": notes.hidden,
        "strength": notes.strength,
        "alpha": notes.alpha,
        "page": notes.page,
        "newer": notes.newer,
    }


def _named(structure: Structure, notes: Notes) -> str | None:
    """Return the family that the header or the notes name, if the layers are of another."""
    from lib_lora.inspection.families import family_named  # a start does not need it

    named, family = family_named(notes.base_model), structure.family
    if structure.named or named is None or family is None or not named.differs(family):
        return structure.named or None
    return named.titles


def _distilled(row: Row, header: Mapping[str, str]) -> records.Distilled | None:
    """Return the settings that a distilled LoRA was made for; None for others."""
    from lib_lora.inspection.distilled import distilled  # not at the start of a web UI

    made = distilled(row.name, row.facts.alias if row.facts is not None else "", header=header)
    if made is None:
        return None
    return cast(records.Distilled, asdict(made))


def _picture(row: Row) -> str:
    """Return a text that changes with a file's picture; empty without a readable one."""
    if row.picture is not None:
        return row.beside
    facts = row.facts or Facts()
    return str(row.file.mtime_ns) if facts.picture and not facts.problem else ""


def _without_tags(text: str) -> str:
    """Return a file's words without tags and line breaks, as one click inserts them into a prompt."""
    return re.sub(r"[<>\s]+", " ", text).strip()


def _family(family: Family, model: Family | None, loads: Collection[str] | None = None) -> records.FamilyFit:
    usable = loads is None or not family.known or any(one.name in loads for one in (family, *family.also))
    reason = ""
    if not usable:
        reason = f"made for {family.titles}, which this web UI does not load"
    # a card is only dimmed by it, so that a probable family of the model is enough
    elif model is not None and family.differs(model, hints=True):
        reason = f"made for {family.titles}; the loaded model is {model.likely}"
    return {"name": family.name, "title": family.titles, "fits": not reason, "usable": usable, "reason": reason}
