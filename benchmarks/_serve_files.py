"""LoRA files for a load: many different ones, made from the demo's six, and some that are broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

DEMO = Path(__file__).resolve().parents[1] / "demo" / "loras"
SIX = ("stripes", "outline", "neon", "stars", "night", "zorp")
_CHANGED = ("lora_up.weight", "lokr_w1", "hada_w1_a", "oft_blocks", "lokr_w1_a")
"""Tensors whose factor changes what a file does."""


def name_of(number: int) -> str:
    """Return the name of a file."""
    return f"load{number:05d}"


def write_files(folder: Path, count: int, sources: Sequence[str] = SIX) -> None:
    """Write `count` different files, of these sources in turn; every file has another factor."""
    known = {name: _read(DEMO / f"{name}.safetensors") for name in sources}
    for number in range(count):
        tensors, metadata = known[sources[number % len(sources)]]
        factor = 0.8 + 0.4 * number / count
        changed = {key: tensor * factor if key.endswith(_CHANGED) else tensor for key, tensor in tensors.items()}
        title = {"ss_output_name": name_of(number), "load": json.dumps(number)}
        save_file(changed, folder / f"{name_of(number)}.safetensors", {**metadata, **title})


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        metadata = {key: value for key, value in (file.metadata() or {}).items() if key.startswith("ss_")}
        return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118  # it is no mapping


def break_files(folder: Path, numbers: Sequence[int]) -> None:
    """Cut these files in half."""
    for number in numbers:
        path = folder / f"{name_of(number)}.safetensors"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
