"""The generations of one host: what its pictures ask for is activated on its model, pass by pass, and recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lib_lora import ActivationError, ActivationReport, LoraError, Stack, StackError

from ..hosts.base import uninterrupted
from ..kept.always_on import AlwaysOnFile
from ..kept.block_presets import BlockPresetsFile
from ..kept.presets import PresetsFile
from ..kept.region_files import RegionFiles
from ..library.catalog import Catalog
from ..outputs import Outputs
from ..text.known import Known
from ..text.prompt import parse_arguments
from ..text.tag import Place, Tag
from .activation import Activation, Passes, as_in_tag
from .batch import Shared, combined, entry_of, first, gather, places, text_keys
from .combined import Combiner
from .log import OnceLog
from .measured import LayerInputs
from .outcomes import Active, TagOutcome, resting
from .record import Record, used_loras
from .request import USUAL, Request, Settings, placed
from .served import ServedModel
from .wishes import find_wishes

if TYPE_CHECKING:
    from ..hosts import Host

logger = logging.getLogger(__name__)

_SAVED = 3.0  # seconds after a picture was made, in which its file is written


class Session:
    """Takes the pictures of one host from their tags to active LoRA; one generation uses it at a time.

    The methods stand in the order of a generation: a batch begins, further passes and other models follow, it ends.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.catalog = Catalog(host.adapter_dirs, host.data_dir, host.own_choice, lambda: self.is_making)
        self.always_on = AlwaysOnFile(host.data_dir)
        self.presets = PresetsFile(host.data_dir)
        self.block_presets = BlockPresetsFile(host.data_dir, host.block_preset_files)
        self.regions = RegionFiles(host.data_dir)
        self.model = ServedModel(host)
        self.combiner = Combiner(host, self.catalog, self.model)
        self.inputs = LayerInputs()
        self.log = OnceLog()
        self.record = Record()
        """The pictures of this session."""
        self.outputs = Outputs(host.output_dirs, host.data_dir, lambda: self.is_making)
        """The pictures in the host's output folders."""
        self.passes = Passes()
        """The passes of the latest pictures."""
        self.failed: tuple[TagOutcome, ...] = ()
        """Why the generation after that was stopped, one for each LoRA; empty if it was not."""
        self.is_making = False
        """Whether pictures are being made, with or without LoRA."""
        self._batch: Request | None = None  # active, or for a model that is loaded during a generation

    @property
    def names(self) -> Known:
        """Return what a tag may refer to by name."""
        return Known(self.block_presets.all, self.regions.all)

    @property
    def last(self) -> Activation:
        """Return the LoRA of the latest pass."""
        return self.passes.latest

    @property
    def outcomes(self) -> tuple[TagOutcome, ...]:
        """Return what became of each tag of the latest pictures; of a stopped generation, only those that failed."""
        return self.failed or self.passes.outcomes

    # --- a batch begins ---

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

    def begin_batch(
        self,
        images: Sequence[Sequence[Tag]],
        settings: Settings = USUAL,
        always: Sequence[Tag] = (),
        seeds: Sequence[int] = (),
        at: str = "base",
        apart: Sequence[TagOutcome] = (),
        steps: int | None = None,
        goes_on: Callable[[str], bool] = uninterrupted,
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
            steps: of the first pass; None if unknown.
            goes_on: as `hosts.Batch.goes_on`.

        Raises:
            NotMadeError: the user interrupted it; the previous LoRA stay active.
            LoraError: a name or a file failed and `settings` do not skip it; likewise.
        """
        asked = tuple(placed(tags, "prompt") for tags in images)
        batch = Request(asked, settings, placed(always, "always"), tuple(seeds), at, tuple(apart), steps, goes_on)
        self._note_outcome()
        self.failed = ()
        try:
            activation = self._put_in_force(batch)
        except LoraError as error:
            self.failed = self.failed or (TagOutcome.of_all(str(error)),)
            raise
        self._batch, self.is_making = batch, True
        self._begin_pass(at, activation)
        if at == "base":
            self.inputs.begin(self.model.components)
            self.record.begin(batch.seeds, used_loras(activation, batch))
        self.catalog.used({one.file for active in activation.active for one in active.parts})
        return activation

    def _put_in_force(self, batch: Request) -> Activation:
        """Take a batch from its tags to active LoRA."""
        self._read_report()
        batch, limited = batch.limited() if batch.settings.limited else (batch, ())
        left_out = [*batch.apart, *batch.strays()]
        for note in (*limited, *(one.sentence for one in left_out if one.state == "none")):
            self.log.say(note)
        wishes = find_wishes(batch, self.catalog)
        left_out += self.skip_or_raise(wishes.failed, batch.settings.skip_bad)
        images, of_rules = self.combiner.combine(wishes.images, batch)
        entries = gather(images, in_order=batch.settings.in_order)
        report, stack = self._activate_what_can_be(entries, len(wishes.images), batch, left_out)
        active = tuple(
            Active(first(one).name, first(one).file, its_report, tuple(one), places(one), combined(one))
            for one, its_report in zip(entries, report.entries, strict=True)
        )
        named = [one for of_entry in active for one in of_entry.parts]
        files = {one.file for one in named}
        hints = [place.note for one in active for place in one.places if place.note]
        kept = (*self._lend_embeddings(active), *batch.unreached(), *of_rules)
        several = tuple(dict.fromkeys(filter(None, (self.catalog.names.note_on(one.name) for one in named))))
        for note in (*hints, *kept, *several):
            self.log.say(note)
        return Activation(
            active=active,
            left_out=tuple(left_out),
            resting=self._resting(batch, active, left_out),
            report=report,
            notes=(*limited, *batch.of_all_noise(self.model.components.keys()), *kept),
            kept=kept,
            several=several,
            text_keys=_text_keys(self.model.components, stack, active, batch.settings),
            always={position: wish.file for position, wish in wishes.always.items() if wish.file in files},
        )

    def _activate_what_can_be(
        self, entries: list[Shared], images: int, batch: Request, left_out: list[TagOutcome]
    ) -> tuple[ActivationReport, Stack]:
        """Activate; an entry that fails is removed and reported, or stops the job, as the settings say."""
        while True:
            try:
                return self._activate(entries, images, batch.settings)
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

    def _activate(self, entries: Sequence[Shared], images: int, settings: Settings) -> tuple[ActivationReport, Stack]:
        stack = Stack(
            [entry_of(one, images) for one in entries],
            mode=settings.mode,
            in_order=settings.in_order,
            reading=settings.reading,
        )
        report = self.model.engine_with(settings.memory).activate(stack)
        for one, its_report in zip(entries, report.entries, strict=True):
            doubtful = its_report.warning or its_report.unused
            line = as_in_tag(its_report.summary(), its_report, first(one).name)
            self.log.say(line, logging.WARNING if doubtful else logging.INFO, first(one).file)
        if report.merging:
            self.log.say(report.merging, logging.INFO)
        return report, stack

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

    def _lend_embeddings(self, active: Sequence[Active]) -> tuple[str, ...]:
        """Give the host the bundled embeddings; return one sentence for each that cannot be used."""
        try:
            return tuple(self.model.lend_embeddings(active))
        except BaseException:
            self.end()
            raise

    def _resting(
        self, batch: Request, active: Sequence[Active], left_out: Sequence[TagOutcome]
    ) -> tuple[TagOutcome, ...]:
        """Return the outcomes of the tags that are neither active nor left out."""
        others = {place for one in active for place in one.places} | {one.place for one in left_out}
        made = {batch.at} if batch.at == "base" else {*self.passes.made, batch.at}
        return tuple(resting(tag, place, made) for place, tag in batch.every.items() if place not in others)

    def _begin_pass(self, at: str, activation: Activation) -> None:
        """Note a pass; a base pass starts other pictures."""
        if at == "base":
            self.passes = Passes()
        self.passes.begin(at, activation)

    def hand_over(self, tags: Sequence[TagOutcome], at: str = "base") -> None:
        """Note the tags of a pass in which Remora applies none."""
        self.failed = ()
        self._begin_pass(at, Activation(resting=tuple(tags)))

    # --- it goes on ---

    def use_image(self, index: int | None) -> None:
        """Make the text encoders use the LoRA of one image of the batch; None, of the image of each row."""
        if self.model.engine is not None:
            self.model.engine.use_image(index if self.last.images > 1 else None)

    def follow_model(self, at: str | None = None) -> bool:
        """Activate the latest batch on the host's present model; tell whether the model is another one.

        Args:
            at: the pass that runs now; None if it is unchanged.

        Raises:
            LoraError: the activation failed on this model, and the settings do not skip the LoRA.
        """
        former = self._batch
        if former is not None and at is not None:
            if at != former.at:
                self._note_outcome()
            self._batch = replace(former, at=at)
        if self.model.engine is not None and self.model.is_served:
            self.model.engine.reattach()
            if self._batch != former:
                self._go_on()
            return False
        self._read_report()
        self.model.leave()
        self._go_on()
        return True

    def _go_on(self) -> None:
        """Activate the latest batch in another pass of its pictures, or on another model."""
        if self._batch is not None:
            self.passes.begin(self._batch.at, self._put_in_force(self._batch))

    def go_on_with(self, passes: Passes) -> None:
        """Count the latest pass among these, whose pictures go on after others were made in between."""
        if passes is not self.passes and passes.made and self._batch is not None:
            passes.begin(self._batch.at, self.last)
            self.passes = passes

    def model_changed(self) -> None:
        """Leave the model; `follow_model` or the next batch uses the new one."""
        batch = self._batch
        self.model.fault = ""
        self.close()
        self._batch = batch
        logger.debug("remora: serving %s", ", ".join(self.model.components) or "no model")

    # --- it ends ---

    def warnings(self, passes: Passes | None = None) -> Sequence[str]:
        """Return why the effect of LoRA is doubtful; complete only after the model was called.

        Args:
            passes: of the pictures; None means the latest.
        """
        self._read_report()
        return (self.passes if passes is None else passes).sentences

    def _read_report(self) -> None:
        """Take over what the model's calls have shown."""
        engine = self.model.engine
        if engine is not None and engine.stack.entries and self.last.active:
            self.passes.latest = replace(self.last, report=engine.report)

    def _note_outcome(self) -> None:
        """Tell the record what the first pass has shown of its LoRA; later passes have LoRA of their own."""
        if self._batch is not None and self.passes.made == {"base"}:
            self._read_report()
            self.record.tell(used_loras(self.last, self._batch))

    def ended_by(self, error: BaseException) -> None:
        """Note that an error ended the generation: its LoRA have not made the pictures."""
        if not self.failed:
            self.passes.error = f"no picture was made: {type(error).__name__}: {error}"

    def pictures_made(self, pictures: Sequence[tuple[int, Any]]) -> None:
        """Record the pictures of a generation that ended, by seed and image; without any it made none."""
        self.is_making = False
        self.inputs.end()
        self._note_outcome()
        self.record.made(pictures)
        self.outputs.ask(_SAVED)

    def end(self) -> None:
        """Deactivate all LoRA; the model is as it was without any."""
        self.is_making = False
        self.inputs.end()
        self._note_outcome()
        self._batch = None
        told = {one.sentence for activation in self.passes.activations for one in activation.left_out}
        for sentence in self.warnings():
            if sentence not in told:
                self.log.say(sentence)
        if self.model.engine is not None and self.model.engine.stack.entries:
            self.model.look_for_layers()
        self.model.deactivate()

    def close(self) -> None:
        """Remove everything from the model; a later batch starts again."""
        try:
            self.end()
        finally:
            self.model.leave()


def _text_keys(
    components: Collection[str], stack: Stack, active: Sequence[Active], settings: Settings
) -> tuple[Hashable, ...]:
    """Return for each image a key of what changes the text encoders' output."""
    texts = [name for name in components if name.startswith("text_encoder")]
    how = settings.in_order, settings.mode, settings.memory.storage, settings.reading
    of_images = text_keys(stack, [lora.file for lora in active], texts, [lora.report.components for lora in active])
    return tuple((how, key) if key else () for key in of_images)
