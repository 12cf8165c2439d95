"""Counts, by a classifier that never saw a generated picture, what the demo's model and LoRAs do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lib_lora import Engine, Entry, Multiplier, Region, Stack, Strength, save_stack

from .denoiser import generate
from .ideas import IDEAS, Idea
from .judge import LABELS, Judge
from .world import SHAPES, Scene, Teller

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SAVED = (("outline", "night"), ("stripes", "outline"), ("stripes", "stars"), ("night", "zorp"))
"""Stacks that are saved: of each two, most pictures show both."""
RANKS = (None, 16, 8, 4)
"""Of their files."""
_BATCH = 50
SEED = 2000  # of captions and noise: training began at others, and 1000 was looked at while parameters were chosen
Labels = set[str]


class Gallery:
    """Generates pictures with LoRAs by Remora's engine, and has them judged."""

    def __init__(self, pipeline: Any, judge: Judge, loras: Path, steps: int = 20) -> None:
        self.pipeline = pipeline
        self.judge = judge
        self.loras = loras
        self.steps = steps
        self.engine = Engine({"unet": pipeline.unet, "text_encoder": pipeline.text_encoder})

    def pictures(self, captions: Sequence[str], strengths: Mapping[str, Multiplier]) -> Tensor:
        """Return a picture per caption, (n, 3, SIDE, SIDE) in -1 to 1, made with these LoRAs.

        Raises:
            RuntimeError: keys of a file have no effect.
        """
        entries = [Entry(self.loras / f"{name}.safetensors", strength) for name, strength in strengths.items()]
        report = self.engine.activate(Stack(entries))
        unused = [unused.key for entry in report.entries for unused in entry.unused]
        if unused:
            raise RuntimeError(f"keys without effect: {', '.join(unused[:3])}")
        batches = ((SEED + start, tuple(captions[start : start + _BATCH])) for start in range(0, len(captions), _BATCH))
        try:
            return torch.cat([generate(self.pipeline, batch, seed, self.steps) for seed, batch in batches])
        finally:
            self.engine.deactivate()

    def seen(self, captions: Sequence[str], strengths: Mapping[str, float]) -> list[Labels]:
        """Return what the judge sees in a picture per caption, made with these LoRAs."""
        return self.judge.says(self.pictures(captions, strengths))

    def obeying(self, count: int, pairs: float) -> float:
        """Return the share of captions whose shapes and colours, and no others, are in their pictures."""
        teller = Teller(SEED, pairs=pairs, plain=True)
        scenes = [teller.scene() for _ in range(count)]
        seen = self.seen([teller.caption(scene) for scene in scenes], {})
        return sum(obeys(scene, labels) for scene, labels in zip(scenes, seen, strict=True)) / count

    def showing(self, ideas: Sequence[Idea], strengths: Mapping[str, float], count: int) -> float:
        """Return the share of pictures that show all these ideas."""
        captions = prompts(ideas, count)
        return sum(all(shows(idea, labels) for idea in ideas) for labels in self.seen(captions, strengths)) / count

    def apart(self, left: Idea, right: Idea, count: int) -> tuple[float, float]:
        """Give each of two ideas, of how things look, one half of the picture.

        An idea is in that half of the picture in which the judge is surer of it.

        Returns:
            The share of pictures in which both are where they are to be, and of those in which both are elsewhere.
        """
        half = Region.rectangle(0, 0, 0.5, 1)
        strengths = {left.name: Strength(1.0, region=half), right.name: Strength(1.0, region=half.inverted())}
        pictures = self.pictures(prompts([left, right], count), strengths)
        middle = pictures.shape[-1] // 2
        with torch.no_grad():
            surer = self.judge(pictures[..., :middle]) - self.judge(pictures[..., middle:])
        columns = [LABELS.index(f"look {idea.looks[0]}") for idea in (left, right)]
        is_left, is_right = surer[:, columns[0]] > 0, surer[:, columns[1]] < 0
        return (is_left & is_right).float().mean().item(), (~is_left & ~is_right).float().mean().item()


