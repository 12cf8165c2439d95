"""The LoRA files of one host are moved, renamed, deleted and restored, and kept stacks go on naming them."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..library.catalog import CatalogFile
from ..library.moves import (
    DELETED,
    Deleted,
    Journal,
    Move,
    Neighbours,
    Operation,
    in_trash,
    is_configured,
    is_other_case,
    leave,
    moved,
    moved_folder,
    prune,
    taken,
    trash_time,
    trashed,
)
from ..text.names import numbered
from ..text.spelling import names_in
from .save_places import SaveError, checked_name, folder_of

if TYPE_CHECKING:
    from .session import Session

logger = logging.getLogger(__name__)

_UNDONE_AT_MOST = 20  # changes that can be taken back
_NUMBERED_AT_MOST = 1000  # names that are tried
_LONGEST = 100  # characters of a name with a number


@dataclass(frozen=True)
class RefusedMove:
    """A file that stays where it is."""

    path: Path
    reason: str
    is_taken: bool = False
    """Whether another file has its place."""


@dataclass(frozen=True)
class Done:
    """What became of files."""

    moves: tuple[Move, ...]
    refused: tuple[RefusedMove, ...]
    undo: str = ""
    """The key that takes it back; empty if nothing was done."""


class Moving:
    """Moves the files of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._journal = Journal(session.host.data_dir)
        self._undone: dict[str, tuple[Move, ...]] = {}

    def start(self) -> None:
        """Finish in the background the moves that an earlier process began."""
        if self._journal.unfinished:
            threading.Thread(target=self.resume, name="remora-moves", daemon=True).start()

    def resume(self) -> None:
        """Finish the moves that an earlier process began."""
        tops = self._session.host.adapter_dirs()
        for key, operation in self._journal.unfinished.items():
            paths = [path for move in operation.moves for pair in move.pairs for path in pair]
            if all(".." not in path.parts and any(map(path.is_relative_to, tops)) for path in paths):
                logger.info("remora: a move of %s LoRA goes on, which an earlier start began", len(operation.moves))
                self._carry_out(operation)
            else:
                logger.warning(
                    "remora: a move of %s LoRA ended early and leads out of the LoRA folders", len(operation.moves)
                )
            self._journal.finish(key)

    def move(self, files: Sequence[CatalogFile], folder: str, *, number: bool = False) -> Done:
        """Move files to a folder below the LoRA folders, which is made if there is none.

        Args:
            files: of the catalog.
            folder: its path below a LoRA folder.
            number: give a number to a name that is taken; otherwise its file stays.

        Raises:
            SaveError: there can be no such folder.
            OSError: nothing was moved.
        """
        to = self._folder(folder)
        wanted = [(file, to, _stem(file)) for file in files if file.source.parent != to]
        return self._moved(files, wanted, number=number)

    def rename(self, file: CatalogFile, name: str) -> Done:
        """Rename a file, and the files beside it.

        Raises:
            SaveError: no file can have this name, or it has settings beside it that belong to its name.
            OSError: nothing was moved.
        """
        stem = _new_stem(file, name)
        return self._moved([file], [(file, file.source.parent, stem)] if stem != _stem(file) else [])

    def rename_all(self, names: Mapping[CatalogFile, str]) -> Done:
        """Rename files, and the files beside them; a file that cannot have its new name stays.

        Raises:
            OSError: nothing was moved.
        """
        wanted: list[tuple[CatalogFile, Path, str]] = []
        refused: list[RefusedMove] = []
        for file, name in names.items():
            try:
                stem = _new_stem(file, name)
            except SaveError as error:
                refused.append(RefusedMove(file.path, str(error)))
                continue
            if stem != _stem(file):
                wanted.append((file, file.source.parent, stem))
        done = self._moved(list(names), wanted)
        return replace(done, refused=(*refused, *done.refused))

    def delete(self, files: Sequence[CatalogFile]) -> Done:
        """Move files to the trash.

        Raises:
            OSError: nothing was moved.
        """
        when, tops, near = trash_time(), self._session.host.adapter_dirs(), self._neighbours()
        chosen = {file.path for file in files}
        moves = []
        for file in files:
            shared = set(near.sharing(file.path)) - chosen
            beside = [] if shared else near.beside(file.path)
            if file.is_folder:
                beside = [one for one, _ in moved_folder(file, file.source, "").pairs[1:]]
            moves.append(_of(file, trashed(file.path, beside, tops, when)))
        return self._carried_out(moves, [])

    def undo(self, key: str) -> Done:
        """Take a change back.

        Raises:
            KeyError: there is none of this key, or it was taken back.
            OSError: nothing was moved.
        """
        done = self._carried_out([move.back for move in reversed(self._undone[key])], [])
        self._undone.pop(key, None)
        return done

    # --- the trash ---

    def trash(self) -> list[Deleted]:
        """Return the deleted files, the latest first."""
        return sorted(in_trash(self._session.catalog.trashes), key=lambda one: -one.time)

    def restore(self, deleted: Sequence[Deleted]) -> Done:
        """Move files back to where they were.

        Raises:
            OSError: nothing was moved.
        """
        return self._carried_out([one.restored for one in deleted], [])

    def delete_for_good(self, deleted: Sequence[Deleted]) -> None:
        """Delete files of the trash.

        Raises:
            OSError: one of them cannot be deleted.
        """
        for one in deleted:
            one.delete()
            self._session.catalog.index.move(one.file.path, None)

    # --- the work ---

    def _neighbours(self) -> Neighbours:
        return Neighbours(file.path for file in self._session.catalog.every)

    def _moved(
        self, files: Sequence[CatalogFile], wanted: Sequence[tuple[CatalogFile, Path, str]], *, number: bool = False
    ) -> Done:
        """Move files to folders, under names without suffix; the files are the selected ones."""
        near, chosen = self._neighbours(), {file.path for file in files}
        moves: list[Move] = []
        refused: list[RefusedMove] = []
        sources: set[Path] = set()
        places: set[str] = set()
        for file, folder, stem in wanted:
            path = file.path
            if others := [one for one in near.sharing(path) if one not in chosen]:
                reason = f"{path.name} stays: {others[0].name} has the same notes beside it; select it, too"
                refused.append(RefusedMove(path, reason))
                continue
            beside = [one for one in near.beside(path) if one not in sources]
            move = _free(file, beside, folder, stem, places, number=number)
            if move is None:
                to = taken(moved(path, beside, folder, stem)) or folder / f"{stem}{path.suffix}"
                reason = f"{path.name} stays: there is a file {to.name} already"
                if file.is_folder:
                    reason = f"{file.name} stays: there is a folder {stem} already"
                refused.append(RefusedMove(path, reason, is_taken=True))
                continue
            sources.update(one for one, _ in move.pairs)
            places.update(str(to).casefold() for _, to in move.pairs)
            moves.append(_of(file, move))
        return self._carried_out(moves, refused)

    def _carried_out(self, moves: Sequence[Move], refused: Sequence[RefusedMove]) -> Done:
        """Move files; what cannot be moved stays, and is told."""
        if not moves:
            return Done((), tuple(refused))
        operation = Operation(tuple(moves), self._kept_names(moves))
        with self._journal.kept(operation):
            stay = self._carry_out(operation)
        done = tuple(move for move in moves if move.source not in stay)
        key = secrets.token_hex(8) if done else ""
        if done:
            self._undone[key] = done
            for old in list(self._undone)[:-_UNDONE_AT_MOST]:
                del self._undone[old]
        told = [RefusedMove(path, f"{path.name.removesuffix(DELETED)} stays: {why}") for path, why in stay.items()]
        return Done(done, (*refused, *told), key)

    def _carry_out(self, operation: Operation) -> dict[Path, str]:
        """Move files, and make kept stacks name them as they are called then; return why others stay."""
        catalog, stay = self._session.catalog, {}
        for move in operation.moves:
            try:
                move.carry_out()
            except OSError as error:
                logger.warning("remora: %s is not moved: %s", move.source, error)
                stay[move.source] = error.strerror or str(error)
                continue
            for source, _ in move.pairs:
                prune(source.parent)
            leave(move)
            catalog.index.move(move.source, move.target)
        catalog.refresh({path.parent for move in operation.moves for pair in move.pairs for path in pair})
        self._rename_kept(operation.names)
        return stay

    def _kept_names(self, moves: Sequence[Move]) -> dict[str, Path]:
        """Return the names by which kept stacks mean these files, with where each is to be."""
        to = {move.source: move.target for move in moves}
        session = self._session
        texts = [preset.text for preset in session.presets.all]
        names = {entry.name for entry in session.always_on.stack.entries}.union(*map(names_in, texts))
        return {name: to[path] for name in names if (path := self._meant(name)) in to}

    def _meant(self, name: str) -> Path | None:
        file = self._session.catalog.named(name)
        return None if file is None else file.path

    def _rename_kept(self, names: Mapping[str, Path]) -> None:
        """Write the present name of files into kept stacks whose names do not mean them any more."""
        session = self._session
        found = session.catalog.all_found
        others = {
            name: session.catalog.names.name_of(found[path].file)
            for name, path in names.items()
            if path in found and self._meant(name) != path
        }
        try:
            session.always_on.rename(others)
            session.presets.rename(others)
        except (OSError, ValueError) as error:
            logger.warning("remora: a kept stack still has the names %s: %s", ", ".join(others), error)

    def _folder(self, folder: str) -> Path:
        """Return a folder by its path below a LoRA folder; it need not exist."""
        parts = folder.split("/") if folder else []
        for count in range(len(parts), 0, -1):
            new = [*map(checked_name, parts[count:])]
            begin = "/".join(parts[:count]) or "/"  # an empty path would mean the first LoRA folder
            with suppress(SaveError):
                return folder_of(self._session, begin).joinpath(*new)
        return folder_of(self._session, "").joinpath(*map(checked_name, parts))


