"""Several files combined to one, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from ..errors import ArgumentError, StackError, check_path, listed, shown
from ..stack import Entry, Stack
from ..strengths.strength import Moment
from .merging import Combination
from .new_file import FileChoices, SavedFile
from .provenance import constant_stack
from .skeletons import model_for, model_is_asked_for, parsed_files
from .stack_file import choices_of, save_constant

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .merging import How
    from .stack_file import SaveOptions

_EXAMPLE = "combine_files(['a.safetensors', Entry('b.safetensors', 0.5)], 'both.safetensors', 'ties', density=0.5)"
_LEAST = 2


def combine_files(
    files: Sequence[Entry | str | Path],
    path: str | PathLike[str],
    how: How = "sum",
    *,
    density: float | None = None,
    seed: int = 0,
    components: Mapping[str, nn.Module] | None = None,
    **options: Unpack[SaveOptions],
) -> SavedFile:
    """Combine files to one, layer by layer, by the names and with the results of PEFT's `add_weighted_adapter`.

    - `sum` and `cat` add up all changes, exactly. `svd` writes the nearest LoRA of the sum.
    - `linear` adds up the factors, each times the root of the strength. It is a rough way.
    - `ties` keeps the largest numbers, and of these the ones whose sign most of the files have, by size.
    - `dare_linear` keeps numbers that `seed` draws, divided by the density. `dare_ties` then goes on as `ties`.
    - `magnitude_prune` keeps the largest numbers, and adds them up.
    - `orthogonal` adds up Q1 = D1 and Qi = Di - sum over j < i of <Di, Qj> / <Qj, Qj> Qj, exactly. D is the change by a
      file, and <A, B> the sum of the products of all numbers of a layer.

    From `linear` to `magnitude_prune`, factors of one rank are merged by themselves, as PEFT does; whole changes where
    a file has another kind than plain LoRA. With `_svd` behind the name, as `ties_svd`, whole changes are merged in all
    layers, and cut to the largest rank in the files if no limit is given.

    Args:
        files: two or more, each at strength 1 or as an `Entry` at another strength.
        path: of the new file.
        how: one of these ways.
        density: the share of the numbers that `ties`, `dare_` and `magnitude_prune` keep.
        seed: of `dare_`.
        components: of the model, as of `Engine`, for kinds that depend on the base weight, for files that name layers
            differently, and for spellings that need the names of the layers.
        options: see `save_stack`.

    Raises:
        LoraError: as by `convert_file`; also StackError where ranks differ or the density does not belong to `how`.
    """
    check_path(path, _EXAMPLE)
    stack, choices = Stack(_entries(files)), choices_of(options, Combination(how, density, seed))
    return save_files(stack, path, choices, components)


def save_files(
    stack: Stack,
    path: str | PathLike[str],
    choices: FileChoices,
    components: Mapping[str, nn.Module] | None,
    moment: Moment | None = None,
    negative: bool | None = None,
) -> SavedFile:
    """Write the files of a stack as one, also without the model where they tell its layers; raise as `save_stack`."""
    sources = [] if components is not None else [file for one in stack for file in parsed_files(Path(one.path))]
    call = "combine_files(files, path, components={})"
    model = model_for(components, sources, call, needs_dots=choices.spelling != "kohya")
    with model_is_asked_for(Path(stack.entries[0].path), where=components is None):
        return save_constant(constant_stack(stack, model, moment, None, negative), model, path, choices, moment)


def _entries(files: Sequence[Entry | str | Path]) -> list[Entry]:
    """Return the entries of files, or raise ArgumentError or StackError where they are not two or more."""
    if isinstance(files, str | PathLike | Entry):  # a text is a list of texts, too
        raise ArgumentError(f"files must be a list, not {shown(files)}; write {_EXAMPLE}")
    entries = [one if isinstance(one, Entry) else Entry(one) for one in listed(files, "files", "a list of files")]
    if len(entries) < _LEAST:
        raise StackError("give two files or more; convert_file changes one")
    return entries
