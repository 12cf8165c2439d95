"""LoRA whose tags have one rule, such as `combine=ties`, as one file that is applied in their place."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from lib_lora import Entry, FileError, LoraError, Stack

from ..library.walk import READABLE, CatalogFile
from ..version import VERSION
from .batch import Wish
from .save_places import SaveError
from .saving import as_file, combination_of, fits_model

if TYPE_CHECKING:
    from torch import nn

    from ..text.tag import Place, Rule, Tag
    from .request import Request
    from .session import Session

logger = logging.getLogger(__name__)

_FOLDER = "combined"
_MOST_FILES = 16
_MOST_BYTES = 4 << 30


class Combiner:
    """Combines the LoRA of pictures by rules, and keeps the latest files for pictures of the same LoRA."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._without_data_dir: Path | None = None
        self._notes: dict[Path, Sequence[str]] = {}
        """Of the files that were made in this session."""
        self._loaded: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        """A name for each model: a file may depend on its weights, which no file on disk need have."""

    def combine(self, images: Sequence[Sequence[Wish]], batch: Request) -> tuple[list[list[Wish]], list[str]]:
        """Return the LoRA of the images, of which one stands for all with one rule, and notes on them.

        Where they cannot be combined, they add up, and a note says why.
        """
        tags, notes, used = batch.every, dict[str, None](), set[Path]()
        found = []
        for image, wishes in enumerate(images):
            groups: dict[Rule | None, list[Wish]] = {}
            for wish in wishes:
                groups.setdefault(tags[wish.place].rule, []).append(wish)
            made: list[Wish] = []
            for rule, own in groups.items():
                made += own if rule is None else self._tried(rule, own, tags, batch, image, notes)
            used |= {one.file.path for one in made if one.combined}
            found.append(made)
        if used:
            _drop_old(self._folder, used)
        return found, list(notes)

    def _tried(
        self,
        rule: Rule,
        own: Sequence[Wish],
        tags: Mapping[Place, Tag],
        batch: Request,
        image: int,
        notes: dict[str, None],
    ) -> Sequence[Wish]:
        name = " + ".join(wish.name for wish in own)
        try:
            entries, limits = parts_of(own, tags, batch, image)
            stack = Stack(entries, in_order=batch.settings.in_order, reading=batch.settings.reading)
            path = self._file(rule, stack)
        except (LoraError, SaveError, OSError) as error:
            why = error.reason if isinstance(error, FileError) and _FOLDER in error.path.parts else error
            notes[f"{name}: combine={rule.how} is left out, and they add up: {why}"] = None
            return own
        notes |= dict.fromkeys(f"{name}: {text}" for text in self._notes.get(path, ()))
        stat = path.stat()
        file = CatalogFile(path, path.stem, stat.st_size, stat.st_mtime_ns)
        multiplier = batch.multiplier(limits, image)
        return [Wish(f"{name} ({rule.how})", own[0].place, file, None, multiplier, combined=tuple(own))]

    def _file(self, rule: Rule, stack: Stack) -> Path:
        """Return the file of a stack, which is made if it is not there."""
        model = self._session.model.components if fits_model(self._session, stack) else {}
        loaded = [(name, self._loaded.setdefault(part, secrets.token_hex(8))) for name, part in model.items()]
        sources = [_state(Path(one.path)) for one in stack]
        key = repr((VERSION, rule, loaded, sources, asdict(stack)))
        path = self._folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}{READABLE}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            began, engine = time.monotonic(), self._session.model.engine
            merged = engine is not None and engine.stack.mode == "merged"
            write = as_file(stack, path, combination_of(rule), {"replace": True}, None)
            with engine.active(replace(engine.stack, mode="live")) if engine and merged else nullcontext():
                saved = write(model or None, lambda done, layers: None)
            self._notes[path] = saved.notes
            logger.info("remora: %d LoRA combined by %s in %.1f s", len(stack), rule.how, time.monotonic() - began)
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # when it was used last
        return path

    @property
    def _folder(self) -> Path:
        data_dir = self._session.host.data_dir()
        if data_dir is not None:
            return data_dir / _FOLDER
        if self._without_data_dir is None:
            self._without_data_dir = Path(mkdtemp(prefix="remora-"))
            finalize(self, shutil.rmtree, self._without_data_dir, ignore_errors=True)
        return self._without_data_dir / _FOLDER


def parts_of(
    own: Sequence[Wish], tags: Mapping[Place, Tag], batch: Request, image: int
) -> tuple[list[Entry], Tag]:
    """Return the entries of LoRA that are combined, and a tag that acts where and when all of them do.

    Raises:
        SaveError: there is one only, or they do not act in the same steps and places, or a strength is a schedule.
    """
    of = [tags[wish.place] for wish in own]
    if len(own) == 1:
        raise SaveError("no other LoRA has the same rule, density and seed; write them alike into two tags or more")
    for tag in of:
        if tag.curve is not None:
            raise SaveError(f"{tag.name} has a schedule of strengths; write a number, or limit all of them by start=")
        if tag.limits != of[0].limits:
            text = "differ in their steps, passes, prompts, images or regions"
            raise SaveError(f"{of[0].name} and {tag.name} {text}; write these alike into all tags of the rule")
    strengths = [batch.multiplier(tag.alone, image) for tag in of]
    found = [Entry(one.file.path, to, one.rank, one.alpha, one.scale) for one, to in zip(own, strengths, strict=True)]
    return found, of[0].limits


def _state(path: Path) -> tuple[object, ...]:
    """Return what tells whether a file or what is written beside it has changed."""
    stat = path.stat()
    return path, stat.st_size, stat.st_mtime_ns, _stamp(path.with_suffix(".json"))


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _drop_old(folder: Path, used: Collection[Path]) -> None:
    """Delete what was not used for the longest time, beyond the limits; also what was left unfinished."""
    found = [(path, path.stat()) for path in folder.iterdir() if path not in used]
    count, size = len(used), sum(path.stat().st_size for path in used)
    for path, stat in sorted(found, key=lambda one: one[1].st_atime_ns, reverse=True):
        count, size = count + 1, size + stat.st_size
        if count > _MOST_FILES or size > _MOST_BYTES:
            with suppress(OSError):  # another program reads it
                path.unlink()
