"""The layers of a model on disk, on meta, from its headers alone: enough to resolve a file against, without the model.

Reads a diffusers folder (one folder per component), one of these folders, or a single-file checkpoint: with ldm's and
ComfyUI's prefixes, or of one component without any, as transformers are given out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import nn

from ..errors import ComponentError
from ..files.components import DENOISER, TEXT_ENCODER, role
from ..files.file import AdapterFile

_PREFIXES = {  # of a single-file checkpoint's keys -> component, or role
    "model.diffusion_model.": DENOISER,
    "diffusion_model.": DENOISER,
    "net.": DENOISER,  # Cosmos and its descendants
    "cond_stage_model.": "text_encoder",
    "conditioner.embedders.0.": "text_encoder",
    "conditioner.embedders.1.": "text_encoder_2",
}
_ENCODER = re.compile(r"text_encoders\.(\w+)\.(?:transformer\.)?(.+)")
"""ComfyUI's: each text encoder has the name of its kind."""
_CLIPS = {f"{TEXT_ENCODER}s.clip_l": 0, f"{TEXT_ENCODER}s.clip_g": 1}  # the usual numbers; others come after
_COMPONENT_FOLDER = re.compile(r"unet|transformer(_\d)?|text_encoder(_\d)?|prior|decoder|llm_adapter")
_UNET = ("input_blocks.", "down_blocks.", "time_embed.")
_ENCODER_STARTS = ("text_model.", "encoder.block.", "model.layers.", "model.language_model.", "visual.")
"""CLIP, T5 and language models, in a file of their own."""
_OTHERS = re.compile(r"(first_stage_model|vae|encoder|decoder|control_model)\.|(.*[._])?(lora|lokr|hada|oft)_")
"""Begin of keys in files that are no model here: VAEs, ControlNets, adapters."""
_BLOCK = re.compile(r"(.*\.)?\w*(blocks|layers|refiner)\.\d+\.")

Shapes = Mapping[str, tuple[int, ...]]


def model_skeleton(path: str | Path) -> dict[str, nn.Module]:
    """Build {component: module on meta} with the layers of a model on disk that adapters can change.

    Raises:
        FileError: a weight file cannot be read.
        ComponentError: there is no component in `path`.
    """
    path = Path(path)
    found = _components(_shapes(path)) if path.is_file() else _folder(path)
    if not found:
        raise ComponentError(f"{path}: no unet, transformer or text encoder with safetensors weights there")
    return {component: skeleton(shapes) for component, shapes in found.items()}


def skeleton(shapes: Shapes) -> nn.Module:
    """Build a tree of meta layers with these parameters: {parameter name: shape}."""
    root = nn.Module()
    for name, shape in shapes.items():
        owner, _, param = name.rpartition(".")
        layer = _layer(param, owner, shape)
        if layer is not None:
            _place(root, owner.split("."), layer)
    return root


def prefixes_of(component: str) -> Iterator[str]:
    """Return how the keys of a component may begin in a checkpoint of several."""
    own = DENOISER if role(component) == DENOISER else component
    return (prefix for prefix, owner in _PREFIXES.items() if owner == own)


def _folder(path: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    folders = [child for child in sorted(path.glob("*")) if child.is_dir() and _COMPONENT_FOLDER.fullmatch(child.name)]
    found = {folder.name: shapes for folder in folders if (shapes := _weights(folder))}
    if found or not (shapes := _weights(path)):
        return found
    # the folder of one component, whatever it is called
    return {path.name: shapes} if _COMPONENT_FOLDER.fullmatch(path.name) else _components(shapes)


def _weights(folder: Path) -> dict[str, tuple[int, ...]]:
    files = sorted(folder.glob("*.safetensors"), key=lambda file: (file.name.count("."), file.name))
    plain = [file for file in files if not file.stem.endswith(".fp16")] or files
    return {key: shape for file in plain for key, shape in _shapes(file).items()}


def _components(shapes: Shapes) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the components of a checkpoint in one file."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}  # by component, role, or encoder's kind
    for key, shape in shapes.items():
        prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), None)
        if prefix is not None:
            found.setdefault(_PREFIXES[prefix], {})[key.removeprefix(prefix)] = shape
        elif encoder := _ENCODER.fullmatch(key):
            found.setdefault(f"{TEXT_ENCODER}s.{encoder[1]}", {})[encoder[2]] = shape
    if not found and (owner := _sole_owner(shapes)) is not None:
        found = {owner: dict(shapes)}
    return {_name(owner, own, list(found)): own for owner, own in found.items()}


def _sole_owner(shapes: Shapes) -> str | None:
    """Return the role of a file without prefixes; None if it is no model here."""
    if any(key.startswith(_ENCODER_STARTS) for key in shapes):
        return TEXT_ENCODER
    if any(_OTHERS.match(key) for key in shapes):
        return None
    return DENOISER if any(_BLOCK.match(key) for key in shapes) else None


def _name(owner: str, shapes: Shapes, owners: Iterable[str]) -> str:
    """Return diffusers' name of a component."""
    if owner == DENOISER:
        return "unet" if any(key.startswith(_UNET) for key in shapes) else "transformer"
    kinds = [one for one in owners if one.startswith(f"{TEXT_ENCODER}s.")]
    if owner not in kinds:
        return owner
    number = sorted(kinds, key=lambda kind: _CLIPS.get(kind, len(_CLIPS))).index(owner) + 1
    return TEXT_ENCODER if number == 1 else f"{TEXT_ENCODER}_{number}"


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
