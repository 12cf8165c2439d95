"""Strengths as users of diffusers write them: by component, by block, by layer, and with a schedule or a region."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import nn

from ..errors import StackError, check_type, shown
from ..files.components import is_denoiser
from ..naming.blocks import BASE, BlockWeights, Element
from ..strengths.regions import Region
from ..strengths.strength import Amount, AnyMultiplier, Curve, Halves, PerImage, Strength, is_number

Blocks: TypeAlias = Mapping[str, "float | Sequence[float] | Blocks"]
"""Of a UNet `{"down": 0.9, "mid": 1.0, "up": {"block_1": [0.4, 0.6]}}`; of others parts of the names of layers."""
Wish: TypeAlias = AnyMultiplier | Curve | Region | Mapping[str, Amount | Blocks]
"""A strength: a number, a schedule, a region, or a dict by component, in which one may have a dict by block."""

_SIDES = {"down": "down_blocks", "up": "up_blocks"}
_MIDDLE = "mid"


def multiplier_of(wish: Wish, components: Mapping[str, nn.Module]) -> AnyMultiplier:
    """Return what a user writes as the multiplier of an entry. The model must have the blocks that it names."""
    if isinstance(wish, Curve | Region):
        return Strength(wish) if isinstance(wish, Curve) else Strength(region=wish)
    if isinstance(wish, Strength | Halves | PerImage) or is_number(wish):
        return wish
    text = "a number, a dict of components, a Curve, a Region or a Strength"
    check_type(wish, Mapping, "a strength", f"{text}, as 0.8 or {{'unet': 0.8, 'text_encoder': 0.5}}")
    assert isinstance(wish, Mapping)
    amounts, elements = dict[str, Amount](), dict[str, tuple[Element, ...]]()
    for name, amount in wish.items():
        if name in (*_SIDES, _MIDDLE):
            raise StackError(f"{name} is a block; write it in its component, as {{'unet': {{{name!r}: 0.5}}}}")
        if not isinstance(amount, Mapping):
            amounts[name] = amount
            continue
        if name not in components or not is_denoiser(name):
            able = ", ".join(filter(is_denoiser, components)) or "none"
            raise StackError(f"{shown(name)} takes one number; only {able} may have strengths by block")
        amounts[name] = 1.0
        elements[name] = tuple(_elements(name, components[name], amount))
    if len(set(elements.values())) > 1:
        raise StackError(f"{' and '.join(elements)} have blocks of the same names, so their strengths must be the same")
    blocks = [BlockWeights(None, rules) for rules in elements.values()]
    return Strength(amounts, blocks=blocks[0] if blocks else None)


def _elements(component: str, module: nn.Module, blocks: Blocks) -> Iterator[Element]:
    """Yield the rules for blocks of a denoiser; of two that name a layer the first counts, as in diffusers."""
    paths = [path for path, _ in module.named_modules()]
    for name, wish in reversed(list(blocks.items())):
        check_type(name, str, f"a block of {component}", "a text, as 'down'")
        if name in _SIDES and _SIDES[name] in paths:
            yield from _of_side(name, wish, paths)
            continue
        start = "mid_block" if name == _MIDDLE and "mid_block" in paths else name
        if not any(start in path for path in paths):
            tops = ", ".join(dict.fromkeys([path.partition(".")[0] for path in paths if path]))
            raise StackError(f"{component} has no block {name!r}; its layers are in {tops}")
        if isinstance(wish, Sequence) and len(wish) == 1 and not isinstance(wish, str):
            wish = wish[0]
        yield _element(wish, start)


def _of_side(name: str, wish: float | Sequence[float] | Blocks, paths: Sequence[str]) -> Iterator[Element]:
    """Yield the rules for one side of a UNet: one for all, or one for each block or for its attentions in turn."""
    side = _SIDES[name]
    known = {f"block_{path.split('.')[1]}": path for path in paths if path.count(".") == 1 and path.startswith(side)}
    if isinstance(wish, list | tuple):
        wish = {block: wish for block, path in known.items() if f"{path}.attentions" in paths}
    if not isinstance(wish, Mapping):
        yield _element(wish, side)
        return
    for given, weight in wish.items():
        block = f"block_{given}" if isinstance(given, str) and given.isdecimal() else given
        if block not in known:
            raise StackError(f"there is no {shown(given)} in {name}; there are {', '.join(known)}")
        if not isinstance(weight, Sequence) or isinstance(weight, str):
            yield _element(weight, known[block])
            continue
        kinds = [f"{known[block]}.attentions", f"{known[block]}.resnets"]
        counts = [len([path for path in paths if path.rpartition(".")[0] == kind]) for kind in kinds]
        count = counts[0] or counts[1]
        if len(weight) not in (1, count):
            raise StackError(f"{name}.{block} takes {count} numbers, or one, not {len(weight)}")
        for i in range(count):
            yield _element(weight[i % len(weight)], *[f"{kind}.{i}" for kind in kinds])


def _element(weight: object, *starts: str) -> Element:
    """Return the rule for the layers of a denoiser whose names have one of some parts."""
    if not is_number(weight):
        raise StackError(f"the strength of {starts[0]} must be a finite number, not {shown(weight)}")
    return Element((BASE,), tuple([f"{start}.".replace(".", "_") for start in starts]), float(weight), not_blocks=True)


def scaled(
    multiplier: AnyMultiplier, factor: float, present: Iterable[str], components: Collection[str] | None = None
) -> AnyMultiplier:
    """Return a multiplier times a factor on some of the components that are `present`; None stands for all of these."""
    if isinstance(multiplier, Halves | PerImage):
        raise StackError("strengths by image or by prompt cannot be fused; merged weights serve all images alike")
    strength = multiplier if isinstance(multiplier, Strength) else Strength(multiplier)
    wanted = set(present if components is None else components)
    amounts = {name: _times(strength.amount(name), factor if name in wanted else 1.0) for name in present}
    of_sides = factor if any(map(is_denoiser, wanted)) else 1.0
    sides = {side: _times(amount, of_sides) for side, amount in strength.sides.items()}
    return replace(strength, of=amounts, sides=sides)


def _times(amount: Amount, factor: float) -> Amount:
    if not isinstance(amount, Curve):
        return amount * factor
    return replace(amount, points=tuple([(place, value * factor) for place, value in amount.points]))
