"""LoRA whose tags have one rule, such as `combine=ties`, as one file that is applied in their place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from weakref import finalize

from lib_lora import Entry, LoraError, Stack, component_files

from ..hosts import NotMadeError
from ..library.walk import CatalogFile
from .batch import Wish
from .combined_files import CombinedFiles, drop_old, note_use, why_not

if TYPE_CHECKING:
    from ..hosts import Host
    from ..library.catalog import Catalog
    from ..text.tag import Place, Rule, Tag
    from .request import Request
    from .served import ServedModel

_FOLDER = "combined"


class RuleError(LoraError, ValueError):
    """LoRA cannot be combined by the rule of their tags."""


class Combiner:
    """Combines the LoRA of pictures by rules, and keeps the latest files for pictures of the same LoRA."""

    def __init__(self, host: Host, catalog: Catalog, model: ServedModel) -> None:
        self._host, self._catalog, self._model = host, catalog, model
        self._files = CombinedFiles()
        self._without_data_dir: Path | None = None
        self.progress: tuple[int, int] | None = None
        """Layers of the file that is made now: those that are done, and all; None while none is made."""

    def combine(self, images: Sequence[Sequence[Wish]], batch: Request) -> tuple[list[list[Wish]], list[str]]:
        """Return the LoRA of the images, of which one stands for all with one rule, and notes on them.

        Where they cannot be combined, they add up, and a note says why.

        Raises:
            NotMadeError: the user interrupted it.
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
            drop_old(self._folder, used)
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
            file = self._file(rule, stack, name, batch.goes_on)
        except NotMadeError:
            raise
        except (LoraError, OSError) as error:
            why = why_not(error, self._folder)
            notes[f"{name}: combine={rule.how} is left out, and they add up: {why}"] = None
            return own
        notes |= dict.fromkeys(f"{name}: {text}" for text in self._files.notes(file.path))
        multiplier = batch.multiplier(limits, image)
        return [Wish(f"{name} ({rule.how})", own[0].place, file, None, multiplier, combined=tuple(own))]

    def _file(self, rule: Rule, stack: Stack, name: str, goes_on: Callable[[str], bool]) -> CatalogFile:
        """Return the file of a stack, which is made if it is not there."""
        model = self._model.components if fits_model(self._catalog, self._model, stack) else {}
        path = self._files.path_of(self._folder, rule, stack, model)
        if not path.exists():
            engine = self._model.engine
            merged = engine is not None and engine.stack.mode == "merged"
            with engine.active(replace(engine.stack, mode="live")) if engine and merged else nullcontext():
                try:
                    self._files.make(path, rule, stack, model, _FileProgress(self, name, rule.how, goes_on))
                finally:
                    self.progress = None
                    goes_on("")
        stat = note_use(path)
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


@dataclass(frozen=True)
class _FileProgress:
    """Tells how far a file is, and ends it where the user does not let the picture go on."""

    combiner: Combiner
    names: str
    how: str
    goes_on: Callable[[str], bool]

    def __call__(self, done: int, layers: int) -> None:
        self.combiner.progress = done, layers
        if not self.goes_on(f"Combining LoRA: {done} of {layers} layers"):
            raise NotMadeError(
                f"combining {self.names} by {self.how} was interrupted after {done} of {layers} layers, so that the "
                "picture is not made"
            )


def fits_model(catalog: Catalog, model: ServedModel, stack: Stack) -> bool:
    """Tell whether the files of a stack are for the loaded model, as far as known."""
    if model.family is None:
        return True
    for entry in stack:
        path = next(iter(component_files(entry.path).values()), Path(entry.path))
        found = catalog.all_found.get(path)
        facts = None if found is None else catalog.row(found.file).facts
        family = None if facts is None else facts.structure.family
        if family is not None and family.differs(model.family, hints=True):
            return False
    return True


def parts_of(own: Sequence[Wish], tags: Mapping[Place, Tag], batch: Request, image: int) -> tuple[list[Entry], Tag]:
    """Return the entries of LoRA that are combined, and a tag that acts where and when all of them do.

    Raises:
        RuleError: as `common_limits`.
    """
    of = [tags[wish.place] for wish in own]
    limits = common_limits(of)
    strengths = [batch.multiplier(tag.alone, image) for tag in of]
    found = [Entry(one.file.source, to, one.rank, one.alpha, one.scale) for one, to in zip(own, strengths, strict=True)]
    return found, limits


def common_limits(tags: Sequence[Tag]) -> Tag:
    """Return a tag that acts where and when all tags of a rule do.

    Raises:
        RuleError: there is one only, or they do not act in the same steps and places, or a strength is a schedule.
    """
    if len(tags) == 1:
        raise RuleError("no other LoRA has the same rule, density and seed; write them alike into two tags or more")
    first = tags[0]
    for tag in tags:
        if tag.curve is not None:
            raise RuleError(f"{tag.name} has a schedule of strengths; write a number, or limit all of them by start=")
        if tag.limits != first.limits:
            raise RuleError(
                f"{first.name} and {tag.name} differ in their steps, passes, prompts, images or regions; write these "
                "alike into all tags of the rule"
            )
    return first.limits
