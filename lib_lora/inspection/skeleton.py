"""The layers of a model on disk, on meta, from its headers alone: enough to resolve a file against, without the model.

Reads a diffusers folder (one folder per component), one of these folders, or a single-file checkpoint: with ldm's and
ComfyUI's prefixes, or of one component without any, as transformers are given out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn

from ..errors import ComponentError
from ..files.file import AdapterFile
from ..naming.index import LayerIndex, components_of, parameter_of

COMPONENT_FOLDER = re.compile(r"unet|transformer(_\d)?|text_encoder(_\d)?|prior|decoder|llm_adapter|connectors")
_WEIGHTS = frozenset({"weight", "in_proj_weight", "scale_weight", "weight_scale"})
"""Parameters that are read: weights, and the scales of those in float8."""

Shapes = Mapping[str, tuple[int, ...]]


def model_skeleton(path: str | Path) -> dict[str, nn.Module]:
    """Build {component: module on meta} with the layers of a model on disk that adapters can change.

    Raises:
        FileError: a weight file cannot be read.
        ComponentError: there is no component in `path`.
    """
    path = Path(path)
    found = components_of(_shapes(path)) if path.is_file() else _folder(path)
    if not found:
        raise ComponentError(f"{path}: no unet, transformer or text encoder with safetensors weights there")
    return {component: skeleton(shapes) for component, shapes in found.items()}


def mapped_model(path: str | Path) -> dict[str, nn.Module]:
    """Build the same with the weights of the layers, which are read from the disk where a program reads them.

    A weight that is under another key, as of a text encoder in ComfyUI's files, stays on meta.

    Raises:
        FileError: a weight file cannot be read.
        ComponentError: there is no component in `path`.
    """
    path, components = Path(path), model_skeleton(path)
    for name, module in components.items():
        index = LayerIndex(name, module)
        own = path / name if (path / name).is_dir() else path
        for file in map(AdapterFile.open, [path] if path.is_file() else weight_files(own)):
            for key, info in file.infos.items():
                place = parameter_of(index, key)
                if place is not None and place[1] in _WEIGHTS:
                    layer, param = index.module(place[0]), place[1]
                    known = layer._parameters.get(param)
                    if known is None or known.shape == info.shape:
                        layer._parameters[param] = nn.Parameter(file.tensor(key), requires_grad=False)
    return components


def skeleton(shapes: Shapes) -> nn.Module:
    """Build a tree of meta layers with these parameters: {parameter name: shape}."""
    root = nn.Module()
    for name, shape in shapes.items():
        owner, _, param = name.rpartition(".")
        layer = _layer(param, owner, shape)
        if layer is not None:
            _place(root, owner.split("."), layer)
    return root


def _folder(path: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    folders = [child for child in sorted(path.glob("*")) if child.is_dir() and COMPONENT_FOLDER.fullmatch(child.name)]
    found = {folder.name: shapes for folder in folders if (shapes := _weights(folder))}
    if found or not (shapes := _weights(path)):
        return found
    # the folder of one component, whatever it is called
    return {path.name: shapes} if COMPONENT_FOLDER.fullmatch(path.name) else components_of(shapes)


def _weights(folder: Path) -> dict[str, tuple[int, ...]]:
    return {key: shape for file in weight_files(folder) for key, shape in _shapes(file).items()}


def weight_files(folder: Path) -> list[Path]:
    """List the files of a folder that have weights; those in fp16 only where there are no others."""
    files = sorted(folder.glob("*.safetensors"), key=lambda file: (file.name.count("."), file.name))
    return [file for file in files if not file.stem.endswith(".fp16")] or files


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {key: info.shape for key, info in AdapterFile.open(path).infos.items()}


def _layer(param: str, owner: str, shape: tuple[int, ...]) -> nn.Module | None:
    if param == "in_proj_weight":
        # head count does not show in shapes and does not matter on meta
        return nn.MultiheadAttention(shape[1], 1, device="meta")
    if param != "weight" or not 1 <= len(shape) <= 5:
        return None
    if len(shape) == 1:
        return nn.LayerNorm(shape, device="meta")  # which kind of norm makes no difference to adapters
    if len(shape) == 2:
        if owner.endswith(("embedding", "embed_tokens", "shared")):
            return nn.Embedding(*shape, device="meta")
        return nn.Linear(shape[1], shape[0], device="meta")
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 3]
    return convolution(shape[1], shape[0], shape[2:], device="meta")  # type: ignore[arg-type]


def _place(root: nn.Module, path: Iterable[str], layer: nn.Module) -> None:
    *parents, leaf = path
    owner = root
    for name in parents:
        if owner._modules.get(name) is None:
            owner.add_module(name, nn.Module())
        owner = owner.get_submodule(name)
    present = owner._modules.get(leaf)
    if present is not None and not isinstance(layer, nn.MultiheadAttention):
        if isinstance(present, nn.MultiheadAttention):
            return
        layer._modules.update(present._modules)
    owner.add_module(leaf, layer)
