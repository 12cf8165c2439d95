"""Makes LoRA that fight another one, and counts what the strengths that the doctor offers make of their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

from lib_lora import Engine, Entry, Stack
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.stacked import measure_stack

from .adapters import train_adapter
from .check import Gallery, obeys, shows
from .files import write_lora
from .ideas import IDEAS, Idea
from .judge import Judge
from .world import Teller

FIRST = next(idea for idea in IDEAS if idea.name == "night")
RIVAL = Idea("day", "Day", "Undoes night.", "lora", rank=8, pictures=600, steps=200)
"""It learns usual pictures while `FIRST` acts."""
TRIED = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 0.5), (1.5, 1.0), (2.0, 1.0))
"""Strengths of the two, beside those that the doctor offers."""
SEED = 4000  # of captions: no other count has it


@contextmanager
def acting(pipeline: Any, path: Path) -> Iterator[None]:
    """Let a file act in the weights of a model, so that it acts in copies of them too."""
    engine = Engine({"unet": pipeline.unet, "text_encoder": pipeline.text_encoder})
    engine.activate(Stack([Entry(path)], mode="merged"))
    try:
        yield
    finally:
        engine.deactivate()


def train_rival(pipeline: Any, first: Path, folder: Path, rival: Idea = RIVAL) -> None:
    """Write a copy of the first file, and the file that fights it."""
    folder.mkdir(parents=True, exist_ok=True)
    copyfile(first, folder / first.name)
    with acting(pipeline, first):
        trained = train_adapter(folder, pipeline, rival)
    write_lora(folder / f"{rival.name}.safetensors", rival, trained.tensors)


def count_fight(pipeline: Any, judge: Judge, folder: Path, count: int = 30) -> dict[str, Any]:
    """Return what the doctor says of the two, and what the judge sees in so many pictures at each of some strengths."""
    gallery = Gallery(pipeline, judge, folder, steps=12)
    names = FIRST.name, RIVAL.name
    measured = measure_stack([layers_of(folder / f"{name}.safetensors") for name in names])
    factor = measured.factor([1.0, 1.0])
    stacks = [dict(zip(names, strengths, strict=True)) for strengths in (*TRIED, (factor, factor))]
    return {
        "pairs": [pair.to_json() for pair in measured.pairs],
        "pictures": count,
        "seen": [{"strengths": stack, **_seen(gallery, stack, count)} for stack in stacks],
    }


def _seen(gallery: Gallery, strengths: Mapping[str, float], count: int) -> dict[str, int]:
    """Return how many pictures show `FIRST`, and how many have the things of their captions and no others."""
    teller = Teller(SEED, pairs=0, plain=True)
    scenes = [teller.scene() for _ in range(count)]
    seen = gallery.seen([teller.caption(scene) for scene in scenes], strengths)
    return {
        "shown": sum(shows(FIRST, labels) for labels in seen),
        "right": sum(obeys(scene, labels) for scene, labels in zip(scenes, seen, strict=True)),
    }
