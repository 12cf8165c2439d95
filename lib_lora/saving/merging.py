"""Changes of several files merged to one change of a weight, by the rules and names of PEFT's `add_weighted_adapter`.

A rule takes the tensors of all files for one place: one factor of a pair, or the whole change of a weight. Ties in
size, rounding and order of drawing are PEFT's, so that equal tensors and an equal seed give equal results.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import NoneType
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..adapters.base import Factors
from ..adapters.lora import LoRA
from ..errors import StackError, check_choice, check_count, check_type, printed, shown
from ..stack import Stack
from ..strengths.strength import Moment
from .changes import ActingAdapter, StackChanges, StackWeight
from .difference import Difference

RULES = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")
How = Literal[
    "sum",
    "cat",
    "svd",
    "linear",
    "ties",
    "ties_svd",
    "dare_linear",
    "dare_linear_svd",
    "dare_ties",
    "dare_ties_svd",
    "magnitude_prune",
    "magnitude_prune_svd",
    "orthogonal",
]
"""PEFT's names; `sum` is another name of `cat`, and PEFT has no `orthogonal`."""
_SHARED = 1e-12
"""The share of its square below which what is left of a change is taken for the rounding of fp32 sources."""


def merge_tensors(
    tensors: Sequence[Tensor], strengths: Sequence[float], rule: str, density: float, generator: torch.Generator
) -> Tensor:
    """Merge tensors of one shape.

    Args:
        tensors: one of each file.
        strengths: of each file.
        rule: one of RULES.
        density: the share of entries that each tensor keeps, above 0 and at most 1. `linear` keeps all.
        generator: draws the entries that the DARE rules keep.
    """
    kept = list(tensors)
    if density < 1.0 and rule.startswith("dare"):
        kept = [_random(one, density, generator) for one in kept]
    elif density < 1.0 and rule != "linear":
        kept = [_largest(one, density) for one in kept]
    whole = torch.stack(kept)
    kept.clear()
    factors = torch.tensor(strengths, dtype=whole.dtype).reshape(-1, *[1] * (whole.dim() - 1))
    if not rule.endswith("ties"):
        return whole.mul_(factors).sum(0)
    agree = whole.sign() == torch.where(whole.sum(0) >= 0, 1, -1)  # the sign is elected before the strengths count
    return whole.mul_(factors).mul_(agree).sum(0) / agree.sum(0).clamp_min(1)


def orthogonal_factors(gram: Tensor) -> list[float]:
    """Return the factors of a sum of changes, each less its parts along the former ones.

    With the inner product <A, B>, the sum of the products of their entries, the first is Q1 = D1, and each later one
    Qi = Di - sum over j < i of <Di, Qj> / <Qj, Qj> Qj. The factors f make Q1 + Q2 + ... = f1 D1 + f2 D2 + ...

    Args:
        gram: the inner products of all changes, (n, n).
    """
    rows = torch.eye(len(gram), dtype=gram.dtype)
    for i, own in enumerate(gram):
        for j, former in enumerate(rows[:i]):
            square = former @ gram @ former
            if square > _SHARED * gram[j, j]:
                rows[i] -= (own @ former) / square * former
    return rows.sum(0).tolist()


def _largest(tensor: Tensor, density: float) -> Tensor:
    flat = tensor.flatten()
    places = flat.abs().topk(int(density * flat.numel()), sorted=False).indices
    return torch.zeros_like(flat).index_copy(0, places, flat[places]).reshape(tensor.shape)


def _random(tensor: Tensor, density: float, generator: torch.Generator) -> Tensor:
    return tensor * torch.bernoulli(torch.full_like(tensor, density), generator=generator) / density


@dataclass(frozen=True, slots=True)
class Combination:
    """The way in which files are combined.

    Raises:
        StackError: there is no such way, or the density does not belong to it.
        ArgumentError: an argument is of another type.
    """

    how: How = "sum"
    density: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.how, get_args(How), "how")
        check_count(self.seed, "seed")
        check_type(self.density, (float, int, NoneType), "density", "a number, as 0.5, or None")
        prunes = self.rule not in (None, "linear")
        if prunes and self.density is None:
            raise StackError(f"how={self.how!r} keeps a share of the numbers; give it, as density=0.5")
        if not prunes and self.density is not None:
            raise StackError(f"how={self.how!r} keeps all numbers; leave density out")
        if self.density is not None and not 0.0 < self.density <= 1.0:
            raise StackError(f"density must be above 0 and at most 1, not {shown(self.density)}")

    @property
    def rule(self) -> str | None:
        """Return the rule of RULES that merges tensors; None where changes are added up."""
        rule = self.how.removesuffix("_svd")
        return rule if rule in RULES else None

    @property
    def merges_factors(self) -> bool:
        return self.how in RULES

    @property
    def cuts(self) -> bool:
        """Return whether a layer gets the largest rank of the files where the user gives no limit."""
        return self.how.endswith("svd")

    def to_json(self) -> dict[str, object]:
        """Return plain data for the header of a file; none of the sum."""
        return {} if self.how == "sum" else {"combination": asdict(self)}

    def generator(self, component: str, name: str) -> torch.Generator:
        """Return what draws for a weight: the same numbers each time, whatever else is in the files."""
        text = f"{self.seed} {component} {name.replace('.', '_')}"
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))


SUM = Combination()


