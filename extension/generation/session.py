"""The engine of this process, between a host and the library."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lib_lora import (
    RANK_BUCKETS,
    ActivationError,
    ActivationReport,
    Engine,
    FileError,
    LoraError,
    Stack,
    StackError,
    is_denoiser,
    is_off,
    model_blocks,
    model_family,
)

from ..kept.always_on import AlwaysOnFile
from ..kept.block_presets import BlockPresetsFile
from ..kept.presets import Presets
from ..kept.region_files import RegionFiles
from ..library import distilled
from ..library.catalog import Catalog, CatalogError, CatalogFile, Lookup
from ..text.known import Known
from ..text.prompt import parse_arguments
from ..text.spelling import name_of
from ..text.tag import Tag
from .batch import Shared, Wish, entry_of, first, gather, text_keys
from .record import Record, used_loras
from .request import USUAL, Memory, Request, Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lib_lora import BlockNames, Clock, Family, NetworkReport, Rows

    from ..hosts import Host

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Active:
    """One active LoRA."""

    name: str
    """The name in its tag."""
    file: CatalogFile
    report: NetworkReport
    images: tuple[int, ...] = (0,)
    """The images of the batch that it changes."""


@dataclass(frozen=True)
class Skipped:
    """One LoRA that was left out."""

    name: str
    """The name in its tag; empty if no LoRA is the cause."""
    reason: str
    """One sentence."""
    missing: bool = False
    """No file has this name; otherwise the file or the tag is invalid."""
    always_on: bool = False
    """It belongs to the always-on stack, not to a prompt."""
    written: str = ""
    """The text between `<lora:` and `>`, if the tag cannot be parsed."""
    cause: str = ""
    """The reason without the name, for readers who see it beside; empty if the reason has none."""

    @classmethod
    def of(cls, name: str, error: LoraError, *, always_on: bool = False) -> Skipped:
        """Make one for a LoRA that failed."""
        reason = f"of the always-on stack: {error}" if always_on else str(error)
        missing = isinstance(error, CatalogError) and not error.fits_several
        cause = error.reason if isinstance(error, (CatalogError, FileError)) else str(error)
        return cls(name, reason, missing, always_on, cause=cause)

    @classmethod
    def unread(cls, written: str, error: LoraError) -> Skipped:
        """Make one for a tag that cannot be parsed."""
        return cls(name_of(written), str(error), written=written)


@dataclass(frozen=True)
class Activation:
    """The LoRA of a generation."""

    active: tuple[Active, ...] = ()
    left_out: tuple[Skipped, ...] = ()
    report: ActivationReport = field(default_factory=lambda: ActivationReport(()))
    """The engine's report on `active` and on merging."""
    notes: tuple[str, ...] = ()
    """One sentence for each bundled embedding that cannot be used, each strength that was limited, and each noise that
    the model has no denoiser of its own for.
    """
    embeddings: tuple[str, ...] = ()
    """The notes on bundled embeddings, which the parameters text of a picture has, too."""
    unread: tuple[str, ...] = ()
    """One sentence for each tag whose place in its prompt has no effect, or that fits several files."""
    text_keys: tuple[Hashable, ...] = ((),)
    """For each image, a key of what changes the text encoders' output."""
    always: Mapping[int, CatalogFile] = field(default_factory=dict)
    """Position -> file of the always-on LoRA that are active for some image."""
    waiting: tuple[str, ...] = ()
    """One sentence for each LoRA that is limited to passes that were not made yet."""

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return one sentence for each LoRA that was left out."""
        return tuple(one.reason for one in self.left_out)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one sentence per LoRA of doubtful effect, and one on layers that were never called."""
        found = [f"{one.name}: {one.report.warning}" for one in self.active if one.report.warning]
        effects = [(one.name, self.report.without_effect(i)) for i, one in enumerate(self.active)]
        found += [f"{name} has {effect}" for name, effect in effects if effect]
        doubts = [*sorted(self.report.unlimited.items()), *sorted(self.report.too_strong.items())]
        found += [f"{self.active[i].name}: {why}" for i, why in doubts]
        unexpected = self.report.lost or any(not one.expected for one in self.report.uncalled)
        return (*found, *([self.report.silence] if unexpected else []))

    @property
    def text_key(self) -> Hashable:
        """Return a key of what changes the text encoders' output; equal keys mean equal outputs."""
        return self.text_keys[0] if len(set(self.text_keys)) == 1 else self.text_keys

    @property
    def images(self) -> int:
        """Return how many images have LoRA of their own."""
        return len(self.text_keys)

    def far_off(self, steps: int | None, cfg: float | None) -> tuple[str, ...]:
        """Return one sentence for each distilled LoRA that was made for other steps or another CFG scale.

        Args:
            steps: of the pictures; None if unknown.
            cfg: the CFG scale; None if unknown.
        """
        own = [(one.name, one.file.path.stem, one.report.metadata) for one in self.active]
        found = [(name, distilled(name, stem, header=header)) for name, stem, header in own]
        return tuple(f"{name} {text}" for name, made in found if made and (text := made.warning(steps, cfg)))

    def lines(self) -> tuple[str, ...]:
        """Return one line per LoRA, with its name as in the tag, and one on merging if it was requested."""
        lines = self.report.summary().splitlines()
        named = [_as_in_tag(line, one.report, one.name) for one, line in zip(self.active, lines, strict=False)]
        return (*named, *lines[len(named) :])


