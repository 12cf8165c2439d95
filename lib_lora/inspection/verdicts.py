"""What is wrong with a file, by its measures. Each verdict names the measure and its value, and what to do.

docs/doctor.md has the thresholds, how they were set, and how often each verdict was right on files that were spoiled on
purpose. A verdict that counts numbers of the file is certain; any other one is a hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isclose, isfinite
from statistics import median

from ..errors import OneLine
from .measures import FileMeasures, LayerMeasures

SPIKE, ABOVE = 0.8, 25
"""A layer has a spike where one singular value has this share of its energy, and is so many times the file's median
spectral norm."""
PUBLISHED = 5
"""The spectral norm to which https://github.com/ostris/ai-toolkit/issues/964 clips layers."""
DOMINANT, MANY = 0.3, 12
"""A layer dominates that has this share of the energy of a file of so many layers or more."""
STRONG, WEAK = 1.5, 0.01
"""Norm against the base weights above which a file is likely too strong, and below which it hardly acts."""
TEXT_ENCODER = 0.5
"""The share of the text encoders in a file that changes the denoiser, too, from which they lead."""
KEPT, SPARE = 0.99, 2
"""The energy that a lower rank must keep, and how many times lower it must be, to be worth a hint."""
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

    def __str__(self) -> str:
        more = f" and {len(self.layers) - _SHOWN} more" if len(self.layers) > _SHOWN else ""
        where = f" ({', '.join(self.layers[:_SHOWN])}{more})" if self.layers else ""
        return f"{'' if self.sure else 'hint: '}{self.measure} {self.value}{where}. {self.advice}"

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        return {**asdict(self), "numbers": dict(self.numbers)}


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
    said, groups = file.file.report.metadata, file.file.parsed.groups
    plain = [group for group in groups if group.recipe is not None and group.recipe.kind.name in ("lora", "loha")]
    numbers = file.file.parsed.file.numbers
    alpha, rank = _number(said.get("ss_network_alpha")), _number(said.get("ss_network_dim"))
    stored = {(numbers.get(group.keys.get("alpha", "")), group.rank) for group in plain}
    scales = {one / own for one, own in stored if one is not None and own}
    by_header = alpha / rank if alpha and rank else 0.0
    if scales and by_header and not any(isclose(by_header, one, rel_tol=0.01) for one in scales):
        value = f"{' or '.join(f'{one:.3g}' for one in sorted(scales)[:_SHOWN])}, and {by_header:.3g} by the header"
        advice = "kohya recommends 0.5 to 1. If it is too strong or too weak, multiply its strength by the quotient."
        both = {"low": min(scales), "high": max(scales), "said": by_header}
        yield Verdict("alpha", False, "alpha divided by rank is", value, advice, numbers=both)
    ranks = {group.rank for group in plain if group.rank is not None}
    if ranks and rank and rank not in ranks:
        value = f"{min(ranks)} to {max(ranks)} in the tensors, {rank:g} in the header"
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
        advice = "It hardly acts. A wrong alpha or a training that was too short may be the cause."
        value, numbers = f"{relative:.2%}", {"relative": relative}
        yield Verdict("weak", False, "the norm against the base weights is", value, advice, numbers=numbers)


def _layers(file: FileMeasures) -> Iterator[Verdict]:
    """Judge single layers."""
    usual = median([one.spectral for one in file.layers] or [0.0])
    spiked = [one for one in file.layers if one.first_share > SPIKE and one.spectral > ABOVE * usual > 0]
    if spiked:
        largest = max(one.spectral for one in spiked)
        value = f"up to {largest:.3g}, {largest / usual:.0f} times the file's median, in one direction"
        advice = (
            f"A report on Krea 2 takes {PUBLISHED} as a limit (ai-toolkit, issue 964). Several such files together may "
            "break the picture. Lower their strengths in a stack."
        )
        numbers = {"times": largest / usual, "largest": largest}
        yield Verdict("spike", False, "the spectral norm is", value, advice, _names(spiked), numbers)
    by_layer = file.parts(lambda one: one.layer.name)
    shares = {name: file.share(part) for name, part in by_layer.items()}
    leading = [name for name, share in shares.items() if share > DOMINANT] if len(shares) >= MANY else []
    if leading:
        share = max(shares.values())
        value = f"{share:.0%} of the energy"
        advice = "Lower the weight of its block, and see whether the picture is better."
        yield Verdict("dominant", False, "one layer has", value, advice, tuple(leading), {"share": share})


def _parts(file: FileMeasures) -> Iterator[Verdict]:
    """Judge what could be left out."""
    share = file.text_encoder_share
    if TEXT_ENCODER < share < 1:
        advice = "Try a lower strength for the text encoder alone."
        value = f"{share:.0%} of the energy"
        yield Verdict("text_encoder", False, "the text encoders have", value, advice, numbers={"share": share})
    rank, needed = file.rank, file.rank_for(KEPT)
    if needed and needed * SPARE <= rank:
        advice = f"Resized to rank {needed}, the file would be smaller and hardly different."
        value, numbers = f"rank {needed} of {rank}", {"needed": needed, "rank": rank}
        yield Verdict("spare_rank", False, "99% of the energy are in", value, advice, numbers=numbers)


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
