"""What became of each tag: one list, which the API, the parameters text, the log and the rows of the tab read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from lib_lora import FileError, LoraError

from ..library.catalog import CatalogError
from ..text.placed import LABEL, PlacedTag
from ..text.prompt import PromptError, parse_placed
from ..text.spelling import name_of
from ..text.tag import Place, Tag

if TYPE_CHECKING:
    from lib_lora import ActivationReport, NetworkReport

    from ..library.catalog import CatalogFile
    from ..text.known import Known

State: TypeAlias = Literal["applied", "partly", "waiting", "none", "failed", "missing", "handed"]
"""What became of a tag: applied; applied in part; waiting for a pass that was not made; without effect; failed; failed
as no file has its name; handed to the web UI's own LoRA."""
_WEIGHTS: tuple[frozenset[State], ...] = (
    frozenset({"waiting", "handed"}),
    frozenset({"none"}),
    frozenset({"applied"}),
    frozenset({"partly"}),
    frozenset({"failed", "missing"}),
)
"""Of the outcomes of a tag in several passes, the last of these counts."""
_COMMENT = (
    "; if its name has a #: AUTOMATIC1111 and Forge take the rest of the line for a comment, so rename the file, or "
    "turn off “Enable comments” in their settings"
)
_CORRECT = "correct the tag, or remove it"
_UNKNOWN = "choose a name of the library, or put the file into a LoRA folder"
_FILE = "choose another file, or remove the tag"
_NAMED = "the prompt names this LoRA, and the tag of the prompt counts", "remove that tag to use this entry"
_AGAIN = "make the picture again; if it fails again, remove the tag"
_LOWER = "lower its strength"
_FITTING = "use a file that was made for this model, to have all of it"
_SET = "change the strength, the schedule or the region in the tag"
_WORDS = "it stands in the negative prompt, where tags are read as words"
_OFF = "its strength is 0", "raise its strength"
_OFF_HERE = "its strength is 0 in this pass", "raise its strength in this pass"
_WHERES = ("always", "prompt", "negative")
_OBEY = f"turn on “{LABEL}”, or write grammar=1 into the tag"


@dataclass(frozen=True)
class Active:
    """One active LoRA."""

    name: str
    """The name in its tag."""
    file: CatalogFile
    report: NetworkReport
    images: tuple[int, ...] = (0,)
    """The images of the batch that it changes."""
    places: Mapping[Place, tuple[int, ...]] = field(default_factory=dict)
    """Where its tags are written -> the images that each of them changes."""
    combined: Mapping[Place, tuple[str, CatalogFile]] = field(default_factory=dict)
    """Where the tags are written that a rule combines to it -> their names and files."""

    @property
    def parts(self) -> tuple[Active, ...]:
        """Return the LoRA that tags name: the combined ones, or itself."""
        return tuple(
            replace(self, name=name, file=file, images=self.places[place], places={place: self.places[place]})
            for place, (name, file) in self.combined.items()
            if place in self.places
        ) or (self,)


