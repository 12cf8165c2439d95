"""LoRA whose tags have one rule, such as `combine=ties`, as one file that is applied in their place."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, finalize

from lib_lora import Entry, FileError, LoraError, Stack

from ..library.walk import READABLE, CatalogFile
from ..version import VERSION
from .batch import Wish

if TYPE_CHECKING:
    from torch import nn

    from lib_lora.saving import Combination, How

    from ..hosts import Host
    from ..library.catalog import Catalog
    from ..text.tag import Place, Rule, Tag
    from .request import Request
    from .served import ServedModel

logger = logging.getLogger(__name__)

_FOLDER = "combined"
_HOW = re.compile(r"how='(\w+)'")
"""The rule in an error of the library. An error on a tag says it as the tag does: write combine=ties."""
_MOST_FILES = 16
_MOST_BYTES = 4 << 30


class RuleError(LoraError, ValueError):
    """LoRA cannot be combined by the rule of their tags."""


class Combiner:
    """Combines the LoRA of pictures by rules, and keeps the latest files for pictures of the same LoRA."""

    def __init__(self, host: Host, catalog: Catalog, model: ServedModel) -> None:
        self._host, self._catalog, self._model = host, catalog, model
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
            with suppress(OSError):  # another program deletes files, too
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
            file = self._file(rule, stack)
        except (LoraError, OSError) as error:
            why = error.reason if isinstance(error, FileError) and _FOLDER in error.path.parts else str(error)
            why = _HOW.sub(r"combine=\1", why)  # as tags have it
            notes[f"{name}: combine={rule.how} is left out, and they add up: {why}"] = None
            return own
        notes |= dict.fromkeys(f"{name}: {text}" for text in self._notes.get(file.path, ()))
        multiplier = batch.multiplier(limits, image)
        return [Wish(f"{name} ({rule.how})", own[0].place, file, None, multiplier, combined=tuple(own))]

    def _file(self, rule: Rule, stack: Stack) -> CatalogFile:
        """Return the file of a stack, which is made if it is not there."""
        from lib_lora.saving import choices_of, save_files

        model = self._model.components if fits_model(self._catalog, self._model, stack) else {}
        loaded = [(name, self._loaded.setdefault(part, secrets.token_hex(8))) for name, part in model.items()]
        sources = [_state(Path(one.path)) for one in stack]
        key = repr((VERSION, rule, loaded, sources, asdict(stack)))
        path = self._folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}{READABLE}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            began, engine = time.monotonic(), self._model.engine
            merged = engine is not None and engine.stack.mode == "merged"
            choices = choices_of({"replace": True}, combination_of(rule))
            with engine.active(replace(engine.stack, mode="live")) if engine and merged else nullcontext():
                self._notes[path] = save_files(stack, path, choices, model or None).notes
            logger.info("remora: %d LoRA combined by %s in %.1f s", len(stack), rule.how, time.monotonic() - began)
        stat = path.stat()
        os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))  # when it was used last
        return CatalogFile(path, path.stem, stat.st_size, stat.st_mtime_ns)

    @property
    def _folder(self) -> Path:
        data_dir = self._host.data_dir()
        if data_dir is not None:
            return data_dir / _FOLDER
        if self._without_data_dir is None:
            self._without_data_dir = Path(mkdtemp(prefix="remora-"))
            finalize(self, shutil.rmtree, self._without_data_dir, ignore_errors=True)
        return self._without_data_dir / _FOLDER


def combination_of(rule: Rule | None) -> Combination:
    """Return the combination that a rule names; without one, the sum."""
    from lib_lora.saving import Combination

    return Combination() if rule is None else Combination(cast("How", rule.how), rule.density, rule.seed)


def fits_model(catalog: Catalog, model: ServedModel, stack: Stack) -> bool:
    """Tell whether the files of a stack are for the loaded model, as far as known."""
    if model.family is None:
        return True
    for entry in stack:
        found = catalog.all_found.get(Path(entry.path))
        facts = None if found is None else catalog.row(found.file).facts
        family = None if facts is None else facts.structure.family
        if family is not None and family.differs(model.family, hints=True):
            return False
    return True


def parts_of(own: Sequence[Wish], tags: Mapping[Place, Tag], batch: Request, image: int) -> tuple[list[Entry], Tag]:
    """Return the entries of LoRA that are combined, and a tag that acts where and when all of them do.

    Raises:
        RuleError: there is one only, or they do not act in the same steps and places, or a strength is a schedule.
    """
    of = [tags[wish.place] for wish in own]
    if len(own) == 1:
        raise RuleError("no other LoRA has the same rule, density and seed; write them alike into two tags or more")
    for tag in of:
        if tag.curve is not None:
            raise RuleError(f"{tag.name} has a schedule of strengths; write a number, or limit all of them by start=")
        if tag.limits != of[0].limits:
            raise RuleError(
                f"{of[0].name} and {tag.name} differ in their steps, passes, prompts, images or regions; write these "
                "alike into all tags of the rule"
            )
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
