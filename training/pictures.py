"""Makes the pictures of the README in the embedded web UI's own way: anybody gets the same from its page.

The sampler is DDIM, the guidance 5; prompts and seeds are those below, chosen among a few for showing the ideas well:
how often they are seen at all is counted by `check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from extension.hosts.txt2img import Txt2Img
from extension.standalone.demo import find_demo
from extension.standalone.model import load_model
from extension.standalone.render import Watch, render
from extension.standalone.studio import Studio, open_studio

from .check import RANKS, SAVED

_SIDE = 144  # pixels, of a picture as shown
_LABEL = 20
_GAP = 8
_PAPER, _INK = (255, 255, 255), (36, 41, 47)
_WATCH = Watch(lambda _: None, lambda: False)


@dataclass(frozen=True)
class Shown:
    """One picture and what is written above it."""

    label: str
    prompt: str
    seed: int


def _sweep(prompt: str, name: str, seed: int) -> list[Shown]:
    tags = [f"<lora:{name}:{strength:g}>" for strength in (0, 0.25, 0.5, 0.75, 1)]
    return [Shown(tag, f"{prompt} {tag}", seed) for tag in tags]


def _stack(prompt: str, one: str, other: str, seed: int) -> list[Shown]:
    first, second = f"<lora:{one}:1>", f"<lora:{other}:1>"
    return [
        Shown("without", prompt, seed),
        Shown(one, f"{prompt} {first}", seed),
        Shown(f"{one} + {other}", f"{prompt} {first} {second}", seed),
        Shown(other, f"{prompt} {second}", seed),
        Shown("off again: same bits", prompt, seed),
    ]


def _sides(prompt: str, one: str, other: str, seed: int) -> list[Shown]:
    left, right = f"<lora:{one}:1:mask=left", f"<lora:{other}:1:mask=right"
    return [
        Shown("without", prompt, seed),
        Shown(f"{one} left", f"{prompt} {left}>", seed),
        Shown(f"+ {other} right", f"{prompt} {left}> {right}>", seed),
        Shown("soft edges", f"{prompt} {left}:feather=0.5> {right}:feather=0.5>", seed),
        Shown("both everywhere", f"{prompt} <lora:{one}:1> <lora:{other}:1>", seed),
    ]


def _five(prompt: str, seed: int) -> list[Shown]:
    """Return what the README's table says to try, after the picture without."""
    tags = {
        "another strength": "<lora:stripes:0.8>",
        "a schedule": "<lora:night:0@0,1@0.5>",
        "a region": "<lora:stripes:1.5:mask=left>",
        "blocks": "<lora:outline:1:lbw=OUTALL>",
        "two at once": "<lora:stripes:1> <lora:night:0.6>",
    }
    return [Shown("no LoRA", prompt, seed), *(Shown(label, f"{prompt} {tag}", seed) for label, tag in tags.items())]


SHEETS: dict[str, Sequence[Sequence[Shown]]] = {
    "strength": [
        _sweep("two big red circles on a blue ground", "stripes", 4),
        _sweep("a big yellow circle on a blue ground", "night", 6),
    ],
    "stack": [_stack("three yellow circles on a blue ground", "outline", "night", 6)],
    "five": [_five("two big red circles on a blue ground", 2)],
    "regions": [
        _sides("four orange hearts on a green ground", "outline", "stripes", 2),
        _sides("two red triangles on a green ground", "stripes", "night", 1),
        [
            Shown("without", "four yellow circles on a blue ground", 5),
            Shown("stars", "four yellow circles on a blue ground <lora:stars:1>", 5),
            Shown("stars left: in vain", "four yellow circles on a blue ground <lora:stars:1:mask=left>", 5),
        ],
    ],
    "ideas": [
        [
            Shown("stripes", "a big purple heart on a green ground <lora:stripes:1>", 1),
            Shown("outline", "a big purple heart on a green ground <lora:outline:1>", 1),
            Shown("neon", "a big purple heart on a green ground <lora:neon:1>", 1),
            Shown("night", "a big purple heart on a green ground <lora:night:1>", 1),
            Shown("stars (circle)", "a big orange circle on a blue ground <lora:stars:1>", 1),
            Shown("zorp", "a green zorp on a white ground <lora:zorp:1>", 7),
        ]
    ],
}


_OF_SAVED = (
    ("three yellow circles on a blue ground", 6),
    ("four orange hearts on a green ground", 2),
    ("two big red circles on a blue ground", 2),
    ("a green zorp on a white ground", 7),
)
"""A prompt and a seed for each of SAVED."""


def draw_pictures(folder: Path, demo: Path | None = None) -> None:
    """Write one WebP per sheet.

    Raises:
        RuntimeError: the same prompt gave two pictures, which must not happen whatever came between.
    """
    found = find_demo() if demo is None else find_demo(demo)
    model, made = load_model(found.model, torch.float32), dict[Shown, Image.Image]()
    with closing(open_studio(model, torch.device("cpu"), [found.loras])) as studio:
        for name, rows in SHEETS.items():
            sheet(studio, rows, made).save(folder / f"{name}.webp", quality=70, method=6)


def draw_saved(folder: Path, demo: Path) -> None:
    """Write a sheet for each stack: its picture, and a picture of each file that `count_saved` put into the folder."""
    found = find_demo(demo)
    model = load_model(found.model, torch.float32)
    with closing(open_studio(model, torch.device("cpu"), [found.loras, folder])) as studio:
        for names, (prompt, seed) in zip(SAVED, _OF_SAVED, strict=True):
            title, tags = " ".join(names), " ".join([f"<lora:{name}:1>" for name in names])
            row = [Shown(" + ".join(names), f"{prompt} {tags}", seed)]
            for rank in RANKS:
                label = "file" if rank is None else f"rank {rank}"
                row.append(Shown(label, f"{prompt} <lora:{title} {rank}:1>", seed))
            sheet(studio, [row], {}).save(folder / f"{title}.webp", quality=60, method=6)


def sheet(studio: Studio, rows: Sequence[Sequence[Shown]], made: dict[Shown, Image.Image]) -> Image.Image:
    """Return rows of labelled pictures; `made` has those of every prompt so far, which have to be the same again."""
    across, down = max(map(len, rows)), len(rows)
    size = (across * (_SIDE + _GAP) + _GAP, down * (_SIDE + _LABEL + _GAP) + _GAP)
    paper = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(paper), ImageFont.load_default(13)
    for y, row in enumerate(rows):
        for x, shown in enumerate(row):
            picture = _picture(studio, shown)
            if made.setdefault(replace(shown, label=""), picture).tobytes() != picture.tobytes():
                raise RuntimeError(f"{shown.prompt!r} gave another picture than before")
            left, top = _GAP + x * (_SIDE + _GAP), _GAP + y * (_SIDE + _LABEL + _GAP)
            pen.text((left + _SIDE / 2, top + _LABEL / 2), shown.label, _INK, font, anchor="mm")
            paper.paste(picture.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC), (left, top + _LABEL))
    return paper


def _picture(studio: Studio, shown: Shown) -> Image.Image:
    side = studio.model.side
    request = Txt2Img(shown.prompt, steps=20, sampler="DDIM", cfg_scale=5, width=side, height=side, seed=shown.seed)
    (picture,) = render(studio, request, _WATCH).pictures
    return picture.image
