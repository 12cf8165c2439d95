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

This is a Stable Diffusion pipeline that is small enough for the repository, with six LoRA for it. It shows what
Remora does, and tests use it. It draws shapes on a ground, and nothing else.

![The six ideas](pictures/ideas.webp)

| part | content |
|---|---|
| `remora-shapes/unet` | `UNet2DConditionModel`, Stable Diffusion 1.5's blocks, 32 to 128 channels, 12 x 12 latents |
| `remora-shapes/vae` | `AutoencoderKL`, 16 to 64 channels, 4 latent channels, 8 x 8 pixels for each latent |
| `remora-shapes/text_encoder` | `CLIPTextModel`, 3 layers of 128, trained with the denoiser |
| `remora-shapes/tokenizer` | byte pairs, as CLIP has them, trained on the captions |
| `loras/` | six LoRA with kohya's keys, metadata of kohya and ModelSpec, and a preview in the file and beside it |
| `judge.safetensors` | the classifier that counted the figures below |
| `SHA256SUMS` | checksums for `sha256sum --check`; the demo checks them at each start |

The UNet and the VAE are in float8 (E4M3), all else is in half precision, {megabytes:.1f} MB in all. git packs that to
half.

## What it understands

    two small red circles on a blue ground
    a green heart on the left on a white ground
    three purple squares, yellow ground
    a red circle left of a blue triangle on a grey ground

A caption may have:

- one to four things; small, big, or no size
- the shapes {shapes}
- the colours {colours}
- a {grounds} ground
- a place: on the left, on the right, at the top, at the bottom, in the middle

Pictures have {side} x {side} pixels. The model does not know other words.

## The LoRA

{loras}

## What was counted

A classifier, trained on drawn pictures only, counted {count} generated pictures for each figure ({each} with LoRA).
Captions and noise come from a seed that was not used in training, or to choose its parameters. The sampler is DDIM,
with 20 steps and guidance 5. A picture is right if it has the shapes and colours of its caption and no others.

For {coarse}, the captions have no small things. This rule was made after these LoRA failed with small things: details
that are smaller than the eight pixels of a latent are lost.

| the model without LoRA | right |
|---|---|
| one kind of things | {single:.0%} |
| two kinds of things, such as "a red circle left of a blue star" | {double:.0%} |

The share of pictures that show the effect of a LoRA:

{strengths}

The share of pictures that show both effects, with two LoRA at strength 1. The goal was seven in ten, and some pairs
miss it: night is too dark for stripes, and a star or a zorp of a few pixels is too small for a second effect.

{stacked}

## How it was made

`python install.py train` draws the training pictures, trains everything from fixed seeds and writes this folder. The
parts were made one by one, in two hours and a quarter together on two cores. The six LoRA were trained again in 26
minutes, and had the same tensors to the bit. Counting takes 17 to 28 minutes more.

Then all large matrices are rounded to few values each, as `training/rounded.py` says, so that a clone is small. The
figures above were counted after this.

The denoiser predicts noise with SD 1.5's schedule and min-SNR weights (arXiv:2303.09556). A tenth of the captions are
empty. The optimizers are Muon for matrices and AdamW for the rest. PEFT made LoRA and DoRA; LyCORIS made LoCon, LoHa,
LoKr and OFT.

![Losses](pictures/losses.webp)

No photographs, pictures from the web or other models were used. Licence: Apache-2.0, like the rest of Remora.
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
