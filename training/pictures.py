"""Makes the pictures of the README in the embedded web UI's own way, so that anybody gets the same from its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from extension.generation import Txt2Img
from extension.standalone.demo import find_demo
from extension.standalone.model import load_model
from extension.standalone.render import Watch, render
from extension.standalone.studio import Studio, open_studio

SEED = 4
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


SWEEP = "two big red circles on a blue ground"
SHEETS: dict[str, Sequence[Sequence[Shown]]] = {
    "strength": [
        [Shown(f"<lora:{name}:{strength:g}>", f"{SWEEP} <lora:{name}:{strength:g}>") for strength in strengths]
        for name, strengths in (("stripes", (0, 0.25, 0.5, 0.75, 1)), ("night", (0, 0.25, 0.5, 0.75, 1)))
    ],
    "stack": [
        [
            Shown("without", "three yellow circles on a blue ground"),
            Shown("outline", "three yellow circles on a blue ground <lora:outline:1>"),
            Shown("outline + night", "three yellow circles on a blue ground <lora:outline:1> <lora:night:1>"),
            Shown("night", "three yellow circles on a blue ground <lora:night:1>"),
            Shown("off again: same bits", "three yellow circles on a blue ground"),
        ]
    ],
    "ideas": [
        [
            Shown("stripes", "a big purple heart on a green ground <lora:stripes:1>"),
            Shown("outline", "a big purple heart on a green ground <lora:outline:1>"),
            Shown("neon", "a big purple heart on a green ground <lora:neon:1>"),
            Shown("night", "a big purple heart on a green ground <lora:night:1>"),
            Shown("stars (circle)", "a big orange circle on a blue ground <lora:stars:1>"),
            Shown("zorp", "a big green zorp on a pink ground <lora:zorp:1>"),
        ]
    ],
}


def draw_pictures(folder: Path, demo: Path | None = None) -> None:
    """Write one PNG per sheet.

    Raises:
        RuntimeError: the same prompt gave two pictures, which must not happen whatever came between.
    """
    found = find_demo() if demo is None else find_demo(demo)
    studio = open_studio(load_model(found.model, torch.float32), torch.device("cpu"), [found.loras])
    made: dict[str, Image.Image] = {}
    try:
        for name, rows in SHEETS.items():
            sheet(studio, rows, made).save(folder / f"{name}.png", optimize=True)
    finally:
        studio.close()


def sheet(studio: Studio, rows: Sequence[Sequence[Shown]], made: dict[str, Image.Image]) -> Image.Image:
    """Return rows of labelled pictures; `made` has those of every prompt so far, which have to be the same again."""
    across, down = max(map(len, rows)), len(rows)
    size = (across * (_SIDE + _GAP) + _GAP, down * (_SIDE + _LABEL + _GAP) + _GAP)
    paper = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(paper), ImageFont.load_default(13)
    for y, row in enumerate(rows):
        for x, shown in enumerate(row):
            picture = _picture(studio, shown.prompt)
            if made.setdefault(shown.prompt, picture).tobytes() != picture.tobytes():
                raise RuntimeError(f"{shown.prompt!r} gave another picture than before")
            left, top = _GAP + x * (_SIDE + _GAP), _GAP + y * (_SIDE + _LABEL + _GAP)
            pen.text((left + _SIDE / 2, top + _LABEL / 2), shown.label, _INK, font, anchor="mm")
            paper.paste(picture.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC), (left, top + _LABEL))
    return paper


def _picture(studio: Studio, prompt: str) -> Image.Image:
    side = studio.model.side
    request = Txt2Img(prompt, steps=20, cfg_scale=7, width=side, height=side, seed=SEED)
    (picture,) = render(studio, request, _WATCH).pictures
    return picture.image
