"""Weights for the blocks of a model: lists by their length, and rules for some layers of some blocks.

Source of the lists: hako-mikan/sd-webui-lora-block-weight scripts/lora_block_weight.py. They are in the files of their
architectures, and the names of blocks are in `architectures/_block.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING

from ..errors import OneLine, StackError, check_type, shown, texts
from ..files.components import TEXT_ENCODER, role
from .architectures._block import BASE as BASE
from .architectures._block import Side as Side
from .architectures._block import block_lists, is_unet
from .architectures._block import block_of as block_of
from .architectures._block import block_order as block_order
from .architectures._block import side_of as side_of
from .architectures._ldm_unet import UNET_BLOCKS

if TYPE_CHECKING:
    from .index import LayerIndex

_ENCODERS = {"text_encoder": "CLIP", "text_encoder_2": "T5", "text_encoder_3": "T5"}


@dataclass(frozen=True, repr=False)
class BlockNames(OneLine):
    """The blocks of one model, in order, text encoders first.

    Raises:
        ArgumentError: the names are no texts.
    """

    of_model: tuple[str, ...]
    """Such as `IN04` and `M00` of a UNet, `D07` and `S12` of Flux, and `text_encoder`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_model", texts(self.of_model, "of_model"))

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the blocks of the denoiser."""
        return tuple(one for one in self.of_model if role(one) != TEXT_ENCODER)

    def lists(self) -> tuple[tuple[str, ...], ...]:
        """Return the lists of weights this model takes, of different lengths; the one that suits it best first."""
        return block_lists(self.parts)


def blocks_of(indexes: Iterable[LayerIndex]) -> BlockNames:
    """Return the blocks of the model that has these components."""
    return _in_order(frozenset([block_of(index.component, one.path) for index in indexes for one in index.targets]))


@lru_cache(maxsize=32)
def _in_order(blocks: frozenset[str]) -> BlockNames:
    return BlockNames(tuple(sorted(blocks - {""}, key=block_order)))


@dataclass(frozen=True, slots=True, repr=False)
class Element(OneLine):
    """A rule for some layers of some blocks: `IN05-OUT05:attn:0`.

    Its weight takes the place of the block's. Source: the block-weight extension, `ratiodealer`.

    Raises:
        ArgumentError: the parts of names are no texts.
        StackError: the weight is not finite.
    """

    blocks: tuple[str, ...]
    """Parts of block names, first of a range and last as `IN05-OUT05`; none is all."""
    words: tuple[str, ...]
    """Parts of layer names; none is all."""
    weight: float
    not_blocks: bool = False
    """All blocks but these."""
    not_words: bool = False

    def __post_init__(self) -> None:
        for name in ("blocks", "words"):
            object.__setattr__(self, name, texts(getattr(self, name), name))
        _check_weight(self.weight)

    @property
    def unweighted(self) -> Element:
        """Return the rule alone, as two of them may differ in their weights only."""
        return replace(self, weight=0.0)

    def suits(self, block: str, names: Iterable[str], model: BlockNames) -> bool:
        """Return whether the rule applies to a layer of a block of `BlockNames`, by all names of the layer."""
        shown = BASE if role(block) == TEXT_ENCODER else block
        order = UNET_BLOCKS if is_unet(model.parts) else (BASE, *model.parts)
        blocks = [one for written in self.blocks for one in _range(written, order)]
        if self.blocks and any(one in shown for one in blocks) == self.not_blocks:
            return False
        flat = [name.replace(".", "_") for name in names]
        return not self.words or any(word in name for word in self.words for name in flat) != self.not_words


@lru_cache(maxsize=256)
def _range(written: str, order: tuple[str, ...]) -> tuple[str, ...]:
    first, _, last = written.partition("-")
    if first not in order or last not in order:
        return (written,)
    low, high = sorted((order.index(first), order.index(last)))
    return order[low : high + 1]


@dataclass(frozen=True, slots=True, repr=False)
class BlockWeights(OneLine):
    """A factor for each block.

    Raises:
        ArgumentError: the weights are no list, or the rules no elements.
        StackError: a weight is not finite.
    """

    values: tuple[float, ...] | None = None
    """A list, read by its length as the model takes it; blocks that the list has no name for are 0."""
    elements: tuple[Element, ...] = ()
    """They come after the list, each over the ones before it."""

    def __post_init__(self) -> None:
        if self.values is not None:
            check_type(self.values, Sequence, "block weights", "a list of numbers, as BlockWeights([1, 0.5, …])")
            object.__setattr__(self, "values", tuple(map(_check_weight, self.values)))
        check_type(self.elements, Sequence, "elements", "a list of Element")
        for element in self.elements:
            check_type(element, Element, "a rule of block weights", "an Element, as Element(('OUT05',), (), 0.5)")
        object.__setattr__(self, "elements", tuple(self.elements))

    @property
    def largest(self) -> float:
        """Return the largest factor, without its sign; 1 where a block may have none."""
        return max(abs(one) for one in (*(self.values or (1.0,)), *(one.weight for one in self.elements)))

    def weight(self, block: str, rules: Collection[Element], model: BlockNames) -> float:
        """Return the factor of one layer of a block of `BlockNames`, to which rules of `unweighted` apply.

        Raises:
            StackError: the model takes no list of this length.
        """
        weights = [element.weight for element in self.elements if element.unweighted in rules]
        if weights or self.values is None:
            return weights[-1] if weights else 1.0
        return read_list(self.values, model).get(block, 1.0)


def _check_weight(value: float) -> float:
    """Return a weight as it is kept, or raise StackError."""
    if not isinstance(value, Real) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise StackError(f"a block weight must be a finite number, not {shown(value)}")
    return value


@lru_cache(maxsize=256)
def read_list(values: tuple[float, ...], model: BlockNames) -> Mapping[str, float]:
    """Return the weight of each block of a model by a list; raise StackError where it takes none of this length."""
    by_length = {len(names): names for names in reversed(model.lists())}
    if len(values) not in by_length:
        if by_length and len(set(values)) == 1:
            return dict.fromkeys(model.of_model, values[0])  # one value for all blocks
        lengths = ", ".join(str(len(names)) for names in model.lists()) or "none, having no blocks"
        raise StackError(f"a list of {len(values)} block weights; the loaded model takes {lengths}")
    given = dict(zip(by_length[len(values)], values, strict=True))
    # a list of the blocks alone says nothing of what is around them
    weights = {block: given.get(block, 1.0 if block in ("IN", "OUT") else 0.0) for block in model.of_model}
    encoders = [block for block in model.of_model if role(block) == TEXT_ENCODER]
    return weights | {name: given.get(BASE, given.get(_ENCODERS.get(name, ""), 1.0)) for name in encoders}
