"""What is wrong with a file, by its measures. Each verdict names the measure and its value, and what to do.

docs/doctor.md has the thresholds, how they were set, and how often each verdict was right on files that were spoiled on
purpose. A verdict that counts numbers of the file is certain; any other one is a hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isclose, isfinite, sqrt
from typing import NamedTuple

from ..errors import OneLine
from .figures import KEPT, spikes, usual_spectral
from .measures import FileMeasures, LayerMeasures, PartMeasures


class Published(NamedTuple):
    """A range that others give for a measure."""

    measure: str
    low: float | None
    high: float
    source: str
    address: str

    def __str__(self) -> str:
        span = f"at most {self.high:g}" if self.low is None else f"{self.low:g} to {self.high:g}"
        return f"Published for the {self.measure}: {span} ({self.source})."


_KOHYA = "sd-scripts", "https://github.com/kohya-ss/sd-scripts/blob/main/docs/train_network.md"
_SCALE, _RANK = Published("scale", 0.5, 1, *_KOHYA), Published("rank", 4, 128, *_KOHYA)
_KREA = "ai-toolkit, issue 964", "https://github.com/ostris/ai-toolkit/issues/964"
PUBLISHED: Mapping[str, Published] = {
    "alpha": _SCALE,
    "no_scale": _SCALE,
    "resized": _RANK,
    "spike": Published("spectral norm", None, 5, *_KREA),
    "spare_rank": _RANK,
}
"""Verdict -> the range of its measure that others give."""
_FIGURES = {"strong": "norm", "weak": "norm", "no_scale": "alpha"}
"""Verdict -> the figure that it judges, where that has another name."""
ABOVE = 25
"""A spike is so many times the file's median spectral norm."""
DOMINANT, MANY = 0.3, 12
"""A layer dominates that has this share of the energy of a file of so many layers or more."""
STRONG, WEAK = 1.5, 0.01
"""Norm against the base weights above which a file is likely too strong, and below which it hardly acts."""
TEXT_ENCODER = 0.5
"""The share of the text encoders in a file that changes the denoiser, too, from which they lead."""
SPARE = 2
"""How many times lower a rank that keeps nearly all energy must be to be worth a hint."""
_ALL = 0.999
"""The share of the energy of some blocks from which no weight for them changes the shares of their layers."""
_LARGEST = 10.0
"""The strength that no advice is above: beyond it there are no pictures."""
_SHOWN = 3


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(OneLine):
    """One thing that is wrong, or may be."""

    name: str
    """For programs; the same in all versions."""
    sure: bool
    """Whether it counts numbers of the file; else it is a hint."""
    measure: str
    value: str
    advice: str
    layers: tuple[str, ...] = ()
    """Or keys."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers in `value` and `advice`, by name, for programs that say it in their own words."""
    blocks: tuple[str, ...] = ()
    """The blocks, or the text encoders, that `advice` weakens."""

    @property
    def published(self) -> Published | None:
        """Return the range that others give for its measure."""
        return PUBLISHED.get(self.name)

    @property
    def figure(self) -> str:
        """Return the name of the figure that it judges, see `figures_of`."""
        return _FIGURES.get(self.name, self.name)

    def __str__(self) -> str:
        more = f" and {len(self.layers) - _SHOWN} more" if len(self.layers) > _SHOWN else ""
        where = f" ({', '.join(self.layers[:_SHOWN])}{more})" if self.layers else ""
        source = "" if self.published is None else f" {self.published}"
        return f"{'' if self.sure else 'hint: '}{self.measure} {self.value}{where}. {self.advice}{source}"

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        published = None if self.published is None else self.published._asdict()
        return {**asdict(self), "numbers": dict(self.numbers), "figure": self.figure, "published": published}


def verdicts(file: FileMeasures) -> list[Verdict]:
    """Return the verdicts on a file, the certain ones first."""
    found = [*_numbers(file), *_scale(file), *_strength(file), *_layers(file), *_parts(file)]
    return sorted(found, key=lambda one: not one.sure)


def _numbers(file: FileMeasures) -> Iterator[Verdict]:
    """Judge the numbers of the file."""
    bad, clipped = file.file.not_finite, file.clipped
    if bad:
        advice = "Download it again, or ask its author: Remora leaves these layers out."
        value, numbers = _tensors(len(bad))
        yield Verdict("not_finite", True, "NaN or infinite numbers in", value, advice, bad, numbers)
    if clipped:
        advice = "Larger numbers were cut when it was saved. Ask its author for the file in bfloat16 or float32."
        value, numbers = _tensors(len(clipped))
        yield Verdict("clipped", True, "the largest number of the dtype in", value, advice, clipped, numbers)
    dead = [one for one in file.layers if one.is_dead]
    if dead:
        all_dead = len(dead) == len(file.layers)
        advice = "It changes nothing: its training failed." if all_dead else "These layers were not trained."
        value = f"{len(dead)} of {len(file.layers)}"
        numbers = {"count": len(dead), "total": len(file.layers)}
        yield Verdict("dead", True, "layers that change nothing:", value, advice, _names(dead), numbers)