@dataclass(frozen=True)
class TagOutcome:
    """What became of one tag, or of a whole generation that failed."""

    place: Place | None
    """Where the tag is written; None if no tag is the cause."""
    name: str
    """The name in the tag; empty if no tag is the cause."""
    state: State
    reason: str = ""
    """Why it is not applied as written, without the name; empty if it is."""
    advice: str = ""
    """What to do about that."""
    sentence: str = ""
    """The reason with the name, for the log and the parameters text; empty if the user wanted it so."""
    unread: bool = False
    """The tag cannot be parsed."""
    warning: str = ""
    """Why its effect is doubtful though it is applied, without the name; empty if it is not."""
    images: tuple[int, ...] = ()
    """The images of the batch that it changes."""
    active: Active | None = field(default=None, compare=False)
    """Its LoRA; None if it is not active."""

    @classmethod
    def of_error(cls, place: Place, name: str, error: LoraError) -> TagOutcome:
        """Make one for a LoRA that failed."""
        sentence = f"of the always-on stack: {error}" if place.where == "always" else str(error)
        missing = isinstance(error, CatalogError) and not error.fits_several
        reason = error.reason if isinstance(error, (CatalogError, FileError)) else str(error)
        advice = _UNKNOWN if isinstance(error, CatalogError) else _CORRECT if isinstance(error, PromptError) else _FILE
        return cls(place, name, "missing" if missing else "failed", reason, advice, sentence)

    @classmethod
    def of_all(cls, sentence: str) -> TagOutcome:
        """Make one for a generation that failed, where no tag is the cause."""
        return cls(None, "", "failed", sentence, sentence=sentence)

    @property
    def missing(self) -> bool:
        """Return whether no file has this name."""
        return self.state == "missing"

    @property
    def always_on(self) -> bool:
        """Return whether it belongs to the always-on stack, not to a prompt."""
        return self.place is not None and self.place.where == "always"

    @property
    def written(self) -> str:
        """Return the text between `<lora:` and `>`."""
        return "" if self.place is None else self.place.written

    @property
    def asked(self) -> str:
        """Return the name in the tag, or all that a tag says which cannot be parsed."""
        return self.written if self.unread else self.name

    @property
    def is_of_a_tag(self) -> bool:
        """Return whether a tag is the cause."""
        return self.place is not None

    @property
    def weight(self) -> int:
        """Return how much it counts beside the outcomes of the same tag in other passes."""
        return weight_of(self.state)


def read_tags(
    written: Iterable[str], names: Known, default: float = 1.0, *, has_comments: bool = False
) -> tuple[list[Tag], dict[TagOutcome, LoraError], list[TagOutcome]]:
    """Parse the tags of the prompts of one image.

    Args:
        written: the texts between `<lora:` and `>`; `PlacedTag` where their places are known.
        names: the names that a tag may refer to.
        default: the multiplier of a tag without a number.
        has_comments: whether a # in the prompt begins a comment, even inside a tag.

    Returns:
        The tags, the tags that cannot be parsed with their errors, and the tags that are read as words.
    """
    tags: list[Tag] = []
    bad: dict[TagOutcome, LoraError] = {}
    words: list[TagOutcome] = []
    for number, text in enumerate(written):
        tag = PlacedTag.of(text, number)
        if tag.limits.negative and not tag.meant:
            if not tag.is_open:
                words.append(TagOutcome(tag.place, tag.name, "none", _WORDS, _OBEY, tag.unread))
            continue
        try:
            tags.append(parse_placed(tag, default, names, cut=_COMMENT if has_comments else ""))
        except LoraError as error:
            bad[TagOutcome(tag.place, name_of(tag.written), "failed", str(error), _CORRECT, str(error), True)] = error
    return tags, bad, words


def weight_of(state: State) -> int:
    """Return how much a state counts beside other states of the same tag or LoRA, in other passes."""
    return next(i for i, states in enumerate(_WEIGHTS) if state in states)


def resting(tag: Tag, place: Place, made: Set[str]) -> TagOutcome:
    """Return the outcome of a tag that is not active in the present pass.

    Args:
        tag: the tag.
        place: where it is written.
        made: the passes of the picture so far.
    """
    if tag.is_off:
        return TagOutcome(place, tag.name, "none", *_OFF, place.note)
    if not made.isdisjoint(tag.acts_in):
        return TagOutcome(place, tag.name, "none", *(_NAMED if place.where == "always" else _OFF_HERE))
    passes = ",".join(tag.acts_in)
    reason = f"it is for pass={passes}, and no such pass was made"
    advice = f"make a picture with such a pass, or change the passes of {tag.name}"
    return TagOutcome(place, tag.name, "waiting", reason, advice, f"{tag.name} has had no effect: {reason}")


