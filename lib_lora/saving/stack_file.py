"""A stack, as it is at a moment, as one LoRA file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, TypedDict, get_args

import torch
from torch import nn

from ..engine import Engine
from ..errors import ArgumentError, FileError, check_choice, check_path, check_type, shown
from ..stack import Stack
from ..strengths.strength import Moment
from .difference import Limits
from .inputs import InputSamples
from .merging import SUM, Combination, combined_changes
from .new_file import (
    FACTOR,
    ROUNDING,
    FileChoices,
    Kind,
    Progress,
    SavedFile,
    check_progress,
    write_changes,
)
from .provenance import HEADER, carried, constant_stack, recipe_of
from .spelling import ONLY_LORA, KeyNames, Spelling

if TYPE_CHECKING:
    from typing_extensions import Unpack

_EXAMPLE = "save_stack(engine, 'mine.safetensors')"


class SaveOptions(TypedDict, total=False):
    """The options of a file that is saved; see `save_stack`."""

    spelling: Spelling
    dtype: torch.dtype
    rank: int | None
    size: int | None
    error: float | None
    replace: bool
    preview: bool
    progress: Progress | None
    kind: Kind
    factor: int | None
    pad: int | None
    inputs: InputSamples | None


def save_stack(
    engine: Engine,
    path: str | PathLike[str],
    *,
    moment: Moment | None = None,
    image: int | None = None,
    negative: bool | None = None,
    **options: Unpack[SaveOptions],
) -> SavedFile:
    """Write the LoRA that are in force as one file, with their strengths, block weights and ranks in it.

    Without a limit it is exact: the factors of all LoRA lie beside each other, and what has no factors is written
    whole. With a rank, a size or an error it is the nearest LoRA, whose ranks are where they matter most over all
    layers. The file is read back and compared before it takes its place.

    Args:
        engine: whose stack is saved, also while it is merged.
        path: of the file.
        moment: of a stack whose strengths differ from step to step.
        image: its number, where the images of the stack have strengths of their own.
        negative: whether the strengths of the negative prompt are meant, where they differ.
        options: `spelling` of the keys: `kohya`, `diffusers`, `comfy` or `peft`, a folder; `dtype` of the numbers;
            the largest `rank` of a layer; the largest `size` of the file in bytes; the largest relative `error` of all
            layers; `replace`, whether the file may take the place of another one; `preview`, to write nothing and
            return what the file would be; `progress`, a function that is called with the number of layers that are
            done, and of all. What it raises ends the work, and nothing is written; `kind`, `lora` or `lokr`, the
            nearest Kronecker products, whose first matrix has at most `factor` rows and columns, and whose second one
            at most `rank`; `pad`, the rank to which lower ones are filled up with zeros, as compiled models need one
            rank; `inputs`, of the layers, by which the error is told of their outputs, too; not in a preview.

    Raises:
        StackError: no LoRA is in force, or a strength depends on something that is not given.
        MomentError: the moment lacks what a strength depends on.
        FileError: a source or the file cannot be read or written, the name is taken, or a limit cannot be met.
        ComponentError: a base weight that is needed cannot be read.
        ArgumentError: an argument is of another type.
    """
    check_type(engine, Engine, "engine", f"an Engine, as in {_EXAMPLE}")
    choices = choices_of(options)
    former, components = engine.stack, engine.components
    stack = constant_stack(former, components, moment, image, negative)
    with engine.active(replace(former, mode="live")) if former.mode == "merged" else nullcontext():
        return save_constant(stack, components, path, choices, moment)


def save_constant(
    stack: Stack,
    components: Mapping[str, nn.Module],
    path: str | PathLike[str],
    choices: FileChoices,
    moment: Moment | None = None,
    title: str | None = None,
    wanted_base: str | None = None,
) -> SavedFile:
    """Write a stack of constant strengths as one file, which calls itself by its title; raise as `save_stack`.

    `wanted_base` is the hash of the numbers of the model that must be read for it; None for any.
    """
    check_path(path, _EXAMPLE)
    combination = choices.combination
    changes = combined_changes(stack, components, moment, combination)
    if combination.cuts and not choices.limits.approximates:
        choices = replace(choices, limits=Limits(changes.largest_rank))
    names = KeyNames(choices.spelling, changes.indexes)

    def metadata() -> dict[str, str]:
        name, base = title or Path(path).stem, changes.sha256_of_base
        if wanted_base not in (None, base):
            text = "it was not written: this model has other weights than the one that the former file was made with"
            raise FileError(Path(path), f"{text}; give that one")
        own = {} if base is None else {"base_sha256": base}
        recipe = recipe_of(stack, moment, {"title": name, **choices.to_json(), **own})
        return carried(changes.files, name) | {HEADER: recipe}

    return write_changes(Path(path), changes, choices, names, metadata)


def choices_of(options: SaveOptions, combination: Combination = SUM) -> FileChoices:
    """Check the options that a user gives."""
    known = SaveOptions.__annotations__
    if strange := options.keys() - known:
        raise ArgumentError(f"there is no option {min(strange)}; there are {', '.join(known)}")
    spelling, dtype = options.get("spelling", "kohya"), options.get("dtype", torch.float32)
    check_choice(spelling, get_args(Spelling), "spelling")
    if dtype not in ROUNDING:
        raise ArgumentError(f"dtype must be torch.float32, torch.float16 or torch.bfloat16, not {shown(dtype)}")
    rank, size, error = options.get("rank"), options.get("size"), options.get("error")
    kind, factor, pad = options.get("kind", "lora"), options.get("factor"), options.get("pad")
    for name, value in (("rank", rank), ("size", size), ("factor", factor), ("pad", pad)):
        if value is not None and (type(value) is not int or value < 1):
            raise ArgumentError(f"{name} must be a whole number from 1 up, or None, not {shown(value)}")
    if error is not None and (type(error) is not float or not 0 < error < 1):
        raise ArgumentError(f"error must be a number between 0 and 1, or None, not {shown(error)}")
    replaces, preview, progress = options.get("replace", False), options.get("preview", False), options.get("progress")
    for name, value in (("replace", replaces), ("preview", preview)):
        check_type(value, bool, name, "True or False")
    check_progress(progress)
    check_choice(kind, get_args(Kind), "kind")
    if kind == "lokr" and spelling in ONLY_LORA:
        raise ArgumentError(f"the spelling {spelling!r} has no LoKr; write spelling='kohya' or 'comfy'")
    inputs = options.get("inputs")
    check_type(inputs, (InputSamples, NoneType), "inputs", "InputSamples, or None")
    if pad is not None and (kind == "lokr" or size is not None):
        raise ArgumentError("pad makes the ranks of LoRA alike; leave it, or size and kind, out")
    limits, factor = Limits(rank, size, error), factor or FACTOR
    return FileChoices(spelling, dtype, limits, replaces, combination, preview, progress, kind, factor, pad, inputs)