def _scale(file: FileMeasures) -> Iterator[Verdict]:
    """Judge alpha and rank by what the header says."""
    said = file.file.report.metadata
    plain = [
        (group, one.file.numbers)
        for one in file.file.files
        for group in one.groups
        if group.recipe is not None and group.recipe.kind.name in ("lora", "loha")
    ]
    alpha, rank = _number(said.get("ss_network_alpha")), _number(said.get("ss_network_dim"))
    stored = {(numbers.get(group.keys.get("alpha", "")), group.rank) for group, numbers in plain}
    scales = {one / own for one, own in stored if one is not None and own}
    by_header = alpha / rank if alpha and rank else 0.0
    if scales and by_header and not any(isclose(by_header, one, rel_tol=0.01) for one in scales):
        value = f"{' or '.join(f'{one:.3g}' for one in sorted(scales)[:_SHOWN])}, and {by_header:.3g} by the header"
        factors = " or ".join(f"{by_header / one:.3g}" for one in sorted(scales)[:_SHOWN])
        advice = f"If it is too strong or too weak, multiply its strength by {factors}."
        both = {"low": min(scales), "high": max(scales), "said": by_header}
        yield Verdict("alpha", False, "alpha divided by rank is", value, advice, numbers=both)
    ranks = {group.rank for group, _ in plain if group.rank is not None}
    if ranks and rank and rank not in ranks:
        own = " to ".join(dict.fromkeys(map(str, (min(ranks), max(ranks)))))
        value = f"{own} in the tensors, {rank:g} in the header"
        advice = "It was resized or merged after the training."
        both = {"low": min(ranks), "high": max(ranks), "said": rank}
        yield Verdict("resized", False, "the rank is", value, advice, numbers=both)
    if "guess" in file.file.report.scales:
        advice = "If it is too strong or too weak, give its alpha."
        yield Verdict("no_scale", False, "the scale is", "unknown, and taken as 1", advice)


def _strength(file: FileMeasures) -> Iterator[Verdict]:
    """Judge the size of the change against the base weights."""
    relative = file.relative
    if relative is None:
        return
    if relative > STRONG:
        advice = f"Try the strength {1 / relative:.2g}, or an earlier epoch."
        value, numbers = f"{relative:.0%}", {"relative": relative, "strength": 1 / relative}
        yield Verdict("strong", False, "the norm against the base weights is", value, advice, numbers=numbers)
    if 0 < relative < WEAK:
        strength, advice = WEAK / relative, "A wrong alpha or a training that was too short may be the cause."
        if strength <= _LARGEST:
            advice = f"At the strength {strength:.2g} it has {WEAK:.0%}. {advice}"
        value, numbers = f"{relative:.2%}", {"relative": relative, "strength": strength}
        yield Verdict("weak", False, "the norm against the base weights is", value, advice, numbers=numbers)


def _layers(file: FileMeasures) -> Iterator[Verdict]:
    """Judge single layers."""
    usual = usual_spectral(file)
    spiked = [one for one in spikes(file) if one.spectral > ABOVE * usual > 0]
    if spiked:
        largest, blocks = max(one.spectral for one in spiked), _blocks(spiked)
        times = largest / usual
        value = f"up to {largest:.3g}, {times:.0f} times the file's median, in one direction"
        advice = (
            f"Several such files together may break the picture. In a stack, weaken {', '.join(blocks)} to "
            f"{ABOVE / times:.2g}: it is {ABOVE} times the median then."
        )
        numbers = {"times": times, "largest": largest, "weight": ABOVE / times, "left": ABOVE}
        yield Verdict("spike", False, "the spectral norm is", value, advice, _names(spiked), numbers, blocks)
    by_layer = file.parts(lambda one: one.layer.name)
    leading = {name: part for name, part in by_layer.items() if file.share(part) > DOMINANT}
    if leading and len(by_layer) >= MANY:
        yield _dominant(file, leading)


def _dominant(file: FileMeasures, leading: Mapping[str, PartMeasures]) -> Verdict:
    """Return the verdict on layers that have most of the energy, with the weight at which the largest has not."""
    share = max(file.share(part) for part in leading.values())
    blocks = _blocks([one for part in leading.values() for one in part.layers])
    of_blocks = sum(file.share(part) for name, part in file.by_block().items() if name in blocks)
    numbers, advice = {"share": share}, "Try an earlier epoch."
    if of_blocks < _ALL:
        # after a weight w, the share is share w^2 / (1 - of_blocks + of_blocks w^2)
        weight = sqrt(DOMINANT * (1 - of_blocks) / (share - DOMINANT * of_blocks))
        numbers |= {"weight": weight, "left": DOMINANT}
        advice = f"Weaken {', '.join(blocks)} to {weight:.2g}, where it has {DOMINANT:.0%}, and see if that is better."
    value = f"{share:.0%} of the energy"
    return Verdict("dominant", False, "one layer has", value, advice, tuple(leading), numbers, blocks)


def _parts(file: FileMeasures) -> Iterator[Verdict]:
    """Judge what could be left out."""
    share = file.text_encoder_share
    if TEXT_ENCODER < share < 1:
        strength = sqrt((1 - share) / share)
        advice = f"At {strength:.2g} times the strength for the text encoders alone, they have half. Try it."
        value, numbers = f"{share:.0%} of the energy", {"share": share, "strength": strength}
        yield Verdict("text_encoder", False, "the text encoders have", value, advice, numbers=numbers)
    rank, needed = file.rank, file.rank_for(KEPT)
    if needed and needed * SPARE <= rank:
        advice = f"Resized to rank {needed}, the file would be smaller and hardly different."
        value, numbers = f"rank {needed} of {rank}", {"needed": needed, "rank": rank}
        yield Verdict("spare_rank", False, "99% of the energy are in", value, advice, numbers=numbers)


def _block(one: LayerMeasures) -> str:
    """Return the block of a layer; its component where it is in none."""
    return one.layer.block or one.layer.component


def _blocks(layers: list[LayerMeasures]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_block, layers)))


def _names(layers: list[LayerMeasures]) -> tuple[str, ...]:
    return tuple(one.layer.name for one in layers)


def _tensors(count: int) -> tuple[str, Mapping[str, float]]:
    return f"{count} {'tensor' if count == 1 else 'tensors'}", {"count": count}


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if isfinite(number) else None
