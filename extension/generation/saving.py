"""The LoRA of tags as one file: where it may be, and the job that writes it, or tells what it would be."""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lib_lora import LoraError, Moment, Stack

from ..library.walk import READABLE
from ..text.prompt import parse
from ..text.regions import is_device_name
from ..text.tag import ALWAYS, Tag
from .batch import entry_of, gather
from .options import settings
from .request import Request, placed
from .wishes import find_wishes

if TYPE_CHECKING:
    from lib_lora import SavedFile
    from lib_lora.saving import Combination, SaveOptions

    from ..library.catalog import CatalogFile
    from .session import Session

logger = logging.getLogger(__name__)

_LONGEST = 100  # characters of a name
_MOST_BYTES = 180  # of a name: file systems have 255, and the unfinished file has a longer one
_NO_NAME = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
"""What no file has in its name on Windows, or no tag."""


class SaveError(ValueError):
    """What is wanted cannot be saved; the message is one sentence."""


class _CancelledError(Exception):
    """The job is cancelled."""


# --- where a file may be ---


def folders(session: Session) -> list[str]:
    """Return the folders that a file may be saved in, as paths below the LoRA folders; `` for the first of these."""
    known = {file.folder for file in session.catalog.every}
    return ["", *sorted(known - {""})]


def place(session: Session, name: str, folder: str) -> Path:
    """Return the path of a new file.

    Raises:
        SaveError: no file may have this name, or the folder is not below the LoRA folders.
    """
    name = name.strip().removesuffix(READABLE)
    if not name or name.startswith((".", "~")) or name.endswith((".", " ")) or _NO_NAME.search(name):
        raise SaveError(
            f'a file cannot have the name {name[:60]!r}; write letters, digits and spaces, none of < > : " / \\ | ? * '
            "and no dot at its ends"
        )
    if len(name) > _LONGEST or len(name.encode("utf-8")) > _MOST_BYTES:
        raise SaveError(f"the name is too long; write at most {_LONGEST} letters")
    if is_device_name(name):
        raise SaveError(f"{name!r} is the name of a device on Windows, where no file has it; choose another name")
    return _folder(session, folder) / f"{name}{READABLE}"


def _folder(session: Session, wanted: str) -> Path:
    """Return a folder by its path below a LoRA folder."""
    tops = [top for top in session.host.adapter_dirs() if top.is_dir()]
    if not tops:
        raise SaveError("there is no LoRA folder; make one first")
    if not wanted:
        return tops[0]
    known = {file.folder: file.path.parent for file in reversed(session.catalog.every)}
    if wanted in known:
        return known[wanted]
    parts = wanted.split("/")
    is_plain = not any(part.strip(". ") == "" or _NO_NAME.search(part) for part in parts)
    for top in tops if is_plain else ():
        found = top.joinpath(*parts)
        if found.is_dir() and Path(os.path.realpath(top)) in Path(os.path.realpath(found)).parents:
            return found
    raise SaveError(f"there is no folder {wanted[:120]!r} in the LoRA folders; make it first, or choose another one")


# --- what is saved ---


def latest_tags(session: Session) -> list[str]:
    """Return the tags that acted in the latest picture; of several images, in the first."""
    acting = [place for one in session.last.active for place, images in one.places.items() if 0 in images]
    return [f"<lora:{place.written}>" for place in acting]


def stack_of(session: Session, written: Sequence[str], moment: Moment | None) -> Stack:
    """Return the stack of some tags.

    Raises:
        SaveError: there are none, or no file can say what they say.
        LoraError: a tag cannot be read, or names no file.
    """
    tags = parse(" ".join(written), session.names).tags
    if not tags:
        raise SaveError("there is no LoRA to save; write a tag into the prompt, as <lora:name:0.8>")
    for tag in tags:
        _check(tag, moment)
    wanted = settings(session.host)
    batch = Request((placed(tags, "prompt"),), wanted)
    batch = batch.limited()[0] if wanted.limited else batch
    wishes = find_wishes(batch, session.catalog)
    for error in wishes.failed.values():
        raise error
    entries = [entry_of(one, 1) for one in gather(wishes.images, in_order=wanted.in_order)]
    if not entries:
        raise SaveError("every LoRA has the strength 0, so that there is nothing to save")
    return Stack(entries, in_order=wanted.in_order, reading=wanted.reading)


