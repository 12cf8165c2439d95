"""The LoRA of a generation, pass by pass."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lib_lora import ActivationReport

from .outcomes import Active, TagOutcome, failed, merged, of_active, sentences_on

if TYPE_CHECKING:
    from lib_lora import NetworkReport

    from ..library.catalog import CatalogFile


@dataclass(frozen=True)
class Activation:
    """The LoRA of one pass of a generation."""

    active: tuple[Active, ...] = ()
    left_out: tuple[TagOutcome, ...] = ()
    """The tags that cannot be applied."""
    resting: tuple[TagOutcome, ...] = ()
    """The tags that do not act in this pass: as they say, or as the web UI's own LoRA gets them."""
    report: ActivationReport = field(default_factory=lambda: ActivationReport(()))
    """The engine's report on `active` and on merging."""
    notes: tuple[str, ...] = ()
    """One sentence for each bundled embedding that cannot be used, each schedule that goes on beyond the last step,
    each strength that was limited, and each noise that the model has no denoiser of its own for.
    """
    kept: tuple[str, ...] = ()
    """The notes on embeddings and schedules, which the parameters text of a picture has, too."""
    several: tuple[str, ...] = ()
    """One sentence for each tag that fits several files."""
    text_keys: tuple[Hashable, ...] = ((),)
    """For each image, a key of what changes the text encoders' output."""
    advice: Mapping[int, str] = field(default_factory=dict)
    """Position of each LoRA without effect because of the web UI -> what to do."""
    always: Mapping[int, CatalogFile] = field(default_factory=dict)
    """Position -> file of the always-on LoRA that are active for some image."""

    @property
    def outcomes(self) -> tuple[TagOutcome, ...]:
        """Return what became of each tag in this pass."""
        acting = [
            of_active(one, place, self.report, index, self.advice.get(index, ""))
            for index, of_entry in enumerate(self.active)
            for one in of_entry.parts
            for place in one.places
        ]
        return (*acting, *self.left_out, *self.resting)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return one sentence for each LoRA that was left out, once each."""
        return tuple(dict.fromkeys(outcome.sentence for outcome in self.left_out))

    @property
    def hints(self) -> tuple[str, ...]:
        """Return one sentence for each tag whose place in its prompt has no effect."""
        return tuple(place.note for one in self.active for place in one.places if place.note)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one sentence per LoRA of doubtful effect, and one on layers that were never called."""
        told = [(sentences_on(one.name, self.report, i), self.advice.get(i)) for i, one in enumerate(self.active)]
        found = [f"{text}; {advice}" if advice else text for texts, advice in told for text in texts]
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

    def advice_on(self, components: Collection[str], advice: str) -> Mapping[int, str]:
        """Return the advice for each LoRA that changes nothing but components which the web UI leaves alone."""
        return {i: advice for i in self.report.idle if advice and self.active[i].report.components.issubset(components)}

    def far_off(self, steps: int | None, cfg: float | None) -> tuple[str, ...]:
        """Return one sentence for each distilled LoRA that was made for other steps or another CFG scale.

        Args:
            steps: of the pictures; None if unknown.
            cfg: the CFG scale; None if unknown.
        """
        from lib_lora.inspection.distilled import distilled  # not at the start of a web UI

        active = [one for of_entry in self.active for one in of_entry.parts]
        own = [(one.name, one.file.path.stem, one.report.metadata) for one in active]
        found = [(name, distilled(name, stem, header=header)) for name, stem, header in own]
        return tuple(f"{name} {text}" for name, made in found if made and (text := made.warning(steps, cfg)))

    def lines(self) -> tuple[str, ...]:
        """Return one line per LoRA, with its name as in the tag, and one on merging if it was requested."""
        lines = self.report.summary().splitlines()
        named = [as_in_tag(line, one.report, one.name) for one, line in zip(self.active, lines, strict=False)]
        return (*named, *lines[len(named) :])


@dataclass(eq=False)
class Passes:
    """The passes of the pictures of one batch, and what became of their tags."""

    activations: list[Activation] = field(default_factory=lambda: [Activation()])
    """The latest last."""
    made: set[str] = field(default_factory=set)
    """The names of the passes."""
    error: str = ""
    """The error that ended the generation."""

    @property
    def latest(self) -> Activation:
        """Return the LoRA of the latest pass."""
        return self.activations[-1]

    @latest.setter
    def latest(self, activation: Activation) -> None:
        self.activations[-1] = activation

    def begin(self, at: str, activation: Activation) -> None:
        """Add a pass; the first one takes the place of the empty one."""
        is_first = not self.made
        self.made.add(at)
        self.activations[-1 if is_first else len(self.activations) :] = [activation]

    def note(self, sentence: str) -> None:
        """Add a sentence about the present pictures."""
        self.latest = replace(self.latest, notes=(*self.latest.notes, sentence))

    def follow(self, former: Iterable[Passes]) -> None:
        """Count the passes of earlier batches of the same job, too."""
        for passes in reversed(list(former)):
            self.activations[:0] = passes.activations
            self.made |= passes.made

    @property
    def outcomes(self) -> tuple[TagOutcome, ...]:
        """Return one outcome for each tag."""
        found = merged(activation.outcomes for activation in self.activations)
        return failed(found, self.why) if self.why else found

    @property
    def why(self) -> str:
        """Return why the pictures were not made, or not as they should be; empty if nothing is known."""
        return self.error or next(filter(None, (one.report.broken for one in self.activations)), "")

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return one sentence for each LoRA without the effect that its tag asks for, once each."""
        found = [text for one in self.activations for text in (*one.warnings, *one.kept)]
        found += [one.sentence for one in self.outcomes if one.active is None or self.why]
        found += [text for one in self.activations for text in (*one.hints, *one.several)]
        return tuple(dict.fromkeys(filter(None, found)))


def as_in_tag(line: str, report: NetworkReport, name: str) -> str:
    """Return a line of a report with the name as in the tag: two files may have one name in two folders."""
    return name + line.removeprefix(report.name)
