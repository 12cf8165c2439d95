"""Makes LoRA files for the model that a web UI runs, from the names and shapes in its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

NAMES = ("remora-trial-a", "remora-trial-b", "remora-trial-c")
_RANKS = (4, 8, 2)
_SHARE = 0.4
"""Standard deviation of a delta by that of a layer's usual first weights: enough to be seen at 0.2."""
_LEAST = 8
_PREFIXES = {
    "model.diffusion_model.": "lora_unet_",
    "cond_stage_model.transformer.text_model.": "lora_te_text_model_",
    "conditioner.embedders.0.transformer.text_model.": "lora_te1_text_model_",
}
_FOLDERS = {
    "unet": "lora_unet_",
    "transformer": "transformer.",
    "text_encoder": "lora_te_",
}
_ATTENTION = re.compile(r"attn|attention")


class NoLayersError(Exception):
    """A checkpoint in which no layers for a LoRA are found."""


def make_loras(checkpoint: Path, folder: Path) -> tuple[str, ...]:
    """Write three LoRA files for a model, of other layers' numbers and ranks each.

    Args:
        checkpoint: a safetensors file, or a folder in the layout of diffusers.
        folder: gets the files.

    Returns:
        their names in a tag.

    Raises:
        NoLayersError: the checkpoint shows no attention layers.
    """
    layers = dict(_layers(checkpoint))
    if not layers:
        raise NoLayersError(
            f"{checkpoint} has no attention layers whose names are known; make LoRA by hand: --lora NAME"
        )
    for seed, (name, rank) in enumerate(zip(NAMES, _RANKS, strict=True)):
        save_file(_tensors(layers, rank, np.random.default_rng(seed)), folder / f"{name}.safetensors")
    return NAMES


def _layers(checkpoint: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name in a LoRA file, shape of the weight)."""
    if checkpoint.is_file():
        shapes = _shapes(checkpoint)
        prefixes = _PREFIXES if any(key.startswith("model.diffusion_model.") for key in shapes) else {"": "lora_unet_"}
        yield from _named(shapes, prefixes)
        return
    for component, prefix in _FOLDERS.items():
        for file in sorted((checkpoint / component).glob("*.safetensors")):
            yield from _named(_shapes(file), {"": prefix})


def _shapes(file: Path) -> Mapping[str, tuple[int, ...]]:
    with safe_open(file, framework="numpy") as opened:
        return {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118  # no mapping


def _named(shapes: Mapping[str, tuple[int, ...]], prefixes: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for key, shape in shapes.items():
        path = key.removesuffix(".weight")
        if path == key or len(shape) != 2 or min(shape) < _LEAST or not _ATTENTION.search(path):
            continue
        for prefix, ours in prefixes.items():
            if path.startswith(prefix):
                rest = path.removeprefix(prefix)
                yield ours + (rest if ours.endswith(".") else rest.replace(".", "_")), shape


def _tensors(layers: Mapping[str, tuple[int, ...]], rank: int, random: np.random.Generator) -> Mapping[str, np.ndarray]:
    tensors = {}
    for name, (rows, columns) in layers.items():
        down = random.normal(0, columns**-0.5, (rank, columns)).astype(np.float32)
        up = random.normal(0, _SHARE * rank**-0.5, (rows, rank)).astype(np.float32)
        dotted = "." in name
        tensors[f"{name}.lora_A.weight" if dotted else f"{name}.lora_down.weight"] = down
        tensors[f"{name}.lora_B.weight" if dotted else f"{name}.lora_up.weight"] = up
        if not dotted:
            tensors[f"{name}.alpha"] = np.array(rank, np.float32)
    return tensors
