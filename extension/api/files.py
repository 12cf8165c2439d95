"""`/remora/v1/files` and `/remora/v1/trash`: many files are noted on, moved, renamed, deleted and restored at once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from ..generation.moving import Moving
from ..generation.save_places import SaveError
from ..library import NotesError, beside, notes_lock, read_notes, write_notes
from ..library.catalog import CatalogError
from ..library.walk import TRASH, id_of
from . import records
from .answers import BROKEN, NOT_FOUND, UNPROCESSABLE, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..generation.moving import Done
    from ..generation.session import Session
    from ..library import CatalogFile
    from ..library.moves import Deleted

_MOST = 500  # files of a request
_GONE = "it is not a file in the LoRA folders any more; reload the list"


class FilesApi:
    """The changes of files over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._moving = Moving(session)

    def note(self, request: Request, body: records.FilesNoted) -> Response:
        """Change the tags and the rating of several files; other tags and simultaneous changes stay."""
        files, refused = self._files(body["ids"])
        changed: list[CatalogFile] = []
        for file in files:
            try:
                _note(file, body)
                changed.append(file)
            except NotesError as error:
                refused.append(_refused(file.id, str(error)))
            except OSError as error:
                refused.append(_refused(file.id, f"{file.path.name} stays: {error.strerror or error}"))
        with suppress(CatalogError):  # one is moved already: the next scan finds it
            if changed:
                self._session.catalog.reread(*map(beside, changed))
        ids = [(file.id, file.id) for file in changed]
        told: records.FilesChanged = {"changed": ids, "refused": refused, "undo": ""}
        return answer(request, told)

    def move(self, request: Request, body: records.FilesMoved) -> Response:
        """Move files to a folder, or rename them, with the files beside them."""
        if ("folder" in body) + ("name" in body) + ("names" in body) != 1:
            raise HTTPException(UNPROCESSABLE, "a move has either a folder or a name, or names")
        if "name" in body and len(body["ids"]) != 1:
            raise HTTPException(UNPROCESSABLE, "a name is for a single file")
        if "names" in body and len(body["names"]) != len(body["ids"]):
            raise HTTPException(UNPROCESSABLE, "names must be one name for each of ids")
        number = body.get("number", False)

        def work(files: Sequence[CatalogFile]) -> Done:
            if "names" in body:
                names = dict(zip(body["ids"], body["names"], strict=True))
                return self._moving.rename_all({file: names[file.id] for file in files})
            if "name" in body:
                return self._moving.rename(files[0], body["name"])
            return self._moving.move(files, body["folder"], number=number)

        return self._changed(request, body["ids"], work)

    def delete(self, request: Request, body: records.FilesChosen) -> Response:
        """Move files to the trash, with the files beside them."""
        return self._changed(request, body["ids"], self._moving.delete)

    def undo(self, request: Request, body: records.ChangeUndone) -> Response:
        """Take a move, a new name or a deletion back; each file returns unless its place is taken."""
        try:
            return _answered(request, lambda: self._moving.undo(body["undo"]), [])
        except KeyError as error:
            raise HTTPException(NOT_FOUND, "this change cannot be taken back any more") from error

    def trash(self, request: Request) -> Response:
        """List the deleted files."""
        self._session.catalog.refresh()
        return self._trash(request)

    def restore(self, request: Request, body: records.FilesChosen) -> Response:
        """Move files of the trash back to where they were, unless that place is taken."""
        return _answered(request, lambda: self._moving.restore(self._deleted(body["ids"])), [])

    def delete_for_good(self, request: Request, body: records.FilesChosen) -> Response:
        """Delete files of the trash for good; list the others."""
        try:
            self._moving.delete_for_good(self._deleted(body["ids"]))
        except OSError as error:
            detail = f"{error.filename} cannot be deleted: {error.strerror or error}"
            raise HTTPException(BROKEN, detail) from error
        return self._trash(request)

    def _trash(self, request: Request) -> Response:
        told: records.Trash = {"files": [_listed(one) for one in self._moving.trash()]}
        return answer(request, told)

    def _changed(self, request: Request, ids: Sequence[str], work: Callable[[Sequence[CatalogFile]], Done]) -> Response:
        files, refused = self._files(ids)
        if not files:
            told: records.FilesChanged = {"changed": [], "refused": refused, "undo": ""}
            return answer(request, told)
        return _answered(request, lambda: work(files), refused)

    def _files(self, ids: Sequence[str]) -> tuple[list[CatalogFile], list[records.FileRefused]]:
        """Return the files with these ids, each once, and the ids that are of none."""
        _check(ids)
        files, refused = [], []
        for one in dict.fromkeys(ids):
            try:
                files.append(self._session.catalog.with_id(one))
            except CatalogError:
                refused.append(_refused(one, _GONE))
        return files, refused

    def _deleted(self, ids: Sequence[str]) -> list[Deleted]:
        _check(ids)
        self._session.catalog.refresh()
        wanted = set(ids)
        return [one for one in self._moving.trash() if one.file.id in wanted]


def _check(ids: Sequence[str]) -> None:
    if len(ids) > _MOST:
        raise HTTPException(UNPROCESSABLE, f"ids must be a list of no more than {_MOST} texts")


def _note(file: CatalogFile, body: records.FilesNoted) -> None:
    """Change the notes on one file."""
    changes: dict[str, object] = {} if "rating" not in body else {"rating": body["rating"]}
    with notes_lock(file):
        if body.get("add") or body.get("remove"):
            former = read_notes(beside(file).notes).tags
            tags = [*(tag for tag in former if tag not in body.get("remove", [])), *body.get("add", [])]
            changes["tags"] = list(dict.fromkeys(tags))
        write_notes(file, changes)


def _answered(request: Request, work: Callable[[], Done], refused: list[records.FileRefused]) -> Response:
    """Do something, and return what became of the files."""
    try:
        done = work()
    except SaveError as error:
        raise HTTPException(UNPROCESSABLE, str(error)) from error
    except OSError as error:
        raise HTTPException(BROKEN, f"nothing was moved: {error.strerror or error}") from error
    ids = [(id_of(move.source), "" if TRASH in move.target.parts else id_of(move.target)) for move in done.moves]
    told: records.FilesChanged = {
        "changed": ids,
        "refused": [*refused, *(_refused(id_of(one.path), one.reason, taken=one.is_taken) for one in done.refused)],
        "undo": done.undo,
    }
    return answer(request, told)


def _refused(file: str, reason: str, *, taken: bool = False) -> records.FileRefused:
    return {"id": file, "reason": reason, "taken": taken}


def _listed(deleted: Deleted) -> records.DeletedLora:
    file = deleted.file
    size = sum(path.lstat().st_size for path, _ in deleted.restored.pairs if path.exists())
    return {"id": file.id, "name": file.name, "folder": file.folder, "size": size, "deleted": deleted.time}