def _new_stem(file: CatalogFile, name: str) -> str:
    """Return the new name of a file, without its suffix.

    Raises:
        SaveError: no file can have this name, or it has settings beside it that belong to its name.
    """
    if is_configured(file.path) and not file.is_folder:
        raise SaveError(
            f"{file.path.name} cannot be renamed: adapter_config.json beside it belongs to this name; rename its "
            "folder in a file manager"
        )
    return checked_name(name)


def _of(file: CatalogFile, move: Move) -> Move:
    """Return a move that is for this file alone, not for another one that takes its place meanwhile."""
    return move if file.is_folder else replace(move, stamp=(file.size, file.mtime_ns))


def _stem(file: CatalogFile) -> str:
    """Return the name that a rename changes: of the file, without suffix, or of the folder of its components."""
    return file.source.name if file.is_folder else file.path.stem


def _free(
    file: CatalogFile, beside: Sequence[Path], folder: Path, stem: str, places: Collection[str], *, number: bool
) -> Move | None:
    """Return the move to places that are free; with `number`, names with a number are tried, too."""
    for name in islice(numbered(stem, "-", max(_LONGEST, len(stem))), _NUMBERED_AT_MOST if number else 1):
        if file.is_folder and os.path.lexists(folder / name) and not is_other_case(file.source, folder / name):
            continue  # the LoRA would become one with another
        move = moved_folder(file, folder, name) if file.is_folder else moved(file.path, beside, folder, name)
        if taken(move) is None and not any(str(to).casefold() in places for _, to in move.pairs):
            return move
    return None
