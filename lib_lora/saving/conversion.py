"""One file in another form: cut to a rank, a size or some blocks, in another spelling or dtype, at another strength."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn

from ..errors import check_choice, check_path, texts
from ..files.components import TEXT_ENCODER, role
from ..files.file import AdapterFile
from ..files.reading import USUAL, with_sidecar
from ..naming.blocks import BlockNames, BlockWeights, Element, block_of
from ..naming.parsed import ParsedFile
from ..stack import Entry, Stack
from ..strengths.strength import Strength, checked
from .changes import FileChanges, Place
from .making import carried
from .new_file import ROUNDING, SavedFile, write_changes
from .spelling import KeyNames
from .stack_file import choices_of, save_constant

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .stack_file import SaveOptions

TextEncoders = Literal["keep", "drop", "only"]
_JOINED = re.compile(r"_(?=\d)|(?<=\d)_|(?<=mid_block)_|(?<=embedding)_")
"""Where a name that has `_` for every dot had a dot, as far as blocks depend on it."""


def convert_file(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    strength: float = 1.0,
    text_encoders: TextEncoders = "keep",
    blocks: Sequence[str] = (),
    components: Mapping[str, nn.Module] | None = None,
    **options: Unpack[SaveOptions],
) -> SavedFile:
    """Write another form of one file. Layers that change nothing are left out.

    Args:
        source: the path of the file.
        path: of the new file.
        strength: which the new file has at strength 1.
        text_encoders: whether layers of text encoders are kept, dropped, or the only ones that are kept.
        blocks: names or ranges of the blocks that are kept, as `IN04-OUT05`; all where none is given. `BASE` stands for
            the text encoders.
        components: of the model, as of `Engine`, for files that change weights by their own numbers, as DoRA does, and
            for spellings that need the names of its layers.
        options: see `save_stack`; without a `dtype` the file's own is kept.

    Raises:
        FileError: a file cannot be read or written, the name is taken, a limit cannot be met, or the model is needed.
        StackError: the strength is no finite number, or the spelling has no name for a layer.
        ArgumentError: an argument is of another type.
    """
    for one in (source, path):
        check_path(one, "convert_file('large.safetensors', 'small.safetensors', rank=16)")
    check_choice(text_encoders, get_args(TextEncoders), "text_encoders")
    source, target = Path(source), Path(path)
    choices, file = choices_of(options), AdapterFile.open(source)
    if "dtype" not in options:
        own = {info.dtype for info in file.infos.values() if len(info.shape) > 1} & ROUNDING.keys()
        choices = replace(
            choices, dtype=max(own, key=lambda dtype: (dtype.itemsize, -ROUNDING[dtype]), default=torch.float32)
        )
    rules = (Element((), (), 0.0), Element(texts(blocks, "blocks"), (), 1.0)) if blocks else ()
    weights = BlockWeights(None, rules)
    checked(strength, "strength")
    if components is not None:
        of = {name: strength * _kept(name, text_encoders) for name in components}
        reading = with_sidecar(source, USUAL)
        entry = Entry(source, Strength(of, blocks=weights), alpha=reading.alpha, scale=reading.scale)
        return save_constant(Stack([entry]), components, path, choices)
    groups = ParsedFile(file).groups
    known = BlockNames(tuple(sorted({_block(Place(one.component, one.module)) for one in groups} - {""})))

    def of_place(place: Place) -> float:
        block = _block(place)
        matching = [rule.unweighted for rule in rules if rule.suits(block, [place.name], known)]
        return strength * _kept(place.component, text_encoders) * weights.weight(block, matching, known)

    changes = FileChanges(source, of_place)
    names = KeyNames(choices.spelling, {one.component for one in groups}, {})
    return write_changes(target, changes, choices, names, lambda: carried([file], target.stem))


def _kept(component: str | None, text_encoders: TextEncoders) -> float:
    is_encoder = component is not None and role(component) == TEXT_ENCODER
    return 1.0 if text_encoders == "keep" or is_encoder == (text_encoders == "only") else 0.0


def _block(place: Place) -> str:
    """Return the block of a layer of a file."""
    component = place.component or "unet"
    return block_of(component, _JOINED.sub(".", place.name) if "." not in place.name else place.name)
