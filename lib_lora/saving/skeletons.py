"""The layers that files were made for, as far as the files tell them: a model on meta, where the user gives none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from ..errors import ComponentError, FileError, NoMatchError
from ..files.components import DENOISER, TEXT_ENCODER, is_denoiser
from ..files.file import AdapterFile
from ..files.sources import component_files
from ..inspection.skeleton import skeleton
from ..naming.index import check_named
from ..naming.network import each_part
from ..naming.parsed import Group, ParsedFile

_MODEL = "give the model that the file is for"
_JOINED = re.compile(r"_(?=\d)|(?<=\d)_|(?<=mid_block)_|(?<=embedding)_")
"""Where a name that has `_` for every dot had a dot, as far as blocks depend on it."""
_ENCODER = re.compile(r"text_model[._]")
_UNET = re.compile(r"(down|up|mid|input|output|middle)_blocks?[._]")
_MATRIX = 2  # dimensions


def parsed_files(path: Path) -> list[ParsedFile]:
    """Return a file taken apart; of a folder of several components, those of its files that can be used."""
    if component_files(path):
        return list(each_part(path, lambda parsed: parsed)[0].values())
    return [ParsedFile(AdapterFile.open(path))]


def model_for(
    components: Mapping[str, nn.Module] | None, files: Sequence[ParsedFile], call: str, *, needs_dots: bool
) -> Mapping[str, nn.Module]:
    """Return the model that the user gives to a call, else layers on meta of the shapes and names in files.

    Raises:
        FileError: the files do not tell them, or not in the same names.
    """
    if components is not None:
        check_named(components, call)
        return components
    parsed = [(one.file, [group for group in one.groups if group.recipe is not None]) for one in files]
    every = [one for _, own in parsed for one in own]
    named = [one.component for one in every if one.component not in (None, DENOISER) and is_denoiser(one.component)]
    usual = "unet" if any(_UNET.match(one.module) for one in every) else "transformer"
    denoiser = min(named, default=usual)
    model: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for file, groups in parsed:
        found: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
        for group in groups:
            component, name, shape = _layer(file, group, denoiser, needs_dots=needs_dots)
            found.setdefault(component, {})[name.replace(".", "_")] = (name, shape)
        for component, layers in found.items():
            known = model.setdefault(component, {})
            _check_alike(file, component, layers, known)
            for flat, (name, shape) in layers.items():
                has_more_dots = flat in known and known[flat][0].count(".") >= name.count(".")
                known[flat] = known[flat] if has_more_dots else (name, shape)
    return {
        component: skeleton({f"{name}.weight": shape for name, shape in layers.values()})
        for component, layers in model.items()
    }


def _layer(file: AdapterFile, group: Group, denoiser: str, *, needs_dots: bool) -> tuple[str, str, tuple[int, ...]]:
    """Return the component, the name and the shape of the weight of a layer."""
    component = denoiser if group.component == DENOISER else group.component
    if component is None and _ENCODER.match(group.module):
        component = TEXT_ENCODER
    elif component is None and _UNET.match(group.module):
        component = denoiser
    lacks = "where its name has dots" if group.flattened and needs_dots else ""
    lacks = lacks or ("" if group.own_site else "the shape of its weight")
    if lacks or component is None or group.own_site is None:
        raise FileError(file.path, f"nothing tells {lacks or 'the component'} of {group.module}; {_MODEL}")
    name = _JOINED.sub(".", group.module) if group.flattened else group.module
    return component, name, group.own_site.shape


def _check_alike(
    file: AdapterFile,
    component: str,
    layers: Mapping[str, tuple[str, tuple[int, ...]]],
    known: Mapping[str, tuple[str, tuple[int, ...]]],
) -> None:
    """Raise FileError where the layers of a file have other names or shapes than in the files before."""
    common = layers.keys() & known.keys()
    if known and not common:
        text = f"it has no layer of the {component} that another file has, or other names for them"
        raise FileError(file.path, f"{text}; {_MODEL}")
    for flat in sorted(common):
        shape, other = layers[flat][1], known[flat][1]
        if _as_matrix(shape) != _as_matrix(other):
            text = f"its layer {layers[flat][0]} has the shape {shape}, and {other} in another file"
            raise FileError(file.path, f"{text}; combine files for one model")


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a convolution of kernel 1 as that of a linear layer, which files write for each other."""
    return shape[:_MATRIX] if set(shape[_MATRIX:]) <= {1} else shape


@contextmanager
def model_is_asked_for(path: Path, *, where: bool) -> Iterator[None]:
    """Have an error ask for the model where there is none, and name a file."""
    try:
        yield
    except (ComponentError, NoMatchError) as error:
        if not where:
            raise
        why = error.reason if isinstance(error, NoMatchError) else str(error)
        raise FileError(error.path if isinstance(error, NoMatchError) else path, f"{why}; {_MODEL}") from error
