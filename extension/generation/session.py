"""The engine of this process, between a host and the library."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lib_lora
from lib_lora import (
    ActivationError,
    ActivationReport,
    LoraError,
    Stack,
    StackError,
    is_denoiser,
    is_off,
)

from ..kept.always_on import AlwaysOnFile
from ..kept.block_presets import BlockPresetsFile
from ..kept.presets import PresetsFile
from ..kept.region_files import RegionFiles
from ..library.catalog import Catalog, CatalogFile, Lookup
from ..text.known import Known
from ..text.prompt import parse_arguments
from ..text.tag import Place, Tag
from .activation import Activation, Passes, as_in_tag
from .batch import Shared, Wish, entry_of, first, gather, places, text_keys
from .outcomes import Active, TagOutcome, resting
from .record import Record, used_loras
from .request import USUAL, Memory, Request, Settings, place_of, placed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lib_lora import BlockNames, Clock, Engine, Family, Rows

    from ..hosts import Host

logger = logging.getLogger(__name__)


class Session:
    """Resolves LoRA names and activates them on the host's model; one generation uses it at a time."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.catalog = Catalog(host.adapter_dirs, host.data_dir, host.own_choice)
        self.always_on = AlwaysOnFile(host.data_dir)
        self.presets = PresetsFile(host.data_dir)
        self.block_presets = BlockPresetsFile(host.data_dir, host.block_preset_files)
        self.regions = RegionFiles(host.data_dir)
        self.record = Record()
        """The pictures of this session."""
        self.passes = Passes()
        """The passes of the latest pictures."""
        self.failed: tuple[TagOutcome, ...] = ()
        """Why the generation after that was stopped, one for each LoRA; empty if it was not."""
        self.fault = ""
        """Why the host could not be taken over for the present model; empty if it was."""
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

    @property
    def last(self) -> Activation:
        """Return the LoRA of the latest pass."""
        return self.passes.latest

    @property
    def outcomes(self) -> tuple[TagOutcome, ...]:
        """Return what became of each tag of the latest pictures; of a stopped generation, only those that failed."""
        return self.failed or self.passes.outcomes

    def warnings(self, passes: Passes | None = None) -> Sequence[str]:
        """Return why the effect of LoRA is doubtful; complete only after the model was called.

        Args:
            passes: of the pictures; None means the latest.
        """
        self._read_report()
        return (self.passes if passes is None else passes).sentences

    def _read_report(self) -> None:
        """Take over what the model's calls have shown."""
        if self._engine is not None and self._engine.stack.entries and self.last.active:
            self.passes.latest = replace(self.last, report=self._engine.report)

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
        apart: Sequence[TagOutcome] = (),
    ) -> Activation:
        """Activate these LoRA for all images, in place of all others; see `begin_batch`."""
        return self.begin_batch([tags], settings, always, seeds, apart=apart)

    def begin_batch(
        self,
        images: Sequence[Sequence[Tag]],
        settings: Settings = USUAL,
        always: Sequence[Tag] = (),
        seeds: Sequence[int] = (),
        at: str = "base",
        apart: Sequence[TagOutcome] = (),
    ) -> Activation:
        """Activate these LoRA in place of all others; without any, deactivate all.

        Args:
            images: the LoRA of each image; a single item holds for all. A LoRA at multiplier 0 only removes the same
                LoRA of `always` from its image.
            settings: how the LoRA are applied, and what happens if one fails.
            always: LoRA that each image has before its own, unless it names them itself.
            seeds: of the images, as far as known.
            at: the pass, see `tag.Pass`.
            apart: the outcomes of tags that cannot be parsed, or that are words.

        Raises:
            LoraError: a name or a file failed and `settings` do not skip it; the previous LoRA stay active.
        """
        asked = tuple(placed(tags, "prompt") for tags in images)
        batch = Request(asked, settings, placed(always, "always"), tuple(seeds), at, tuple(apart))
        self._note_outcome()
        self.failed = ()
        try:
            activation = self._put_in_force(batch)
        except LoraError as error:
            self.failed = self.failed or (TagOutcome.of_all(str(error)),)
            raise
        self._batch = batch
        self._begin_pass(at, activation)
        if at == "base":
            self.record.begin(batch.seeds, used_loras(activation, batch))
        self.catalog.used({active.file for active in activation.active})
        return activation

    def pictures_made(self, pictures: Sequence[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended, by seed and image; without any it made none."""
        self._note_outcome()
        self.record.made(pictures)

    def _note_outcome(self) -> None:
        """Tell the record what the first pass has shown of its LoRA; later passes have LoRA of their own."""
        if self._batch is not None and self.passes.made == {"base"}:
            self._read_report()
            self.record.tell(used_loras(self.last, self._batch))

    def note(self, sentence: str) -> None:
        """Add a sentence about the present pictures."""
        self.passes.latest = replace(self.last, notes=(*self.last.notes, sentence))

    def hand_over(self, tags: Sequence[TagOutcome], at: str = "base") -> None:
        """Note the tags of a pass in which Remora applies none."""
        self.failed = ()
        self._begin_pass(at, Activation(resting=tuple(tags)))

    def go_on_with(self, passes: Passes) -> None:
        """Count the latest pass among these, whose pictures go on after others were made in between."""
        if passes is not self.passes and passes.made and self._batch is not None:
            passes.begin(self._batch.at, self.last)
            self.passes = passes

    def ended_by(self, error: BaseException) -> None:
        """Note that an error ended the generation: its LoRA have not made the pictures."""
        if not self.failed:
            self.passes.error = f"no picture was made: {type(error).__name__}: {error}"

    def _begin_pass(self, at: str, activation: Activation) -> None:
        """Note a pass; a base pass starts other pictures."""
        if at == "base":
            self.passes = Passes()
        self.passes.begin(at, activation)

    def _made_in(self, at: str) -> set[str]:
        """Return the passes of the present pictures, with this one."""
        return {at} if at == "base" else {*self.passes.made, at}

    def always_tags(self, skip_bad: bool) -> tuple[list[Tag], list[TagOutcome]]:
        """Parse the always-on stack; an entry that cannot be parsed is left out, or raises.

        Raises:
            LoraError: an entry cannot be parsed, and `skip_bad` is off.
        """
        tags: list[Tag] = []
        bad: dict[TagOutcome, LoraError] = {}
        names, stack = self.names, self.always_on.stack
        for number, entry in enumerate(stack.entries):
            if not stack.enabled or entry.is_off:
                continue
            place = Place("always", number, entry.written)
            try:
                tags.append(replace(parse_arguments(entry.written, names=names), place=place))
            except LoraError as error:
                bad[TagOutcome.of_error(place, entry.name, error)] = error
        return [tag for tag in tags if not tag.is_off], self.skip_or_raise(bad, skip_bad)

    def model_family(self) -> Family | None:
        """Return the family of the host's present model, or None if it is unknown."""
        self._look_at_model()
        return self._family

    def _look_at_model(self) -> None:
        """Update the family of the host's model; `model_blocks` finds its blocks on demand."""
        parts, known = self.host.components(), self._parts()
        if known != self._family_of:
            self._family, self._family_of = lib_lora.model_family(parts) if parts else None, known
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
            self._blocks = lib_lora.model_blocks(self.host.components())
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
        if self._engine is not None and self._serves():
            self._engine.reattach()
            if self._batch != former:
                self._go_on()
            return False
        self._read_report()
        self._drop_engine()
        self._go_on()
        return True

    def _go_on(self) -> None:
        """Activate the latest batch in another pass of its pictures, or on another model."""
        if self._batch is not None:
            self.passes.begin(self._batch.at, self._put_in_force(self._batch))

    def end(self) -> None:
        """Deactivate all LoRA; the model is as it was without any."""
        self._note_outcome()
        self._batch = None
        told = {one.sentence for activation in self.passes.activations for one in activation.left_out}
        for sentence in self.warnings():
            if sentence not in told:
                self.say(sentence)
        if self._engine is not None and self._engine.stack.entries:
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
            so = "the web UI's own LoRA gets the tags" if self.host.has_own_lora else "no LoRA has an effect"
            self.useless = (
                f"no layer of the {names} was called: something else computes in their place, such as a compiled "
                f"engine; {so}, until another model is loaded or Remora is turned off and on in the settings"
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
        self._read_report()
        batch, limited = batch.limited() if batch.settings.limited else (batch, ())
        left_out = [*batch.apart, *batch.strays()]
        for note in (*limited, *(one.sentence for one in left_out if one.state == "none")):
            self.say(note)
        always, used, images = self._wished(batch, left_out)
        entries = gather(images, in_order=batch.settings.in_order)
        report, stack = self._activate_what_can_be(entries, len(images), batch, left_out)
        active = tuple(
            Active(first(one).name, first(one).file, its_report, tuple(one), places(one))
            for one, its_report in zip(entries, report.entries, strict=True)
        )
        files = {one.file for one in active}
        for hint in (place.note for one in active for place in one.places if place.note):
            self.say(hint)
        embeddings = self._lend_embeddings(active)
        several = tuple(dict.fromkeys(filter(None, (self.catalog.note_on(one.name) for one in active))))
        for note in several:
            self.say(note)
        return Activation(
            active=active,
            left_out=tuple(left_out),
            resting=self._resting(batch, active, left_out),
            report=report,
            notes=(*limited, *batch.of_all_noise(self.host.components().keys()), *embeddings),
            embeddings=embeddings,
            several=several,
            text_keys=self._text_keys(stack, [first(one).file for one in entries], report, batch.settings),
            always={position: always[position].file for position in used if always[position].file in files},
        )

    def _resting(
        self, batch: Request, active: Sequence[Active], left_out: Sequence[TagOutcome]
    ) -> tuple[TagOutcome, ...]:
        """Return the outcomes of the tags that are neither active nor left out."""
        others = {place for one in active for place in one.places} | {one.place for one in left_out}
        made = self._made_in(batch.at)
        return tuple(resting(tag, place, made) for place, tag in batch.every.items() if place not in others)

    def _wished(
        self, batch: Request, left_out: list[TagOutcome]
    ) -> tuple[Mapping[int, Wish], Sequence[int], list[list[Wish]]]:
        """Find the files of a batch; those that fail go to `left_out`, or stop the job.

        Returns:
            The always-on LoRA by position, the positions of those that some image has, and the LoRA of each image.
        """
        lookup = Lookup(self.catalog)
        bad: dict[TagOutcome, LoraError] = {}
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
        left_out: list[TagOutcome],
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
                    TagOutcome.of_error(place, first(entries[culprit]).name, cause): cause
                    for culprit, cause in causes.items()
                    for place in places(entries[culprit])
                }
                left_out += self.skip_or_raise(bad, batch.settings.skip_bad)
                entries[:] = [one for i, one in enumerate(entries) if i not in causes]

    def _found(
        self, lookup: Lookup, batch: Request, image: int, bad: dict[TagOutcome, LoraError], *, off_too: bool
    ) -> list[Wish]:
        """Find the files of one image's LoRA; a LoRA at 0 is looked up only with `off_too`, and never fails."""
        found = []
        for tag in batch.of_image(image):
            multiplier = batch.multiplier(tag, image)
            if is_off(multiplier) and not off_too:
                continue
            place = place_of(tag)
            try:
                found.append(Wish(tag.name, place, lookup.find(tag.name), tag.rank, multiplier, tag.alpha, tag.scale))
            except LoraError as error:
                if not is_off(multiplier):
                    bad[TagOutcome.of_error(place, tag.name, error)] = error
        return found

    def _always(self, lookup: Lookup, batch: Request, bad: dict[TagOutcome, LoraError]) -> dict[int, Wish]:
        """Find the files of the always-on LoRA, by position."""
        found = {}
        for position, tag in enumerate(batch.always):
            place = place_of(tag)
            try:
                file, multiplier = lookup.find(tag.name), batch.multiplier(tag)
                found[position] = Wish(tag.name, place, file, tag.rank, multiplier, tag.alpha, tag.scale)
            except LoraError as error:
                bad[TagOutcome.of_error(place, tag.name, error)] = error
        return {position: wish for position, wish in found.items() if not wish.is_off}

    def skip_or_raise(self, bad: Mapping[TagOutcome, LoraError], skip_bad: bool) -> list[TagOutcome]:
        """Log and return the LoRA that failed, or raise one error that names all.

        Raises:
            LoraError: there are some, and `skip_bad` is off.
        """
        sentences = list(dict.fromkeys(one.sentence for one in bad))
        for one, error in {} if skip_bad else bad.items():
            self.failed = tuple(bad)
            if len(sentences) == 1 and not one.always_on:
                raise error
            raise LoraError("; ".join(sentences)) from error
        for sentence in sentences:
            logger.warning("remora: skipped: %s", sentence)
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
            line = as_in_tag(its_report.summary(), its_report, first(one).name)
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
    return lib_lora.Engine(
        host.components(),
        checkpoints=host.checkpoints(),
        storage=memory.storage,
        device_budget=memory.device_budget,
        cache_bytes=memory.cache_bytes,
        rank_buckets=lib_lora.RANK_BUCKETS if memory.round_up else (),
        parked_bytes=memory.ready_bytes,
    )


def _besides(always: Mapping[int, Wish], image: Sequence[Wish]) -> set[int]:
    """Return the positions of the always-on LoRA that an image has: all that its prompt does not name."""
    own = {wish.file for wish in image}
    return {position for position, wish in always.items() if wish.file not in own}
