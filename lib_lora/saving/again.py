"""A saved file made once more from what its header says, of the same sources."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import FileError, check_path, listed, printed
from ..files.file import AdapterFile
from ..files.reading import Reading
from ..files.sources import component_files
from ..naming.blocks import BlockWeights, Element
from ..stack import Entry, Stack
from ..strengths.strength import Moment, Strength
from .baked import bake_into
from .extraction import extract_from
from .merging import Combination
from .model_files import ModelFiles
from .new_file import DTYPES, FileChoices, SavedFile
from .provenance import HEADER, digest
from .skeletons import model_for, parsed_files
from .stack_file import SaveOptions, choices_of, save_constant


def save_again(
    saved: str | PathLike[str],
    path: str | PathLike[str],
    components: Mapping[str, nn.Module] | None,
    folders: Sequence[str | PathLike[str]],
    *,
    replace: bool = False,
) -> SavedFile:
    """Make a file again that was saved, bit for bit, from what its header says.

    Args:
        saved: a file that another function of these wrote, or the folder of a model that `bake_stack` wrote.
        path: of the new one.
        components: of the model, as of `Engine`, in the state that it was saved in; None if it was saved without one,
            and for `bake_stack` and `extract_lora`, which read models on disk.
        folders: where the sources are, models on disk, too.
        replace: whether the file may take the place of another one.

    Raises:
        FileError: a source is missing or is another one by now, or the model is; also as `save_stack`.
        ArgumentError: an argument is of another type.
    """
    example = "save_again('mine.safetensors', 'again.safetensors', components, ['loras'])"
    if isinstance(folders, str | PathLike):  # a text is a list of texts, too
        folders = [folders]
    for one in (saved, path, *(known := listed(folders, "folders", "a list of folders, as ['loras']"))):
        check_path(one, example)
    saved, path, places = Path(saved), Path(path), [Path(one) for one in known]
    try:
        made = _recipe(saved)
        write = _way(saved, made, path, components, places, replace=replace)
    except FileError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileError(saved, "its header does not say how it was made, so that it cannot be made again") from error
    return write()


def _recipe(saved: Path) -> dict[str, Any]:
    path = ModelFiles(saved).files[0].path if os.path.lexists(saved) and saved.is_dir() else saved
    made: dict[str, Any] = json.loads(AdapterFile.open(path).metadata[HEADER])
    return made


def _way(
    saved: Path,
    made: Mapping[str, Any],
    path: Path,
    components: Mapping[str, nn.Module] | None,
    folders: Sequence[Path],
    *,
    replace: bool,
) -> Callable[[], SavedFile]:
    """Return what makes a file by its recipe, whose sources are looked up here."""
    if "tuned" in made:
        models = [_model(saved, folders, made[f"{name}_name"], made[name]) for name in ("base", "tuned")]
        return partial(extract_from, models[0], models[1], path, _choices(made, replace=replace), made["title"])
    entries = [_entry(one, _found(saved, folders, one["file"], one["sha256"])) for one in made["entries"]]
    stack = Stack(entries, in_order=made["in_order"], reading=Reading(**made["reading"]))
    moment = None if made["moment"] is None else Moment(**made["moment"])
    if "rounding" in made:
        former = _model(saved, folders, made["model"], _baked_hashes(saved, made))
        drawn, size = (_combination(made), made["rounding"], made["seed"]), made.get("shard_size")
        return partial(bake_into, former, path, stack, moment, *drawn, made["title"], shard_size=size, replace=replace)
    choices = _choices(made, replace=replace)
    sources = [] if components is not None else [file for one in stack for file in parsed_files(Path(one.path))]
    call = "save_again(saved, path, {}, folders)"
    model = model_for(components, sources, call, needs_dots=choices.spelling != "kohya")
    return partial(save_constant, stack, model, path, choices, moment, made["title"], made.get("base_sha256"))


def _choices(made: Mapping[str, Any], *, replace: bool) -> FileChoices:
    options = SaveOptions(spelling=made["spelling"], dtype=DTYPES.get(made["dtype"], torch.int8), replace=replace)
    options |= SaveOptions(rank=made["rank"], size=made["size"], error=made["error"])
    options |= SaveOptions(kind=made.get("kind", "lora"), factor=made.get("factor"), pad=made.get("pad"))
    return choices_of(options, _combination(made))


def _combination(made: Mapping[str, Any]) -> Combination:
    return Combination(**made.get("combination", {}))


def _entry(said: Mapping[str, Any], path: Path) -> Entry:
    blocks = said["blocks"]
    if blocks is not None:
        elements = [Element(**{**one, "blocks": tuple(one["blocks"])}) for one in blocks["elements"]]
        blocks = BlockWeights(blocks["values"], tuple(elements))
    strength = Strength(said["of"], sides=said["sides"], blocks=blocks)
    return Entry(path, strength, said["rank"], said["alpha"], said["scale"], said["name"])


def _found(saved: Path, folders: Sequence[Path], name: str, sha256: str) -> Path:
    there = [folder / name for folder in folders if Path(name).name == name and os.path.lexists(folder / name)]
    for one in there:
        if (one.is_file() or component_files(one)) and digest(one) == sha256:
            return one
    raise _missing(saved, folders, name, there)


def _model(saved: Path, folders: Sequence[Path], name: str, hashes: Mapping[str, str]) -> ModelFiles:
    there = [folder / name for folder in folders if Path(name).name == name and os.path.lexists(folder / name)]
    for one in there:
        model = ModelFiles(one)
        if model.places().keys() == hashes.keys() and model.hashes() == hashes:
            return model
    raise _missing(saved, folders, name, there)


def _missing(saved: Path, folders: Sequence[Path], name: str, there: Sequence[Path]) -> FileError:
    why = f"{there[0]} is another one by now" if there else f"it is not in {', '.join(map(str, folders))}"
    return FileError(saved, f"its source {printed(name)} is missing: {why}")


def _baked_hashes(saved: Path, made: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of the files of the model that was baked into, by where they are in its folder."""
    if "shard_size" in made:
        return dict(made["model_sha256"])
    if saved.is_file():
        return {made["model"]: made["model_sha256"]}
    return {place: _recipe(path)["model_sha256"] for place, path in ModelFiles(saved).places().items()}
