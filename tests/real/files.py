"""Makes LoRA files for the model that a web UI runs, from the names and shapes in its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

NAMES = ("remora-trial-a", "remora-trial-b", "remora-trial-c")
"""A LoRA as kohya's sd-scripts write it, one as PEFT or ComfyUI, and a LoKr of LyCORIS."""
_RANKS = (4, 8)
_DTYPES = (np.float16, np.float32, np.float16)
"""As these writers have it at first."""
_FACTOR = 4
"""Rows and columns of a LoKr's first matrix."""
_SHARE = 0.4
"""Standard deviation of a delta by that of a layer's usual first weights: enough to be seen at 0.2."""
_LEAST = 8
_PREFIXES = {
    "model.diffusion_model.": ("lora_unet_", "diffusion_model.", "lora_unet_"),
    "cond_stage_model.transformer.text_model.": ("lora_te_text_model_", None, "lora_te_text_model_"),
    "conditioner.embedders.0.transformer.text_model.": ("lora_te1_text_model_", None, "lora_te1_text_model_"),
}
"""Of a layer in a checkpoint of one file -> in each of the three files; None where its format has no such layers."""
_UNPREFIXED = {"": ("lora_unet_", "diffusion_model.", "lycoris_")}
_FOLDERS = {
    "unet": ("lora_unet_", "unet.", "lora_unet_"),
    "transformer": ("lora_transformer_", "transformer.", "lycoris_"),
    "transformer_2": (None, "transformer_2.", None),
    "text_encoder": ("lora_te_", None, "lora_te_"),
}
_ATTENTION = re.compile(r"attn|attention")


class NoLayersError(Exception):
    """A checkpoint in which no layers for a LoRA are found."""


def make_loras(checkpoint: Path, folder: Path) -> tuple[str, ...]:
    """Write three LoRA files for a model, each in another format and of another rank.

    Args:
        checkpoint: a safetensors file, or a folder in the layout of diffusers.
        folder: gets the files.

    Returns:
        their names in a tag.

    Raises:
        NoLayersError: the checkpoint shows no attention layers.
    """
    layers = list(_layers(checkpoint))
    if not layers:
        raise NoLayersError(
            f"{checkpoint} has no attention layers whose names are known; make LoRA by hand: --lora NAME"
        )
    for number, name in enumerate(NAMES):
        random, dtype, tensors = np.random.default_rng(number), _DTYPES[number], dict[str, np.ndarray]()
        for path, prefixes, (rows, columns) in layers:
            prefix = prefixes[number]
            if prefix is not None:
                named = prefix + (path if prefix.endswith(".") else path.replace(".", "_"))
                made = _kronecker if number == len(_RANKS) else partial(_pair, _RANKS[number], prefix.endswith("."))
                tensors |= {f"{named}.{key}": value.astype(dtype) for key, value in made(rows, columns, random).items()}
        save_file(tensors, folder / f"{name}.safetensors")
    return NAMES


Prefixes = tuple[str | None, str | None, str | None]


def _layers(checkpoint: Path) -> Iterator[tuple[str, Prefixes, tuple[int, int]]]:
    """Yield path, prefixes in the three files and shape of each layer."""
    if checkpoint.is_file():
        shapes = _shapes(checkpoint)
        whole = any(key.startswith("model.diffusion_model.") for key in shapes)
        yield from _found(shapes, _PREFIXES if whole else _UNPREFIXED)
        return
    for component, prefixes in _FOLDERS.items():
        for file in sorted((checkpoint / component).glob("*.safetensors")):
            if component != "text_encoder" or "CLIPText" in file.with_name("config.json").read_text(encoding="utf-8"):
                yield from _found(_shapes(file), {"": prefixes})


def _shapes(file: Path) -> Mapping[str, tuple[int, ...]]:
    with safe_open(file, framework="numpy") as opened:
        return {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118  # no mapping


def _found(
    shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Prefixes]
) -> Iterator[tuple[str, Prefixes, tuple[int, int]]]:
    for key, shape in shapes.items():
        path = key.removesuffix(".weight")
        if path == key or len(shape) != 2 or min(shape) < _LEAST or not _ATTENTION.search(path):
            continue
        for prefix, prefixes in known.items():
            if path.startswith(prefix):
                yield path.removeprefix(prefix), prefixes, (shape[0], shape[1])


def _pair(rank: int, is_peft: bool, rows: int, columns: int, random: np.random.Generator) -> Mapping[str, np.ndarray]:
    down = random.normal(0, columns**-0.5, (rank, columns))
    up = random.normal(0, _SHARE * rank**-0.5, (rows, rank))
    if is_peft:
        return {"lora_A.weight": down, "lora_B.weight": up}
    return {"lora_down.weight": down, "lora_up.weight": up, "alpha": np.array(rank)}


def _kronecker(rows: int, columns: int, random: np.random.Generator) -> Mapping[str, np.ndarray]:
    if rows % _FACTOR or columns % _FACTOR:
        return {}
    second = random.normal(0, _SHARE * columns**-0.5, (rows // _FACTOR, columns // _FACTOR))
    return {"lokr_w1": random.normal(0, 1, (_FACTOR, _FACTOR)), "lokr_w2": second}