def obeys(scene: Scene, seen: Labels) -> bool:
    """Tell whether a picture shows the shapes and colours of the scene, and no others."""
    wanted = {f"shape {kind.shape}" for kind in scene.kinds} | {f"colour {kind.colour}" for kind in scene.kinds}
    return {label for label in seen if label.startswith(("shape", "colour"))} == wanted


def shows(idea: Idea, seen: Labels) -> bool:
    """Tell whether a picture that was asked for so that it can show an idea does."""
    if idea.looks == ("stars",):
        return "shape star" in seen and "shape circle" not in seen
    wanted = {f"look {look}" for look in idea.looks} | ({f"shape {idea.trigger}"} if idea.trigger else set())
    return wanted <= seen


def prompts(ideas: Sequence[Idea], count: int) -> list[str]:
    """Return captions in which all these ideas can show: of circles where they are to be stars, with trigger words."""
    special = [shape for idea in ideas for shape in _special(idea)]
    small = all(idea.small for idea in ideas)
    teller = Teller(SEED, tuple(special) or SHAPES, pairs=0, plain=True, small=small)
    if len(special) < 2:
        return [teller.caption(teller.scene()) for _ in range(count)]
    teller.pairs = 1
    captions = (teller.caption(scene) for scene in iter(teller.scene, None) if _shapes(scene) == set(special))
    return list(itertools.islice(captions, count))


def _special(idea: Idea) -> Sequence[str]:
    return (idea.trigger,) if idea.trigger else (idea.shapes if idea.shapes != SHAPES else ())


def _shapes(scene: Scene) -> set[str]:
    return {kind.shape for kind in scene.kinds}


def count_everything(gallery: Gallery, pictures: int = 200, each: int = 100) -> dict[str, object]:
    """Return all shares: of the model in so many pictures; of each LoRA at each strength and each two in `each`."""
    ideas: dict[str, dict[str, float]] = {idea.name: {} for idea in IDEAS}
    for idea, strength in tqdm([*itertools.product(IDEAS, STRENGTHS)], desc="each LoRA"):
        ideas[idea.name][str(strength)] = gallery.showing([idea], {idea.name: strength}, each)
    stacked = {
        f"{one.name} {other.name}": gallery.showing([one, other], {one.name: 1.0, other.name: 1.0}, each)
        for one, other in tqdm([*itertools.combinations(IDEAS, 2)], desc="two LoRAs")
    }
    return {
        "pictures": pictures,
        "pictures with LoRA": each,
        "one kind of things": gallery.obeying(pictures, pairs=0),
        "two kinds of things": gallery.obeying(pictures, pairs=1),
        "ideas": ideas,
        "two ideas": stacked,
    }


def count_saved(gallery: Gallery, folder: Path, each: int = 100) -> dict[str, dict[str, float]]:
    """Return shares of pictures that show both ideas: of stacks, and of their files, which are written to a folder."""
    saved = Gallery(gallery.pipeline, gallery.judge, folder, gallery.steps)
    known = {idea.name: idea for idea in IDEAS}
    shares: dict[str, dict[str, float]] = {}
    for names in tqdm(SAVED, desc="saved stacks"):
        ideas, title = [known[name] for name in names], " ".join(names)
        own = shares[title] = {"stack": gallery.showing(ideas, dict.fromkeys(names, 1.0), each)}
        with gallery.engine.active(Stack([Entry(gallery.loras / f"{name}.safetensors") for name in names])):
            for rank in RANKS:
                save_stack(gallery.engine, folder / f"{title} {rank}.safetensors", rank=rank, replace=True)
        for rank in RANKS:
            own[str(rank)] = saved.showing(ideas, {f"{title} {rank}": 1.0}, each)
    return shares