def _as_in_tag(line: str, report: NetworkReport, name: str) -> str:
    """Return a line of a report with the name as in the tag: two files may have one name in two folders."""
    return name + line.removeprefix(report.name)


class Session:
    """Resolves LoRA names and activates them on the host's model; one generation uses it at a time."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.catalog = Catalog(host.adapter_dirs, host.data_dir, host.own_choice)
        self.always_on = AlwaysOnFile(host.data_dir)
        self.presets = Presets(host.data_dir)
        self.block_presets = BlockPresetsFile(host.data_dir, host.block_preset_files)
        self.regions = RegionFiles(host.data_dir)
        self.record = Record()
        """The pictures of this session."""
        self.last = Activation()
        """The LoRA of the latest generation."""
        self.failed: tuple[Skipped, ...] = ()
        """Why the generation after that failed, one for each LoRA; empty if it did not."""
        self.fault = ""
        """Why the host could not be taken over for the present model; empty if it was."""
        self._passes: set[str] = set()  # made so far for the present picture
        self._batch: Request | None = None  # active, or for a model that is loaded during a generation
        self._engine: Engine | None = None
        self._memory = Memory()  # of the engine
        self._rows: Rows | None = None
        self._clock: Clock | None = None
        self._family: Family | None = None
        self._blocks: BlockNames | None = None
        self._family_of: Mapping[str, weakref.ref[nn.Module]] = {}
        self._useless = ""
        self._useless_for: Mapping[str, weakref.ref[nn.Module]] = {}
        self._said: set[tuple[CatalogFile | None, str]] = set()

    @property
    def useless(self) -> str:
        """Return why LoRA have no effect on the host's present model; empty if they have, or may have.

        The host may know; otherwise the first picture finds this out. The host's own LoRA applies the tags.
        """
        found = self._useless if self._useless and self._parts() == self._useless_for else ""
        return self.fault or found or self.host.cannot_serve()

    @useless.setter
    def useless(self, sentence: str) -> None:
        self._useless, self._useless_for = sentence, self._parts() if sentence else {}

    def warnings(self) -> Sequence[str]:
        """Return why the effect of the latest LoRA is doubtful; complete only after the model was called."""
        if self._engine is not None and self._engine.stack.entries:
            self.last = replace(self.last, report=self._engine.report)
        last = self.last
        return (*last.warnings, *last.embeddings, *last.unread, *last.waiting)

    @property
    def names(self) -> Known:
        """Return what a tag may refer to by name."""
        return Known(self.block_presets.all, self.regions.all)

    def begin(
        self,
        tags: Sequence[Tag],
        settings: Settings = USUAL,
        always: Sequence[Tag] = (),
        seeds: Sequence[int] = (),
        unread: Sequence[str] = (),
    ) -> Activation:
        """Activate these LoRA for all images, in place of all others; see `begin_batch`."""
        return self.begin_batch([tags], settings, always, seeds, unread=unread)

    def begin_batch(
        self,
        images: Sequence[Sequence[Tag]],
        settings: Settings = USUAL,
        always: Sequence[Tag] = (),
        seeds: Sequence[int] = (),
        at: str = "base",
        unread: Sequence[str] = (),
    ) -> Activation:
        """Activate these LoRA in place of all others; without any, deactivate all.

        Args:
            images: the LoRA of each image, in order. A single item holds for all images. A LoRA at multiplier 0 only
                removes the same LoRA of `always` from its image.
            settings: how the LoRA are applied, and what happens if one fails.
            always: LoRA that each image has before its own, unless it names them itself.
            seeds: of the images, as far as known.
            at: the pass, see `tag.Pass`.
            unread: one sentence for each tag whose place in its prompt has no effect.

        Raises:
            LoraError: a name or a file failed and `settings` do not skip it; the previous LoRA stay active.
        """
        batch = Request(tuple(map(tuple, images)), settings, tuple(always), tuple(seeds), at, tuple(unread))
        self._note_outcome()
        self._passes = {at} if at == "base" else {*self._passes, at}  # a base pass starts another picture
        self.failed = ()
        try:
            self.last = self._put_in_force(batch)
        except LoraError as error:
            self.failed = self.failed or (Skipped("", str(error)),)
            raise
        self._batch = batch
        if at == "base":
            self.record.begin(batch.seeds, used_loras(self.last, batch))
        self.catalog.used({one.file for one in self.last.active})
        return self.last

    def pictures_made(self, pictures: Sequence[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended, by seed and image; without any it made none."""
        self._note_outcome()
        self.record.made(pictures)

    def _note_outcome(self) -> None:
        """Tell the record what the first pass has shown of its LoRA; later passes have LoRA of their own."""
        if self._batch is not None and self._passes == {"base"}:
            self.warnings()
            self.record.tell(used_loras(self.last, self._batch))

    def always_tags(self, skip_bad: bool) -> tuple[list[Tag], list[Skipped]]:
        """Parse the always-on stack; an entry that cannot be parsed is left out, or raises.

        Raises:
            LoraError: an entry cannot be parsed, and `skip_bad` is off.
        """
        tags: list[Tag] = []
        bad: dict[Skipped, LoraError] = {}
        names = self.names
        for entry in self.always_on.stack.wanted():
            try:
                tags.append(parse_arguments(entry.written, names=names))
            except LoraError as error:
                bad[Skipped.of(entry.name, error, always_on=True)] = error
        return [tag for tag in tags if not tag.is_off], self.skip_or_raise(bad, skip_bad)

    def model_family(self) -> Family | None:
        """Return the family of the host's present model, or None if it is unknown."""
        self._look_at_model()
        return self._family

    def _look_at_model(self) -> None:
        """Update the family of the host's model; `model_blocks` finds its blocks on demand."""
        parts, known = self.host.components(), self._parts()
        if known != self._family_of:
            self._family, self._family_of = model_family(parts) if parts else None, known
            self._blocks = None

    def _parts(self) -> Mapping[str, weakref.ref[nn.Module]]:
        return {name: weakref.ref(part) for name, part in self.host.components().items()}

    def use_image(self, index: int | None) -> None:
        """Make the text encoders use the LoRA of one image of the batch; None, of the image of each row."""
        if self._engine is not None:
            self._engine.use_image(index if self.last.images > 1 else None)

    def set_rows(self, rows: Rows | None) -> None:
        """Set `lib_lora.Engine.set_rows`, for later batches too."""
        self._rows = rows
        if self._engine is not None:
            self._engine.set_rows(rows)

    def set_clock(self, clock: Clock | None) -> None:
        """Set `lib_lora.Engine.set_clock`, for later batches too."""
        self._clock = clock
        if self._engine is not None:
            self._engine.set_clock(clock)

    def model_blocks(self) -> BlockNames:
        """Return the blocks of the host's present model; empty without a model."""
        self._look_at_model()
        if self._blocks is None:
            self._blocks = model_blocks(self.host.components())
        return self._blocks

    def bytes_to_place(self) -> int:
        """Return the bytes of the GPU that the active LoRA will take beside what they take now, by their files."""
        if self._engine is None:
            return 0
        needed, budget = sum(one.file.size for one in self.last.active), self._memory.device_budget
        placed = sum(nbytes for device, nbytes in self._engine.memory().placed.items() if device != "cpu")
        return max(0, (needed if budget is None else min(needed, budget)) - placed)

    def follow_model(self, at: str | None = None) -> bool:
        """Activate the latest batch on the host's present model; tell whether the model is another one.

        Args:
            at: the pass that runs now; None if it is unchanged.

        Raises:
            LoraError: the activation failed on this model, and the settings do not skip the LoRA.
        """
        former = self._batch
        if former is not None and at is not None and at != former.at:
            self._note_outcome()
        if former is not None and at is not None:
            self._batch = replace(former, at=at)
            self._passes.add(at)
        if self._engine is not None and self._serves():
            self._engine.reattach()
            if self._batch is not None and self._batch != former:
                self.last = self._put_in_force(self._batch)
            return False
        self._drop_engine()
        if self._batch is not None:
            self.last = self._put_in_force(self._batch)
        return True

    def end(self) -> None:
        """Deactivate all LoRA; the model is as it was without any."""
        self._note_outcome()
        self._batch = None
        for sentence in self.last.waiting:
            self.say(sentence)
        if self._engine is not None and self._engine.stack.entries:
            for sentence in self.warnings():
                self.say(sentence)
            self._look_for_layers(self._engine)
        try:
            self.host.use_embeddings({})
        finally:
            if self._engine is not None:
                self._engine.activate(Stack())  # keeps tensors for the next batch

    def _look_for_layers(self, engine: Engine) -> None:
        """Find out whether LoRA can change this model."""
        silent = engine.silent
        if silent and not self.useless and not {name for name in engine.components if is_denoiser(name)} - silent:
            names = " and ".join(sorted(silent))
            self.useless = (
                f"no layer of the {names} was called: something else computes in their place, such as a compiled "
                "engine; the web UI's own LoRA gets the tags, until another model is loaded or Remora is turned off "
                "and on in the settings"
            )
            logger.warning("remora: %s", self.useless)

    def model_changed(self) -> None:
        """Leave the model; `follow_model` or the next batch uses the new one."""
        batch = self._batch
        self.fault = ""
        self.close()
        self._batch = batch
        logger.debug("remora: serving %s", ", ".join(self.host.components()) or "no model")

    def close(self) -> None:
        """Remove everything from the model; a later `begin` starts again."""
        try:
            self.end()
        finally:
            self._drop_engine()

    def _drop_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _serves(self) -> bool:
        """Tell whether the engine is on the host's present model."""
        assert self._engine is not None
        served, present = self._engine.components, self.host.components()
        return served.keys() == present.keys() and all(served[name] is part for name, part in present.items())

    def _put_in_force(self, batch: Request) -> Activation:
        batch, limited = batch.limited() if batch.settings.limited else (batch, ())
        for note in (*limited, *batch.unread):
            self.say(note)
        left_out = [Skipped(tag.name, why, always_on=tag in batch.always) for why, tag in batch.strays().items()]
        for one in left_out:
            self.say(one.reason)
        always, used, images = self._wished(batch, left_out)
        entries = gather(images, in_order=batch.settings.in_order)
        of_stack = [wish.file for wish in always.values()]
        report, stack = self._activate_what_can_be(entries, len(images), batch, of_stack, left_out)
        active = tuple(
            Active(first(one).name, first(one).file, its_report, tuple(one))
            for one, its_report in zip(entries, report.entries, strict=True)
        )
        files = {one.file for one in active}
        embeddings = self._lend_embeddings(active)
        several = tuple(dict.fromkeys(filter(None, (self.catalog.note_on(one.name) for one in active))))
        for note in several:
            self.say(note)
        return Activation(
            active=active,
            left_out=tuple(left_out),
            report=report,
            notes=(*limited, *batch.of_all_noise(self.host.components().keys()), *embeddings),
            embeddings=embeddings,
            unread=(*batch.unread, *several),
            text_keys=self._text_keys(stack, [first(one).file for one in entries], report, batch.settings),
            always={position: always[position].file for position in used if always[position].file in files},
            waiting=batch.waiting(self._passes),
        )

    def _wished(
        self, batch: Request, left_out: list[Skipped]
    ) -> tuple[Mapping[int, Wish], Sequence[int], list[list[Wish]]]:
        """Find the files of a batch; those that fail go to `left_out`, or stop the job.

        Returns:
            The always-on LoRA by position, the positions of those that some image has, and the LoRA of each image.
        """
        lookup = Lookup(self.catalog)
        bad: dict[Skipped, LoraError] = {}
        always = self._always(lookup, batch, bad)
        count = max(1, batch.count)
        own = [self._found(lookup, batch, image, bad, off_too=bool(always)) for image in range(count)]
        left_out += self.skip_or_raise(bad, batch.settings.skip_bad)
        besides = [_besides(always, image) for image in own]
        images = [
            [*(always[position] for position in sorted(front)), *(one for one in image if not one.is_off)]
            for front, image in zip(besides, own, strict=True)
        ]
        return always, sorted(set().union(*besides)), images

    def _text_keys(
        self, stack: Stack, files: Sequence[CatalogFile], report: ActivationReport, chosen: Settings
    ) -> tuple[Hashable, ...]:
        """Return for each image a key of what changes the text encoders' output."""
        texts = [name for name in self.host.components() if name.startswith("text_encoder")]
        how = chosen.in_order, chosen.mode, chosen.memory.storage, chosen.reading
        of_images = text_keys(stack, files, texts, [own.components for own in report.entries])
        return tuple((how, key) if key else () for key in of_images)

    def _activate_what_can_be(
        self,
        entries: list[Shared],
        images: int,
        batch: Request,
        of_stack: Collection[CatalogFile],
        left_out: list[Skipped],
    ) -> tuple[ActivationReport, Stack]:
        """Activate; an entry that fails is removed and reported, or stops the job, as the settings say."""
        while True:
            try:
                return self._activate(entries, images, batch)
            except LoraError as error:
                causes = error.causes if isinstance(error, ActivationError) else {}
                if isinstance(error, StackError) and error.index is not None:
                    causes = {error.index: error}
                if not causes:
                    raise
                bad = {
                    Skipped.of(one.name, cause, always_on=one.file in of_stack): cause
                    for one, cause in ((first(entries[culprit]), cause) for culprit, cause in causes.items())
                }
                left_out += self.skip_or_raise(bad, batch.settings.skip_bad)
                entries[:] = [one for i, one in enumerate(entries) if i not in causes]

    def _found(
        self, lookup: Lookup, batch: Request, image: int, bad: dict[Skipped, LoraError], *, off_too: bool
    ) -> list[Wish]:
        """Find the files of one image's LoRA; a LoRA at 0 is looked up only with `off_too`, and never fails."""
        found = []
        for tag in batch.of_image(image):
            multiplier = batch.multiplier(tag, image)
            if is_off(multiplier) and not off_too:
                continue
            try:
                found.append(Wish(tag.name, lookup.find(tag.name), tag.rank, multiplier, tag.alpha, tag.scale))
            except LoraError as error:
                if not is_off(multiplier):
                    bad[Skipped.of(tag.name, error)] = error
        return found

    def _always(self, lookup: Lookup, batch: Request, bad: dict[Skipped, LoraError]) -> dict[int, Wish]:
        """Find the files of the always-on LoRA, by position."""
        found = {}
        for position, tag in enumerate(batch.always):
            try:
                file, multiplier = lookup.find(tag.name), batch.multiplier(tag)
                found[position] = Wish(tag.name, file, tag.rank, multiplier, tag.alpha, tag.scale)
            except LoraError as error:
                bad[Skipped.of(tag.name, error, always_on=True)] = error
        return {position: wish for position, wish in found.items() if not wish.is_off}

    def skip_or_raise(self, bad: Mapping[Skipped, LoraError], skip_bad: bool) -> list[Skipped]:
        """Log and return the LoRA that failed, or raise one error that names all.

        Raises:
            LoraError: there are some, and `skip_bad` is off.
        """
        for skipped, error in {} if skip_bad else bad.items():
            self.failed = tuple(bad)
            if len(bad) == 1 and not skipped.always_on:
                raise error
            raise LoraError("; ".join(one.reason for one in bad)) from error
        for skipped in bad:
            logger.warning("remora: skipped: %s", skipped.reason)
        return list(bad)

    def _activate(self, entries: Sequence[Shared], images: int, batch: Request) -> tuple[ActivationReport, Stack]:
        settings = batch.settings
        stack = Stack(
            [entry_of(one, images) for one in entries],
            mode=settings.mode,
            in_order=settings.in_order,
            reading=settings.reading,
        )
        report = self._engine_with(settings.memory).activate(stack)
        for one, its_report in zip(entries, report.entries, strict=True):
            doubtful = its_report.warning or its_report.unused
            line = _as_in_tag(its_report.summary(), its_report, first(one).name)
            self._say(line, logging.WARNING if doubtful else logging.INFO, first(one).file)
        if report.merging:
            self._say(report.merging, logging.INFO)
        return report, stack

    def say(self, sentence: str) -> None:
        """Log a warning only once."""
        self._say(sentence, logging.WARNING)

    def _say(self, text: str, level: int, file: CatalogFile | None = None) -> None:
        """Log a text about a file, or about all, only once."""
        if (file, text) not in self._said:
            self._said.add((file, text))
            logger.log(level, "remora: %s", text)

    def _engine_with(self, memory: Memory) -> Engine:
        """Return the engine on the host's present model; it is made again when `memory` changes."""
        if self._engine is not None and (self._memory != memory or not self._serves()):
            self._drop_engine()
        if self._engine is None:
            self._engine = make_engine(self.host, memory)
            self._engine.set_rows(self._rows)
            self._engine.set_clock(self._clock)
            self._memory = memory
        return self._engine

    def _lend_embeddings(self, active: Sequence[Active]) -> tuple[str, ...]:
        """Give the host the bundled embeddings; return one sentence for each that cannot be used."""
        try:
            embeddings, notes = self._bundled(active)
            notes += self.host.use_embeddings(embeddings)
        except BaseException:
            self.end()
            raise
        for note in notes:
            self.say(note)
        return tuple(notes)

    def _bundled(self, active: Sequence[Active]) -> tuple[dict[str, Mapping[str, Tensor]], list[str]]:
        embeddings: dict[str, Mapping[str, Tensor]] = {}
        owners: dict[str, Active] = {}  # by the name as tokenizers see it
        notes = []
        for one, own in zip(active, self._engine.embeddings if self._engine is not None else (), strict=True):
            for name, parts in own.items():
                owner = owners.setdefault(name.lower(), one)
                if owner is one:
                    embeddings[name] = parts
                elif owner.file != one.file:
                    notes.append(f"embedding {name!r} is read from {owner.name}; the one in {one.name} is ignored")
        return embeddings, notes


def make_engine(host: Host, memory: Memory) -> Engine:
    """Create the engine for the host's model."""
    return Engine(
        host.components(),
        checkpoints=host.checkpoints(),
        storage=memory.storage,
        device_budget=memory.device_budget,
        cache_bytes=memory.cache_bytes,
        rank_buckets=RANK_BUCKETS if memory.round_up else (),
        parked_bytes=memory.ready_bytes,
    )


def _besides(always: Mapping[int, Wish], image: Sequence[Wish]) -> set[int]:
    """Return the positions of the always-on LoRA that an image has: all that its prompt does not name."""
    own = {wish.file for wish in image}
    return {position for position, wish in always.items() if wish.file not in own}
