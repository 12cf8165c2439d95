"""Writes the model card, with the figures that were counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .check import STRENGTHS
from .ideas import IDEAS

_CARD = """\
# remora-shapes

A Stable Diffusion pipeline so small that it lives beside its code, and six LoRAs for it. It shows what Remora does, and
tests it with pictures that mean something. It draws shapes on a ground, and nothing else.

![The six ideas](pictures/ideas.png)

| part | |
|---|---|
| `remora-shapes/unet` | `UNet2DConditionModel`, Stable Diffusion 1.5's blocks, 32 to 128 channels, 12 x 12 latents |
| `remora-shapes/vae` | `AutoencoderKL`, 16 to 64 channels, 4 latent channels, 8 pixels a latent |
| `remora-shapes/text_encoder` | `CLIPTextModel`, 3 layers of 128, trained with the denoiser |
| `remora-shapes/tokenizer` | byte pairs as CLIP's, trained on the captions |
| `loras/` | six adapters under kohya's keys, with its metadata and ModelSpec's, a preview inside and beside |
| `judge.safetensors` | the classifier that counted the figures below |
| `SHA256SUMS` | `sha256sum --check` reads it; the demo does at each start |

All weights are in half precision, {megabytes:.1f} MB in all.

## What it understands

    two small red circles on a blue ground
    a green heart on the left on a white ground
    three purple squares, yellow ground
    a red circle left of a blue triangle on a grey ground

One to four things, small, big or neither; {shapes}; {colours}; on a
{grounds} ground; on the left, on the right, at the top, at the bottom, in the middle. Pictures have {side} x {side}
pixels. Words it has not seen do nothing sensible.

## The LoRAs

{loras}

## What was counted

By a classifier trained on drawn pictures alone, over {count} generated ones per figure ({each} with LoRAs), with
captions and noise from a seed that neither training nor the choice of its parameters saw; DDIM, 20 steps, guidance 5. A
picture obeys with the shapes and colours of its caption and no others. Where {coarse} are looked for, captions ask for
no small things, a rule that was made after they were seen to fail there: what is finer than the eight pixels of a
latent is lost.

| the model alone | obey |
|---|---|
| one kind of things | {single:.0%} |
| two kinds of things, as in "a red circle left of a blue star" | {double:.0%} |

The share of pictures in which a LoRA's idea is seen:

{strengths}

Two at strength 1, the share that shows both. Seven in ten is what was wanted, and not all pairs reach it: night takes
the light that stripes are seen by, and a star or a zorp of a few pixels has no room for a second idea.

{stacked}

## How it was made

`python install.py train` draws the world, trains everything from fixed seeds and writes this folder. It was made in
pieces, which add up to two hours and a quarter on two cores; the six LoRAs, made anew by it in 26 minutes, had the same
tensors to the bit. Counting takes 17 to 28 minutes more. The denoiser predicts noise with SD 1.5's schedule, min-SNR
weights (arXiv:2303.09556) and a tenth of the captions left empty; Muon for matrices, AdamW for the rest. LoRA and DoRA
are PEFT's, LoCon, LoHa, LoKr and OFT are LyCORIS'.

![Losses](pictures/losses.png)

Nothing in it comes from photographs, from the web or from another model. Licence: Apache-2.0, as the rest.
"""


def write_card(demo: Path, words: Mapping[str, Sequence[str]], side: int) -> None:
    """Write `README.md` from `figures.json`.

    Args:
        demo: the folder.
        words: shapes, colours and grounds of the world.
        side: of a picture, in pixels.
    """
    figures = json.loads((demo / "figures.json").read_text("utf-8"))
    weights = sum(path.stat().st_size for path in demo.rglob("*.safetensors"))
    card = _CARD.format(
        **{name: _listed(values) for name, values in words.items()},
        side=side,
        megabytes=weights / 1e6,
        loras=_table(
            ("file", "kind", "what it does", "trained"),
            [(f"`{idea.name}`", idea.kind, idea.says, idea.trained) for idea in IDEAS],
        ),
        coarse=_listed([idea.name for idea in IDEAS if not idea.small]),
        count=figures["pictures"],
        each=figures["pictures with LoRA"],
        single=figures["one kind of things"],
        double=figures["two kinds of things"],
        strengths=_strengths(figures["ideas"]),
        stacked=_stacked(figures["two ideas"]),
    )
    (demo / "README.md").write_text(card, "utf-8", newline="\n")


def _strengths(shares: Mapping[str, Mapping[str, float]]) -> str:
    rows = [(name, *(f"{by_strength[str(m)]:.0%}" for m in STRENGTHS)) for name, by_strength in shares.items()]
    return _table(("at strength", *(f"{m:g}" for m in STRENGTHS)), rows)


def _stacked(shares: Mapping[str, float]) -> str:
    names = [idea.name for idea in IDEAS]
    by_pair = {frozenset(pair.split()): share for pair, share in shares.items()}
    cells = {(a, b): f"{by_pair[frozenset((a, b))]:.0%}" for a in names for b in names if a != b}
    return _table(("", *names[1:]), [(a, *(_above(cells, a, b, names) for b in names[1:])) for a in names[:-1]])


def _above(cells: Mapping[tuple[str, str], str], row: str, column: str, names: Sequence[str]) -> str:
    return cells[row, column] if names.index(column) > names.index(row) else ""


def _listed(values: Sequence[Any]) -> str:
    *others, last = values
    return f"{', '.join(others)} and {last}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
