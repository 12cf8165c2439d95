"""What a family is to the tests, and the helpers its file needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

Shapes = dict[str, tuple[int, ...]]
"""Parameter -> shape."""
FILLS = ("kaiming_uniform_", "normal_", "ones_", "trunc_normal_", "uniform_", "xavier_uniform_", "zeros_")
"""Functions of `torch.nn.init`, which take most of the time of a model on meta."""


@dataclass(frozen=True)
class Writer:
    """How one trainer writes files for a family.

    Args:
        format: name of the key format that must claim every key; several joined by `+`, the most frequent first.
        source: repository, file and line or function where the trainer writes it.
        key: (layer, canonical parameter) -> key in the file, for LoRA: parameters are `lora_down.weight`,
            `lora_up.weight` and `alpha`. None where the trainer does not write that parameter.
        names: whether the trainer calls layers by the `native` or the `diffusers` tree.
        layers: which of the layers it trains, by a part of their names; all linear layers if none are given.
        fuse: for trainers whose file has layers as one that the model has apart: {name in the file: layers of the
            model, in the order of the outputs}, of the model with few blocks.
        metadata: that the trainer writes, where it tells what the keys do not.
        component: whose layers it trains; the family's denoiser where none is given, else one of its `encoders`.
        tells: whether the file says what family it is for; of a text encoder that several have it may not.
    """

    format: str
    source: str
    key: Callable[[str, str], str | None]
    names: str = "native"
    layers: tuple[str, ...] = ()
    fuse: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    component: str = ""
    tells: bool = True


@dataclass(frozen=True)
class List:
    """What a real key list must come to.

    Args:
        format: name of the format that claims all its keys.
        layers: of the file.
        changed: layers of diffusers' model that they are.
        left: keys that nobody may use, by the reason -> how many.
        shapes: whether those of the list are to be trusted; else only its names are.
        tells: as in `Writer`.
    """

    format: str
    layers: int
    changed: int
    left: Mapping[str, int] = field(default_factory=dict)
    shapes: bool = True
    tells: bool = True


@dataclass(frozen=True)
class Made:
    """A list of keys that no real file is at hand for, as the trainer's source says, of the model with few blocks.

    Args:
        source: repository, file and line or function where the trainer writes it.
        shapes: every key and its shape.
        kinds: of adapter -> layers of the file.
        becomes: what the list must come to.
    """

    source: str
    shapes: Callable[[], Shapes]
    kinds: Mapping[str, int]
    becomes: List


@dataclass(frozen=True)
class Base:
    """A published checkpoint, of which there is a list of keys.

    Args:
        components: that have its weights, by the names of diffusers or of a host, in full size; none for a part of the
            model that no adapter changes.
        absent: weights that the converter of diffusers drops.
    """

    components: Mapping[str, Callable[[], nn.Module]]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """One model family.

    Args:
        name: of its `Architecture`, unless that is given.
        build: diffusers' denoiser on meta; with True in full size, else as wide with few blocks of each kind.
        component: diffusers' name of it.
        native: parameters of the model with few blocks as its own code has them; empty where that has the names of
            diffusers. Every layer that adapters can change.
        convert: diffusers' converter of such a checkpoint. It may take no more than it needs, so it gets a copy.
        writers: by a name for the test.
        lists: file name in `real-keys` -> what it must come to.
        made: lists of other kinds than LoRA, by a name for the test.
        encoders: other components, by diffusers' names, on meta in full size, for lists that have them.
        architecture: name of the `Architecture`, where a family has several models here.
        named: what trainers write of it as `ss_base_model_version` and `modelspec.architecture`. Sources:
            kohya-ss/sd-scripts library/sai_model_spec.py and model_util.py; kohya-ss/musubi-tuner
            utils/sai_model_spec.py and dataset/architectures.py; ostris/ai-toolkit `get_base_model_version`;
            Nerogar/OneTrainer resources/sd_model_spec; bghira/SimpleTuner save_hooks.py,
            `_derive_modelspec_architecture`.
        alone: `layer:inputs`, each of which tells the family without any other, in each spelling. Trainers leave out
            all but attention.
        both_trees: whether A1111, Forge and their kin have the model under the names of its own code.
        blocks_of: other families with the same blocks, of `sd1`, `sdxl` and `flux`.
        bases: file name in `real-keys`, without `invokeai_base_` -> the checkpoint that it lists.
    """

    name: str
    build: Callable[[bool], nn.Module]
    component: str = "transformer"
    native: Callable[[], Shapes] | None = None
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    writers: Mapping[str, Writer] = field(default_factory=dict)
    lists: Mapping[str, List] = field(default_factory=dict)
    made: Mapping[str, Made] = field(default_factory=dict)
    encoders: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)
    architecture: str = ""
    named: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    both_trees: bool = False
    blocks_of: tuple[str, ...] = ()
    bases: Mapping[str, Base] = field(default_factory=dict)

    @property
    def known_as(self) -> str:
        """What a file for it must be recognised as."""
        return self.architecture or self.name


def on_meta(cls: Callable[..., nn.Module], **config: Any) -> nn.Module:
    """Return a model without numbers."""
    with torch.device("meta"), patch.multiple(nn.init, **dict.fromkeys(FILLS, _unfilled)):
        return cls(**config)


def _unfilled(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


def linear(out: int, inside: int, *names: str, bias: bool = True) -> Shapes:
    """Parameters of linear layers of one shape."""
    found: Shapes = {}
    for name in names:
        found[f"{name}.weight"] = (out, inside)
        if bias:
            found[f"{name}.bias"] = (out,)
    return found


def norm(width: int, *names: str, param: str = "weight") -> Shapes:
    """Parameters of norms without a bias."""
    return {f"{name}.{param}": (width,) for name in names}


def below(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the same layers one level deeper."""
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def dotted(prefix: str, params: Mapping[str, str] | None = None) -> Callable[[str, str], str | None]:
    """Keys `prefix` + layer + `.` + parameter, in the trainer's spelling; parameters that are not in `params` are left
    out."""
    spelled = PEFT if params is None else params

    def key(layer: str, param: str) -> str | None:
        return f"{prefix}{layer}.{spelled[param]}" if param in spelled else None

    return key


