"""How alike the epochs of real trainings are: `python -m tests.lib_lora.inspection.epochs FOLDER STEPS [IDEA ...]`.

Trains ideas of the demo as the project does, in so many steps, saves the weights at each eighth of them, as trainers do
at the end of an epoch, and prints the cosine of each two. It takes some minutes for an idea, so no test runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.sketches import compare, sketch
from tests.fakes.files import save
from tests.lib_lora.inspection.test_files import MODEL
from training import adapters
from training.denoiser import load_pipeline
from training.ideas import IDEAS, Idea
from training.loop import Trainer

EPOCHS = 8


def train(folder: Path, idea: Idea, steps: int) -> list[Path]:
    """Train an idea, and return the files of its epochs."""
    saved: list[Path] = []
    every = steps // EPOCHS

    class Saving(Trainer):
        def _update(self, step: int, loss: Callable[[Generator], Tensor]) -> float:
            value = super()._update(step, loss)
            if (step + 1) % every == 0:
                tensors = dict(_read(idea, self.modules))
                halves = {key: one.detach().half() for key, one in tensors.items()}
                saved.append(save(folder / f"{idea.name}-{len(saved) + 1}.safetensors", halves))
            return value

    adapters.Trainer = Saving  # type: ignore[misc]
    adapters.train_adapter(folder, load_pipeline(MODEL), replace(idea, steps=every * EPOCHS))
    return saved


def _read(idea: Idea, modules: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    read = adapters._read_peft if idea.algorithm in ("lora", "dora") else adapters._read_lycoris
    for module in modules:
        yield from read("lora_unet", module, idea)


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    torch.set_num_threads(1)
    folder, steps, names = Path(arguments[0]), int(arguments[1]), set(arguments[2:]) or {"night", "stripes"}
    folder.mkdir(parents=True, exist_ok=True)
    for idea in IDEAS:
        if idea.name not in names:
            continue
        files = train(folder, idea, steps)
        numbers = torch.stack([sketch(layers_of(path)).numbers for path in files])
        units = numbers / numbers.norm(dim=1, keepdim=True)
        cosines = [" ".join([f"{cosine:6.3f}" for cosine in row]) for row in (units @ units.T).tolist()]
        alike, _ = compare([sketch(layers_of(path)) for path in files])
        found = f"{len(alike)} of {len(files) * (len(files) - 1) // 2} pairs found"
        sys.stdout.write("\n".join([f"{idea.name}: {found}", *cosines, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