@dataclass(frozen=True, slots=True)
class CombinedWeight(StackWeight):
    """A weight whose changes by several files are combined."""

    combination: Combination

    def difference(self) -> Difference:
        """Combine the changes of all files."""
        if self.combination.rule is None and self.combination.how != "orthogonal":
            return StackWeight.difference(self)
        files = self._by_file()
        changes = [StackWeight(self.index, self.target, own, False, read=self.read).difference() for own in files]
        if self.combination.how == "orthogonal":
            return _orthogonal(changes)
        strengths = [own[0].strength for own in files]  # all parts of a weight are in one block
        generator = self.combination.generator(*self.place)
        pair = self._merged_factors(generator) if self._has_factors else None
        has_weight = [pair is None and (bool(one.pairs) or one.rest is not None) for one in changes]
        wholes = [one.dense() if has else None for one, has in zip(changes, has_weight, strict=True)]
        biases = [one.bias for one in changes]
        changes.clear()
        rest, bias = (self._merged(parts, strengths, generator) for parts in (wholes, biases))
        return Difference(self.target.shape, () if pair is None else (pair,), rest, bias)

    @property
    def falls_back(self) -> bool:
        """Return whether the changes are merged where the rule is for factors."""
        return self.combination.merges_factors and not self._has_factors

    @property
    def _has_factors(self) -> bool:
        """Return whether the rule is for factors, and each file has the factors of one LoRA."""
        if not self.combination.merges_factors or len(self._by_file()) < len(self.acting):
            return False
        bindings = [one.binding for one in self.acting]
        return all(type(one.adapter) is LoRA and one.target == self.target for one in bindings)

    def _by_file(self) -> list[tuple[ActingAdapter, ...]]:
        """Return the adapters of each file, in the order in which the user gives the files."""
        entries = sorted({one.entry for one in self.acting})
        return [tuple([one for one in self.acting if one.entry == entry]) for entry in entries]

    def _merged_factors(self, generator: torch.Generator) -> Factors:
        """Merge each factor by itself, with the root of the strength and scale in it, as PEFT does."""
        downs, ups, roots, signs = list[Tensor](), list[Tensor](), list[float](), list[float]()
        for (one,) in self._by_file():
            adapter = one.binding.file.private(one.binding.adapter)
            assert isinstance(adapter, LoRA)
            pair, factor = adapter.factors(one.rank), one.strength * adapter.scale
            downs.append(pair.down.double())
            ups.append(pair.up.double())
            roots.append(math.sqrt(abs(factor)))
            signs.append(math.copysign(1.0, factor))
        ranks = [len(one) for one in downs]
        if len(set(ranks)) > 1:
            how = self.combination.how
            other = "svd" if how == "linear" else f"{how}_svd"
            text = f"how={how!r} takes one rank, and the files have {', '.join(map(str, ranks))}"
            raise StackError(f"{printed(self.target.name)}: {text}; write how={other!r}")
        signed = [root * sign for root, sign in zip(roots, signs, strict=True)]
        down = self._merge(downs, signed, generator)
        return Factors(down, self._merge(ups, roots, generator))

    def _merged(
        self, changes: list[Tensor | None], strengths: Sequence[float], generator: torch.Generator
    ) -> Tensor | None:
        """Merge changes in which the strengths are; None where no file has one. The list is emptied."""
        own = [strength for one, strength in zip(changes, strengths, strict=True) if one is not None]
        parts = [one / strength for one, strength in zip(changes, strengths, strict=True) if one is not None]
        changes.clear()
        return self._merge(parts, own, generator) if parts else None

    def _merge(self, tensors: Sequence[Tensor], strengths: Sequence[float], generator: torch.Generator) -> Tensor:
        rule, density = self.combination.rule, self.combination.density
        assert rule is not None
        return merge_tensors(tensors, strengths, rule, 1.0 if density is None else density, generator)


def _orthogonal(changes: Sequence[Difference]) -> Difference:
    """Add up changes, each less its parts along the former ones; of the weight and of the bias apart."""
    gram = [[one.inner(other) for other in changes] for one in changes]
    factors = orthogonal_factors(torch.tensor(gram, dtype=torch.float64))
    pairs, rests = list[Factors](), list[Tensor]()
    for change, factor in zip(changes, factors, strict=True):
        pairs += [Factors(pair.down, pair.up * factor) for pair in change.pairs]
        rests += [] if change.rest is None else [change.rest * factor]
    biases = [one.bias for one in changes if one.bias is not None]
    bias = None
    if biases:
        whole = torch.stack(biases)
        bias = torch.tensor(orthogonal_factors(whole @ whole.T), dtype=whole.dtype) @ whole
    return Difference(changes[0].shape, tuple(pairs), torch.stack(rests).sum(0) if rests else None, bias)


def combined_changes(
    stack: Stack, components: Mapping[str, nn.Module], moment: Moment | None, combination: Combination
) -> StackChanges:
    """Return what the files of a stack change of a model, combined; a note says where whole changes are merged."""
    changes = StackChanges(stack, components, moment, partial(CombinedWeight, combination=combination))
    count = len([one for one in changes.weights if isinstance(one, CombinedWeight) and one.falls_back])
    if count:
        where = f"in {count} of {len(changes.weights)} weights a file has no plain LoRA of the whole weight"
        changes.notes.append(f"{where}; there whole changes are merged")
    return changes
