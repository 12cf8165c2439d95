"""Tags, models with LoRA and differences of models as files, and the job that writes or previews such a file."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lib_lora import LoraError, Moment, Stack

from ..text.prompt import PromptError, parse
from ..text.tag import ALWAYS, Rule, Tag
from .batch import entry_of, gather
from .options import settings
from .request import Request, placed
from .save_places import SaveError
from .wishes import find_wishes

if TYPE_CHECKING:
    from torch import nn

    from lib_lora import SavedFile
    from lib_lora.saving import Combination, SaveOptions

    from ..library.catalog import CatalogFile
    from .session import Session

    Write: TypeAlias = Callable[[Mapping[str, nn.Module] | None, "Progress"], SavedFile]
    """Writes or previews a file; takes the loaded model, or None, and a function that it tells its progress."""

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]


class _CancelledError(Exception):
    """The job is cancelled."""


# --- what is saved ---


def latest_tags(session: Session) -> list[str]:
    """Return the tags that acted in the latest picture; of several images, in the first."""
    acting = [place for one in session.last.active for place, images in one.places.items() if 0 in images]
    return [f"<lora:{place.written}>" for place in acting]


def stack_of(
    session: Session, written: Sequence[str], moment: Moment | None, negative: bool | None = None
) -> tuple[Stack, Rule | None]:
    """Return the stack of some tags, and the rule that combines them.

    Raises:
        SaveError: there are none, a tag cannot be parsed, no file can say what they say, or they have several rules.
        LoraError: a tag names no file, or the file cannot be read.
    """
    try:
        tags = parse(" ".join(written), session.names).tags
    except PromptError as wrong:  # its position is one in a text that the user has not written
        raise SaveError(f"{wrong.text}: {wrong.reason}") from wrong
    if not tags:
        raise SaveError("there is no LoRA to save; write a tag into the prompt, as <lora:name:0.8>")
    for tag in tags:
        _check(tag, moment, negative)
    if len({tag.rule for tag in tags}) > 1:
        raise SaveError("the tags have several rules, which one file cannot say; write one combine= into all of them")
    wanted = settings(session.host)
    batch = Request((placed(tags, "prompt"),), wanted)
    batch = batch.limited()[0] if wanted.limited else batch
    wishes = find_wishes(batch, session.catalog)
    for error in wishes.failed.values():
        raise error
    entries = [entry_of(one, 1) for one in gather(wishes.images, in_order=wanted.in_order)]
    if not entries:
        raise SaveError("every LoRA has the strength 0, so that there is nothing to save")
    rule = tags[0].rule if len(entries) > 1 else None
    return Stack(entries, in_order=wanted.in_order, reading=wanted.reading), rule


def _check(tag: Tag, moment: Moment | None, negative: bool | None) -> None:
    """Raise SaveError where a file cannot say what a tag says."""
    if moment is None and (tag.curve is not None or tag.during != ALWAYS):
        raise SaveError(f"{tag.name}: its strength differs from step to step; name the step that is to be saved")
    if tag.half and negative is None:
        raise SaveError(f"{tag.name}: it acts on one prompt only, which no file can say; take half= out of its tag")


# --- how it is written ---


def as_file(
    stack: Stack,
    path: Path,
    combination: Combination,
    options: SaveOptions,
    moment: Moment | None,
    negative: bool | None = None,
) -> Write:
    """Return a function that writes a stack as one file.

    Raises:
        LoraError: the options are invalid, or do not go together.
    """
    from lib_lora import inspect_file
    from lib_lora.saving import choices_of, save_files

    choices_of(options, combination)

    def write(model: Mapping[str, nn.Module] | None, progress: Progress) -> SavedFile:
        choices = choices_of({**options, "progress": progress}, combination)
        try:
            return save_files(stack, path, choices, model, moment, negative)
        except LoraError as error:
            if model is not None:
                raise
            for entry in stack:
                inspect_file(entry.path)  # what is wrong with a file itself is told as it is
            text = f"no model that it is for is loaded, and it cannot be saved without: {error}"
            raise SaveError(text) from error

    return write


def into_model(
    stack: Stack,
    model: Path,
    path: Path,
    combination: Combination,
    moment: Moment | None,
    negative: bool | None,
    *,
    rounding: Literal["nearest", "stochastic"],
    seed: int,
    preview: bool,
) -> Write:
    """Return a function that writes a copy of a model on disk, with a stack in its weights."""

    def write(_: Mapping[str, nn.Module] | None, progress: Progress) -> SavedFile:
        from lib_lora.saving import bake_stack

        return bake_stack(
            stack,
            model,
            path,
            moment=moment,
            negative=negative,
            combination=combination,
            rounding=rounding,
            seed=seed,
            preview=preview,
            progress=progress,
        )

    return write


def as_difference(base: Path, tuned: Path, path: Path, options: SaveOptions) -> Write:
    """Return a function that writes the difference of two models on disk as one file.

    Raises:
        LoraError: the options are invalid.
    """
    from lib_lora.saving import choices_of, extract_lora

    choices_of(options)

    def write(_: Mapping[str, nn.Module] | None, progress: Progress) -> SavedFile:
        chosen: SaveOptions = {**options, "progress": progress}
        return extract_lora(base, tuned, path, **chosen)

    return write


# --- the job ---


@dataclass(frozen=True)
class Wanted:
    """A file that the user wants, and how it is written."""

    path: Path
    write: Write
    is_preview: bool = False
    """Whether nothing is written."""
    uses_model: bool = False
    """Whether it reads the loaded model, which must stay loaded until it is written."""
    has_picture: bool = False
    """Whether the latest picture is put beside the file."""
    times: float = 1.0
    """How much longer saving takes than its preview."""


@dataclass
class SaveRun:
    """A job that writes or previews one file, in a thread of its own."""

    session: Session
    wanted: Wanted
    former: SaveRun | None = None
    """The job before it, which ends first: one works at a time."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    """Layers."""
    layers: int = 0
    """Of the whole file; 0 until they are counted."""
    running: bool = True
    problem: str = ""
    """Why nothing was saved, as one sentence."""
    saved: SavedFile | None = None
    file: CatalogFile | None = None
    """The saved one."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Its duration; of a preview, the estimated duration of saving."""

    def __post_init__(self) -> None:
        self._cancelled = threading.Event()
        self._model = dict(self.session.model.components) if self.wanted.uses_model else {}
        self._thread = threading.Thread(target=self._in_thread, name="remora-save", daemon=True)

    @property
    def is_preview(self) -> bool:
        return self.wanted.is_preview

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
            self.saved = self.wanted.write(self._model or None, self._step)
            self.notes = self.saved.notes
            self.seconds = (time.monotonic() - begun) * (self.wanted.times if self.is_preview else 1.0)
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

    def _step(self, done: int, layers: int) -> None:
        """Note how far the work is; end it if it is cancelled, or if another model was loaded."""
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
        catalog.refresh([self.wanted.path.parent])
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
