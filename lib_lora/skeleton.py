"""The layers of a model on disk, on meta, from its headers alone: enough to resolve a file against, without the model.

Reads a diffusers folder (one folder per component) or a single-file checkpoint with ldm's prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn

from .errors import ComponentError
from .file import AdapterFile

PREFIXES = {  # of a single-file checkpoint's keys -> component
    "model.diffusion_model.": "unet",
    "cond_stage_model.": "text_encoder",
    "conditioner.embedders.0.": "text_encoder",
    "conditioner.embedders.1.": "text_encoder_2",
}
_COMPONENT_FOLDER = re.compile(r"unet|transformer(_\d)?|text_encoder(_\d)?|prior")

Shapes = Mapping[str, tuple[int, ...]]


def model_skeleton(path: str | Path) -> dict[str, nn.Module]:
    """Build {component: module on meta} with the layers of a model on disk that adapters can change.

    Raises:
        FileError: a weight file cannot be read.
        ComponentError: there is no component in `path`.
    """
    path = Path(path)
    found = _single_file(path) if path.is_file() else _folder(path)
    if not found:
        raise ComponentError(f"{path}: no unet, transformer or text encoder with safetensors weights there")
    return {component: skeleton(shapes) for component, shapes in found.items()}


def skeleton(shapes: Shapes) -> nn.Module:
    """A tree of meta layers that would have these parameters: {parameter name: shape}."""
    root = nn.Module()
    for name, shape in shapes.items():
        owner, _, param = name.rpartition(".")
        layer = _layer(param, owner, shape)
        if layer is not None:
            _place(root, owner.split("."), layer)
    return root


def _folder(path: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    found = {}
    for folder in sorted(child for child in path.glob("*") if child.is_dir()):
        if _COMPONENT_FOLDER.fullmatch(folder.name):
            files = sorted(folder.glob("*.safetensors"), key=lambda file: (file.name.count("."), file.name))
            plain = [file for file in files if not file.stem.endswith(".fp16")] or files
            shapes = {key: shape for file in plain for key, shape in _shapes(file).items()}
            if shapes:
                found[folder.name] = shapes
    return found


def _single_file(path: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, shape in _shapes(path).items():
        for prefix, component in PREFIXES.items():
            if key.startswith(prefix):
                found.setdefault(component, {})[key.removeprefix(prefix)] = shape
    return found


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {key: info.shape for key, info in AdapterFile.open(path).infos.items()}


def _layer(param: str, owner: str, shape: tuple[int, ...]) -> nn.Module | None:
    if param == "in_proj_weight":
        # head count does not show in shapes and does not matter on meta
        return nn.MultiheadAttention(shape[1], 1, device="meta")
    if param != "weight":
        return None
    if len(shape) == 1:
        return nn.LayerNorm(shape, device="meta")  # which kind of norm makes no difference to adapters
    if len(shape) == 2:
        if owner.endswith("embedding"):
            return nn.Embedding(*shape, device="meta")
        return nn.Linear(shape[1], shape[0], device="meta")
    classes: Mapping[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
        3: nn.Conv1d,
        4: nn.Conv2d,
        5: nn.Conv3d,
    }
    if len(shape) not in classes:
        return None
    return classes[len(shape)](shape[1], shape[0], shape[2:], device="meta")  # type: ignore[arg-type]


def _place(root: nn.Module, path: Iterable[str], layer: nn.Module) -> None:
    *parents, leaf = path
    owner = root
    for name in parents:
        child = owner._modules.get(name)
        if child is None:
            child = nn.Module()
            owner.add_module(name, child)
        owner = child
    present = owner._modules.get(leaf)
    if present is not None and not isinstance(layer, nn.MultiheadAttention):
        if not isinstance(present, nn.MultiheadAttention):
            layer._modules.update(present._modules)
            owner.add_module(leaf, layer)
        return
    owner.add_module(leaf, layer)
