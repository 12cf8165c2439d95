"""`/remora/v1/outputs`: the pictures in the web UI's output folders, and the LoRA of each by its parameters text."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

from ..library import Found
from ..library.catalog import CatalogError, CatalogFile
from ..library.pictures import Thumbnails
from ..outputs import DamagedError, LoraKey, LoraRow, PictureFile, PictureIndex, Sought, Use, read_embedded
from . import records
from .answers import NO_CONTENT, NOT_FOUND, UNPROCESSABLE, answer, whole
from .recipes import recipe_of

if TYPE_CHECKING:
    from ..generation.session import Session

logger = logging.getLogger(__name__)

_PAGE = 60  # pictures of an answer, unless the query tells
_LARGEST_PAGE = 200
_MOST_LORAS = 5000  # of an answer
_MOST_WORDS = 20  # of a query
_DAY = "private, max-age=86400"

T = TypeVar("T")


class OutputsApi:
    """The pictures in the output folders of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thumbnails = Thumbnails(None)  # the pictures are here, and as many as disks hold
        self._few = asyncio.Semaphore(2)

    def list(
        self,
        request: Request,
        lora: str = "",
        name: str = "",
        seed: str = "",
        words: str = "",
        skip: str = "0",
        most: str = "",
    ) -> Response:
        """List the pictures in the output folders, the latest first: all, or only the pictures of one LoRA.

        `lora` is the id of a file, `name` a name as in tags, whose file need not exist. `seed` and `words` of the
        prompt limit the list.
        """
        self._session.outputs.look()
        wanted = Sought(whole(seed, "seed") if seed else None, _words(words))
        where, count = whole(skip, "skip"), whole(most, "most") if most else _PAGE
        if not 1 <= count <= _LARGEST_PAGE:
            raise HTTPException(UNPROCESSABLE, f"most must be a number from 1 to {_LARGEST_PAGE}")
        file, key = self._wanted(lora, name)

        def read(index: PictureIndex) -> tuple[int, int, Sequence[PictureFile]]:
            if key is None:
                return index.count(), *index.latest(wanted, where, count)
            loras = [row.id for row in index.loras_of(key) if file is None or self._means(row, key, file)]
            return index.count(), *index.of_loras(loras, wanted, where, count)

        total, found, pictures = self._read(read) or (0, 0, ())
        file_of = self._files()
        told: records.OutputPictures = {
            "total": total,
            "found": found,
            "pictures": [self._told(picture, file_of) for picture in pictures],
            **self._progress(),
        }
        return answer(request, told)

    def one(self, request: Request, id: str = "") -> Response:  # noqa: A002  # of the query
        """Return the recipe of one picture, and which of its LoRA are here."""
        picture = self._picture(id)
        try:
            text = read_embedded(picture.path).text
        except (OSError, DamagedError) as error:
            raise HTTPException(NOT_FOUND, f"{picture.name} cannot be read: {error}") from error
        return answer(request, recipe_of(self._session, text, file=self._session.outputs.shown(picture)))

    def loras(self, request: Request, words: str = "") -> Response:
        """Count the pictures of each LoRA, the most used first; `words` of the prompt limit the pictures.

        A LoRA without a file has no id.
        """
        self._session.outputs.look()
        file_of, sought = self._files(), Sought(words=_words(words))
        counted: dict[tuple[str | None, str], LoraRow] = {}
        for row in self._read(lambda index: index.loras(sought, _MOST_LORAS)) or ():
            file = file_of(row.name, row.hash)
            key = (None, row.name) if file is None else (file.id, self._session.catalog.names.name_of(file))
            counted[key] = counted[key].with_uses(row) if key in counted else row
        loras = sorted((_counted(*key, row) for key, row in counted.items()), key=lambda one: -one["pictures"])
        told: records.CountedLoras = {"loras": loras, **self._progress()}
        return answer(request, told)

    async def thumbnail(self, id: str = "") -> Response:  # noqa: A002  # of the query
        """Return a thumbnail of one picture as WebP; no content if the picture is damaged."""
        async with self._few:  # a page requests dozens at once, and the host needs its threads
            return await run_in_threadpool(self._thumbnail, id)

    def _thumbnail(self, id: str) -> Response:  # noqa: A002
        picture = self._picture(id)
        headers = {"Cache-Control": _DAY}
        file = CatalogFile(picture.path, picture.name, picture.size, picture.mtime_ns)
        made = self._thumbnails.of(Found(file, picture=picture.path), embedded=False)
        if made is None:
            return Response(status_code=NO_CONTENT, headers=headers)
        return Response(made, media_type="image/webp", headers=headers)

    def _picture(self, id: str) -> PictureFile:  # noqa: A002
        """Return a picture of the index that is still in its place.

        Raises:
            HTTPException: there is none.
        """
        number = whole(id, "id")
        found = self._read(lambda index: index.picture(number))
        if found is None or not self._session.outputs.present(found):
            raise HTTPException(NOT_FOUND, "the output folders have no such picture any more; reload the list")
        return found

    def _read(self, read: Callable[[PictureIndex], T]) -> T | None:
        """Read the index; None without one, as in a web UI without a data folder, or if its `problem` says so."""
        index = self._session.outputs.index
        try:
            return None if index is None else read(index)
        except (sqlite3.Error, OSError):
            logger.debug("remora: the index of the pictures", exc_info=True)  # its problem is in the log
            return None

    def _progress(self) -> records.OutputsProgress:
        outputs = self._session.outputs
        running, done, total = outputs.progress.running, outputs.progress.done, outputs.progress.total
        index = outputs.index
        return {
            "scan": {"running": running, "done": done, "total": total},
            "problem": outputs.problem or ("" if index is None else index.problem),
        }

    def _wanted(self, lora: str, name: str) -> tuple[CatalogFile | None, LoraKey | None]:
        """Return the file of a query, and what texts call it; a name needs no file."""
        if not lora:
            return None, LoraKey(frozenset({name.casefold()})) if name else None
        try:
            file = self._session.catalog.with_id(lora)
            return file, self._key_of(file)
        except CatalogError as error:
            raise HTTPException(NOT_FOUND, str(error)) from error

    def _means(self, row: LoraRow, key: LoraKey, file: CatalogFile) -> bool:
        """Tell whether a name means a file, and not another one whose trainer gave it this name."""
        if key.has_hash(row):
            return True
        # no file has it if it means several, or is written otherwise
        return self._session.catalog.named(row.name) in (None, file)

    def _key_of(self, file: CatalogFile) -> LoraKey:
        """Return what texts call a file.

        Raises:
            CatalogError: it is gone.
        """
        row = self._session.catalog.row(file)
        alias, stored = ("", "") if row.facts is None else (row.facts.alias, row.facts.stored_hash)
        names = {row.name, file.name, file.relative, file.path.name, alias} - {""}
        return LoraKey(frozenset(one.casefold() for one in names), row.shorthash or stored, row.sha256)

    def _files(self) -> Callable[[str, str], CatalogFile | None]:
        """Return a function that finds the file of a name and a hash in a text."""
        catalog = self._session.catalog

        @cache
        def find(name: str) -> tuple[CatalogFile, LoraKey] | None:
            with suppress(CatalogError):
                file = catalog.find(name, suggest=False)
                return file, self._key_of(file)
            return None

        @cache
        def file_of(name: str, digest: str) -> CatalogFile | None:
            # a hash of "Lora hashes" is a name, too
            for sought in (name, *([digest] if 10 <= len(digest) <= 12 else [])):
                found = find(sought)
                if found is not None and (sought == digest or found[1].fits(LoraRow(0, found[0].name, digest))):
                    return found[0]
            return None

        return file_of

    def _told(self, picture: PictureFile, file_of: Callable[[str, str], CatalogFile | None]) -> records.OutputPicture:
        return {
            "id": picture.id,
            "time": picture.mtime_ns / 1e9,
            "file": self._session.outputs.shown(picture),
            "width": picture.width,
            "height": picture.height,
            "seed": picture.uses.seed,
            "prompt": picture.uses.prompt,
            "loras": _uses(picture.uses.loras, file_of),
        }


def _counted(lora: str | None, name: str, row: LoraRow) -> records.CountedLora:
    return {
        "id": lora,
        "name": name,
        "pictures": row.pictures,
        "latest": row.latest_ns / 1e9,
        "strength": row.strength,
        "strengths": None if row.lowest is None or row.highest is None else (row.lowest, row.highest),
    }


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a query."""
    words = tuple(dict.fromkeys(text.split()))
    if len(words) > _MOST_WORDS:
        raise HTTPException(UNPROCESSABLE, f"words must be no more than {_MOST_WORDS} words, not {len(words)}")
    return words


def _uses(loras: Iterable[Use], file_of: Callable[[str, str], CatalogFile | None]) -> list[records.OutputLora]:
    found = []
    for use in loras:
        file = file_of(use.name, use.hash)
        id_of_file = None if file is None else file.id
        found.append(records.OutputLora(id=id_of_file, name=use.name, hash=use.hash, strength=use.strength))
    return found