def kohya(prefix: str = "lora_unet_") -> Callable[[str, str], str | None]:
    """Keys as kohya's scripts and musubi-tuner write them: the layer's dots as underscores."""

    def key(layer: str, param: str) -> str | None:
        return f"{prefix}{layer.replace('.', '_')}.{param}"

    return key


def converter(
    names: Mapping[str, Sequence[str]], checkpoint: Mapping[str, Tensor], swapped: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Return a checkpoint with other names, for families whose converter is no part of diffusers' package.

    Args:
        names: layer -> what it is called, or the equal parts it is divided into; `N` stands for the number of a block.
            Layers that are not in it keep their names.
        swapped: layer -> what it is called, where the halves of its outputs change places.
    """
    found = {}
    for key, value in checkpoint.items():
        layer, _, param = key.rpartition(".")
        number = re.search(r"(?<=blocks\.)\d+", layer)
        block = "" if number is None else number[0]
        general = re.sub(r"(?<=blocks\.)\d+", "N", layer)
        if swapped is not None and general in swapped:
            name = swapped[general].replace("blocks.N", f"blocks.{block}")
            found[f"{name}.{param}"] = torch.cat(first_columns(value).chunk(2)[::-1]).expand(value.shape)
            continue
        parts = names.get(general, [general])
        for name, part in zip(parts, value.chunk(len(parts)), strict=True):
            found[f"{name.replace('blocks.N', f'blocks.{block}')}.{param}"] = part
    return found


def first_columns(weight: Tensor) -> Tensor:
    """Return the first number of each row, which is all that the tests' checkpoints have, in as many dimensions."""
    return weight[(slice(None), *[slice(1)] * (weight.ndim - 1))]


PEFT = {"lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight"}
PEFT_NAMED = {param: name.replace(".weight", ".default.weight") for param, name in PEFT.items()}
PEFT_ALPHA = {**PEFT, "alpha": "alpha"}
KOHYA_PARAMS = {param: param for param in ("lora_down.weight", "lora_up.weight", "alpha")}


def linear_layers(names: Iterable[str], parts: Iterable[str]) -> list[str]:
    """Layers that contain one of these parts; all if there are none."""
    wanted = tuple(parts)
    return [name for name in names if not wanted or any(part in name for part in wanted)]
