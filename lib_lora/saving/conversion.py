"""One file in another form: cut to a rank, a size or some blocks, in another spelling or dtype, at another strength."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn

from ..errors import check_choice, check_path, texts
from ..files.components import TEXT_ENCODER, role
from ..files.file import AdapterFile
from ..naming.blocks import BlockWeights, Element
from ..stack import Entry, Stack
from ..strengths.strength import Strength, checked
from .new_file import ROUNDING, SavedFile
from .provenance import constant_stack
from .skeletons import model_for, model_is_asked_for, parsed_files
from .stack_file import choices_of, save_constant

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .stack_file import SaveOptions

TextEncoders = Literal["keep", "drop", "only"]


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
    """Write another form of one file, without layers that change nothing.

    Args:
        source: the file, or the folder of several components.
        path: of the new one.
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
        MomentError: what acts of the file differs from step to step.
        ArgumentError: an argument is of another type.
    """
    for one in (source, path):
        check_path(one, "convert_file('large.safetensors', 'small.safetensors', rank=16)")
    check_choice(text_encoders, get_args(TextEncoders), "text_encoders")
    checked(strength)
    files = parsed_files(source := Path(source))
    choices = choices_of({"dtype": _dtype_of(one.file for one in files), **options})
    call = "convert_file(source, path, components={})"
    model = model_for(components, files, call, needs_dots=choices.spelling != "kohya")
    entry = Entry(source, _strength(strength, model, text_encoders, texts(blocks, "blocks")))
    with model_is_asked_for(source, where=components is None):
        return save_constant(constant_stack(Stack([entry]), model, None, None, None), model, path, choices)


def _strength(number: float, model: Collection[str], text_encoders: TextEncoders, blocks: Sequence[str]) -> Strength:
    """Return a strength that is 0 for all that is not kept."""
    alone = {"keep": model, "drop": [one for one in model if role(one) != TEXT_ENCODER]}
    kept = alone.get(text_encoders, [one for one in model if role(one) == TEXT_ENCODER])
    rules = (Element((), (), 0.0), Element(tuple(blocks), (), 1.0))
    return Strength(dict.fromkeys(kept, number), blocks=BlockWeights(None, rules) if blocks else None)


def _dtype_of(files: Iterable[AdapterFile]) -> torch.dtype:
    """Return the widest dtype of the matrices of files that a new file may have."""
    own = {info.dtype for file in files for info in file.infos.values() if len(info.shape) > 1} & ROUNDING.keys()
    return min(own, key=ROUNDING.__getitem__, default=torch.float32)
