"""Strengths as users of diffusers write them: by component, by block, by layer, and with a schedule or a region."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import nn

from ..errors import StackError
from ..files.components import is_denoiser
from ..naming.blocks import BASE, BlockWeights, Element
from ..strengths.regions import Region
from ..strengths.strength import Amount, AnyMultiplier, Curve, Halves, PerImage, Strength, is_number
from ..values import check_type, shown

Blocks: TypeAlias = Mapping[str, "float | Sequence[float] | Blocks"]
"""Of a UNet `{"down": 0.9, "mid": 1.0, "up": {"block_1": [0.4, 0.6]}}`; of others parts of the names of layers."""
Wish: TypeAlias = AnyMultiplier | Curve | Region | Mapping[str, Amount | Blocks]
"""A strength: a number, a schedule, a region, or a dict by component, in which one may have a dict by block."""

_SIDES = {"down": "down_blocks", "up": "up_blocks"}
_MIDDLE = "mid"


def multiplier_of(wish: Wish, components: Mapping[str, nn.Module]) -> AnyMultiplier:
    """Return the multiplier of an entry.

    Args:
        wish: what the user writes.
        components: the model, which must have the blocks that the wish names.

    Raises:
        StackError: the model has no such block, or not as many of its parts.
        ArgumentError: it is no strength.
    """
    if isinstance(wish, Curve):
        return Strength(wish)
    if isinstance(wish, Region):
        return Strength(region=wish)
    if isinstance(wish, Strength | Halves | PerImage) or is_number(wish):
        return wish
    text = "a number, a dict of components, a Curve, a Region or a Strength"
    check_type(wish, Mapping, "a strength", f"{text}, as 0.8 or {{'unet': 0.8, 'text_encoder': 0.5}}")
    assert isinstance(wish, Mapping)
    return _by_component(wish, components)


def _by_component(wish: Mapping[str, Amount | Blocks], components: Mapping[str, nn.Module]) -> AnyMultiplier:
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
    if not elements:
        return Strength(amounts) if any(isinstance(one, Curve) for one in amounts.values()) else wish  # type: ignore[return-value]
    if len(set(elements.values())) > 1:
        raise StackError(f"{' and '.join(elements)} have blocks of the same names, so their strengths must be the same")
    return Strength(amounts, blocks=BlockWeights(None, next(iter(elements.values()))))


def _elements(component: str, module: nn.Module, blocks: Blocks) -> Iterator[Element]:
    """Yield the rules for blocks of a denoiser; of two that name a layer the first counts, as in diffusers."""
    paths = [path for path, _ in module.named_modules()]
    for name, wish in reversed(list(blocks.items())):
        check_type(name, str, f"a block of {component}", "a text, as 'down'")
        if name in _SIDES and any(path.startswith(f"{_SIDES[name]}.") for path in paths):
            yield from _of_side(name, wish, paths)
            continue
        start = "mid_block" if name == _MIDDLE and "mid_block" in paths else name
        if not any(start in path for path in paths):
            tops = ", ".join(dict.fromkeys([path.partition(".")[0] for path in paths if path]))
            raise StackError(f"{component} has no block {name!r}; its layers are in {tops}")
        if isinstance(wish, Sequence) and len(wish) == 1 and not isinstance(wish, str):
            wish = wish[0]
        yield _element(f"{start}.", wish)


def _of_side(name: str, wish: float | Sequence[float] | Blocks, paths: Sequence[str]) -> Iterator[Element]:
    side = _SIDES[name]
    if not isinstance(wish, Mapping):
        numbers = [path.split(".")[1] for path in paths if path.startswith(f"{side}.") and path.endswith(".attentions")]
        wish = {f"block_{number}": wish for number in numbers} if isinstance(wish, list | tuple) else {"": wish}
    for block, weight in wish.items():
        if not block:
            yield _element(f"{side}.", weight)
            continue
        number = block.removeprefix("block_") if isinstance(block, str) else ""
        path = f"{side}.{number}"
        if path not in paths or not number.isdecimal():
            known = [
                f"block_{one.split('.')[1]}" for one in paths if one.count(".") == 1 and one.startswith(f"{side}.")
            ]
            raise StackError(f"there is no {shown(block)} in {name}; there are {', '.join(known)}")
        yield from _of_block(f"{name}.{block}", path, weight, paths)


def _of_block(
    name: str, block: str, weight: float | Sequence[float] | Blocks, paths: Sequence[str]
) -> Iterator[Element]:
    if not isinstance(weight, Sequence) or isinstance(weight, str):
        yield _element(f"{block}.", weight)
        return
    parts = {
        kind: len(
            [one for one in paths if one.startswith(f"{block}.{kind}.") and one.count(".") == block.count(".") + 2]
        )
        for kind in ("attentions", "resnets")
    }
    count = parts["attentions"] or parts["resnets"]
    if len(weight) not in (1, count):
        raise StackError(f"{name} takes {count} numbers, or one, not {len(weight)}")
    for i in range(count):
        kinds = [f"{block}.{kind}.{i}." for kind in parts]
        yield _element(kinds[0], weight[i % len(weight)], *kinds[1:])


def _element(start: str, weight: object, *more: str) -> Element:
    """Return the rule for the layers of a denoiser whose names have one of some parts."""
    if not is_number(weight):
        raise StackError(f"the strength of {start.rstrip('.')} must be a finite number, not {shown(weight)}")
    words = tuple([part.replace(".", "_") for part in (start, *more)])
    return Element((BASE,), words, float(weight), not_blocks=True)


def scaled(
    multiplier: AnyMultiplier, factor: float, present: Iterable[str], components: Collection[str] | None = None
) -> AnyMultiplier:
    """Return a multiplier times a factor.

    Args:
        multiplier: of an entry.
        factor: a number.
        present: the components of the model.
        components: which of them have the factor; None for all.

    Raises:
        StackError: images or prompts have multipliers of their own.
    """
    if isinstance(multiplier, Halves | PerImage):
        raise StackError("strengths by image or by prompt cannot be fused; merged weights serve all images alike")
    strength = multiplier if isinstance(multiplier, Strength) else Strength(multiplier)
    wanted = set(present if components is None else components)
    amounts = {name: _times(strength.amount(name), factor if name in wanted else 1.0) for name in present}
    has_sides = any(map(is_denoiser, wanted))
    sides = {side: _times(amount, factor if has_sides else 1.0) for side, amount in strength.sides.items()}
    return Strength(amounts, sides, strength.during, strength.blocks, strength.region, strength.part)


def _times(amount: Amount, factor: float) -> Amount:
    if not isinstance(amount, Curve):
        return amount * factor
    return Curve(tuple([(place, value * factor) for place, value in amount.points]), amount.unit, amount.shape)
