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

PAIRS = (("night", "day"), ("night", "dawn"), ("outline", "filled"), ("stripes", "smooth"))
"""A LoRA of the demo, and the name of one that fights it. A rival's name is the seed of its training."""
TRIED = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
"""Strengths of the two: as a user has them, and as the doctor offers them where they cancel each other."""
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


def rival(name: str) -> Idea:
    """Return what a rival learns: usual pictures, while the first acts."""
    return Idea(name, name.title(), "Undoes another LoRA.", "lora", rank=8, pictures=600, steps=200)


def train_rival(pipeline: Any, first: Path, folder: Path, idea: Idea) -> None:
    """Write a copy of the first file, and the file that fights it."""
    folder.mkdir(parents=True, exist_ok=True)
    copyfile(first, folder / first.name)
    with acting(pipeline, first):
        trained = train_adapter(folder, pipeline, idea)
    write_lora(folder / f"{idea.name}.safetensors", idea, trained.tensors)


def count_fight(pipeline: Any, judge: Judge, folder: Path, names: tuple[str, str], count: int = 30) -> dict[str, Any]:
    """Return what the doctor says of the two, and what the judge sees in so many pictures at each of some strengths."""
    gallery = Gallery(pipeline, judge, folder, steps=12)
    measured = measure_stack([layers_of(folder / f"{name}.safetensors") for name in names])
    first = next(idea for idea in IDEAS if idea.name == names[0])
    stacks = [dict(zip(names, strengths, strict=True)) for strengths in TRIED]
    return {
        "pairs": [pair.to_json() for pair in measured.pairs],
        "pictures": count,
        "seen": [{"strengths": stack, **_seen(gallery, first, stack, count)} for stack in stacks],
    }


def _seen(gallery: Gallery, first: Idea, strengths: Mapping[str, float], count: int) -> dict[str, int]:
    """Return how many pictures show the first idea, and how many have the things of their captions and no others."""
    teller = Teller(SEED, pairs=0, plain=True, small=first.small)
    scenes = [teller.scene() for _ in range(count)]
    seen = gallery.seen([teller.caption(scene) for scene in scenes], strengths)
    return {
        "shown": sum(shows(first, labels) for labels in seen),
        "right": sum(obeys(scene, labels) for scene, labels in zip(scenes, seen, strict=True)),
    }