def of_active(active: Active, place: Place, report: ActivationReport, index: int, advice: str = "") -> TagOutcome:
    """Return the outcome of a tag whose LoRA is the entry of the report with this index.

    The advice takes the place of the usual one; it is empty if there is no other.
    """
    state = state_at(report, index)
    reason = "" if state == "applied" else _why_not_whole(report, index)
    misfits = report.entries[index].unused or report.entries[index].hit != report.entries[index].layers
    of_part = _SET if report.without_effect(index) else _FITTING if misfits else ""  # a fault says what to do
    usual = {"applied": "", "failed": _LOWER}.get(state, of_part)
    sentence = "; ".join(filter(None, [*sentences_on(active.name, report, index), advice]))
    warning = "; ".join(filter(None, [active.report.doubt, report.unlimited.get(index)]))
    images = active.places[place]
    return TagOutcome(place, active.name, state, reason, advice or usual, sentence, False, warning, images, active)


def state_at(report: ActivationReport, index: int) -> State:
    """Return what became of one active LoRA, the entry of the report with this index."""
    entry = report.entries[index]
    if index in report.too_strong:
        return "failed"
    if index in report.idle:
        return "none"
    whole = not entry.unused and not entry.faults and entry.hit == entry.layers and not report.without_effect(index)
    return "applied" if whole else "partly"


def sentences_on(name: str, report: ActivationReport, index: int) -> tuple[str, ...]:
    """Return why the effect of an active LoRA is doubtful, with its name; empty if it is not."""
    warning, effect = report.entries[index].warning, report.without_effect(index)
    sentences = [f"{name}: {warning}"] if warning else []
    sentences += [f"{name} has {effect}"] if effect else []
    doubts = report.unlimited.get(index), report.too_strong.get(index)
    sentences += [f"{name}: {why}" for why in doubts if why]
    if not sentences and state_at(report, index) != "applied":
        sentences = [f"{name} is applied in part: {_why_not_whole(report, index)}"]
    return tuple(sentences)


def _why_not_whole(whole: ActivationReport, index: int) -> str:
    report: NetworkReport = whole.entries[index]
    partly_idle, too_strong = whole.without_effect(index), whole.too_strong.get(index, "")
    idle = whole.idle.get(index) or (f"it has {partly_idle}" if partly_idle else "")
    none = [why for why in (too_strong, idle) if why]
    fit, keys = "fits" if report.hit == 1 else "fit", "key" if len(report.unused) == 1 else "keys"
    missed = [] if report.hit == report.layers else [f"{report.hit} of {report.layers} layers {fit} this model"]
    unused = [f"{len(report.unused)} {keys} unused: {report.why()}"] if report.unused else []
    return "; ".join([*none, *report.faults, *missed, *unused])


def merged(passes: Iterable[Sequence[TagOutcome]]) -> tuple[TagOutcome, ...]:
    """Return one outcome for each tag of a picture, by the outcomes in each of its passes."""
    by_place: dict[Place, TagOutcome] = {}
    for outcome in chain.from_iterable(passes):
        place = outcome.place
        if place is None:
            continue
        known = by_place.get(place)
        if known is not None and known.weight > outcome.weight:
            known, outcome = outcome, known
        images = () if known is None else known.images
        by_place[place] = replace(outcome, images=tuple(sorted({*images, *outcome.images})))
    return tuple(outcome for place, outcome in sorted(by_place.items(), key=lambda item: _order(item[0])))


def _order(place: Place) -> tuple[int, int]:
    return _WHERES.index(place.where), place.number


def failed(outcomes: Iterable[TagOutcome], why: str) -> tuple[TagOutcome, ...]:
    """Return the outcomes of tags that were applied to a picture which was not made, or not as it should be."""
    return tuple(
        replace(outcome, state="failed", reason=why, advice=_AGAIN, sentence=f"{outcome.name}: {why}")
        if outcome.state in ("applied", "partly")
        else outcome
        for outcome in outcomes
    )