def _check(tag: Tag, moment: Moment | None) -> None:
    """Raise SaveError where a file cannot say what a tag says."""
    if moment is None and (tag.curve is not None or tag.during != ALWAYS):
        raise SaveError(f"{tag.name}: its strength differs from step to step; name the step that is to be saved")
    if tag.half:
        raise SaveError(f"{tag.name}: it acts on one prompt only, which no file can say; take half= out of its tag")


# --- the job ---


@dataclass(frozen=True)
class Wanted:
    """What is to be saved, and how."""

    stack: Stack
    path: Path
    combination: Combination
    options: SaveOptions
    moment: Moment | None = None
    has_picture: bool = False
    """Whether the latest picture is put beside the file."""


@dataclass
class SaveRun:
    """One file that is saved, or of which is told what it would be; in a thread of its own."""

    session: Session
    wanted: Wanted
    former: SaveRun | None = None
    """Is waited for: one works at a time."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    """Layers."""
    layers: int = 0
    """Of the whole; 0 until they are counted."""
    running: bool = True
    problem: str = ""
    """Why nothing was saved, as one sentence."""
    saved: SavedFile | None = None
    file: CatalogFile | None = None
    """The saved one."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._cancelled = threading.Event()
        self._model = dict(self.session.model.components)
        self._thread = threading.Thread(target=self._in_thread, name="remora-save", daemon=True)

    @property
    def is_preview(self) -> bool:
        return bool(self.wanted.options.get("preview"))

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop after the present layer; nothing is written then."""
        self._cancelled.set()

    def wait(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _in_thread(self) -> None:
        if self.former is not None:
            self.former.wait()
            self.former = None
        begun = time.monotonic()
        try:
            self._step(0, 0)
            self.saved = self._work()
            self.notes = self.saved.notes
            self.seconds = time.monotonic() - begun
            if not self.is_preview:
                self._list()
        except _CancelledError:
            pass
        except (LoraError, SaveError) as error:
            self.problem = str(error)
        except Exception as error:
            logger.exception("remora: %s cannot be saved", self.wanted.path)
            self.problem = f"{self.wanted.path.name} cannot be saved: {error!r:.200}"
        finally:
            self._model = {}  # which may be unloaded
            self.running = False

    def _work(self) -> SavedFile:
        from lib_lora.saving import choices_of, save_files

        wanted = self.wanted
        choices = choices_of({**wanted.options, "progress": self._step}, wanted.combination)
        try:
            return save_files(wanted.stack, wanted.path, choices, self._model or None, wanted.moment)
        except LoraError as error:
            if self._model:
                raise
            raise SaveError(f"no model is loaded, and it cannot be saved without: {error}") from error

    def _step(self, done: int, layers: int) -> None:
        """Note how far the work is; end it where it is cancelled, or the model is not what it was."""
        if self._cancelled.is_set():
            raise _CancelledError
        self.done, self.layers = done, layers
        if not self._model:
            return
        now = self.session.model.components
        if now.keys() != self._model.keys() or any(now[name] is not part for name, part in self._model.items()):
            raise SaveError("another model was loaded meanwhile, and nothing was saved; save again")
        engine = self.session.model.engine
        if engine is not None and engine.stack.mode == "merged" and engine.stack.entries:
            raise SaveError("LoRA are merged into the model while a picture is made; save when it is done")

    def _list(self) -> None:
        """List the new file, with its picture."""
        from ..library import beside
        from ..library.pictures import PictureError, set_picture

        catalog = self.session.catalog
        catalog.refresh()
        found = catalog.all_found.get(self.wanted.path)
        if found is None:
            return
        self.file = found.file
        latest = next(iter(self.session.record.pictures()), None)
        if self.wanted.has_picture and latest is not None and latest.thumbnail is not None:
            try:
                set_picture(found.file, found, latest.thumbnail)
            except (PictureError, OSError) as error:
                self.notes = (*self.notes, f"the picture cannot be saved: {error}")
        row = catalog.reread(beside(found.file))
        if row.notes is not None and row.notes.alpha is not None:  # of a former file of this name
            file = f"{self.wanted.path.stem}.json"
            note = f"{file} beside it sets another alpha, so that it acts otherwise; delete the alpha in its details"
            self.notes = (*self.notes, note)
