"""Makes LoRA that fight another one, and counts what the strengths that the doctor offers make of their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

from lib_lora import Engine, Entry, Stack
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.stacked import StackMeasures, measure_stack

from .adapters import train_adapter
from .check import Gallery, obeys
from .files import write_lora
from .ideas import IDEAS, Idea
from .judge import Judge
from .world import Teller

FIRST = next(idea for idea in IDEAS if idea.name == "night")
RIVAL = Idea("day", "Day", "Undoes night.", "lora", rank=8, pictures=600, steps=200)
"""It learns usual pictures while `FIRST` acts."""
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


def count_fight(pipeline: Any, judge: Judge, folder: Path, count: int = 30) -> dict[str, object]:
    """Return what the doctor says of the two, and what the judge sees at strengths of 1 and at the doctor's."""
    gallery = Gallery(pipeline, judge, folder, steps=12)
    names = FIRST.name, RIVAL.name
    measured = measure_stack([layers_of(folder / f"{name}.safetensors") for name in names])
    offered = _offered(measured)
    return {
        "pictures": count,
        "relations": [[pair.band, pair.relation, round(pair.cosine, 3)] for pair in measured.pairs],
        "left": measured.left([1.0, 1.0]),
        "offered": offered,
        "at 1": _seen(gallery, dict.fromkeys(names, 1.0), count),
        "as offered": _seen(gallery, dict(zip(names, offered, strict=True)), count),
        FIRST.name: _seen(gallery, {FIRST.name: 1.0}, count),
        RIVAL.name: _seen(gallery, {RIVAL.name: 1.0}, count),
    }


def _offered(measured: StackMeasures) -> list[float]:
    """Return the strengths, rounded as in the tab, at which the file that loses the most has what it lost."""
    left = measured.left([1.0, 1.0])
    return [round(2 - share, 2) if share == min(left) else 1.0 for share in left]


def _seen(gallery: Gallery, strengths: Mapping[str, float], count: int) -> dict[str, int]:
    """Return how many pictures show each look, and how many have the things of their captions and no others."""
    teller = Teller(SEED, pairs=0, plain=True)
    scenes = [teller.scene() for _ in range(count)]
    seen = gallery.seen([teller.caption(scene) for scene in scenes], strengths)
    return {
        FIRST.name: sum(f"look {FIRST.name}" in labels for labels in seen),
        "right": sum(obeys(scene, labels) for scene, labels in zip(scenes, seen, strict=True)),
    }
