"""Make the demo's model, its LoRAs, the classifier and the figures: `python install.py train`.

About two hours on two cores. What is finished is kept in the folder of runs, and an interrupted run goes on there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusionPipeline

from .adapters import train_adapter
from .card import write_card
from .check import Gallery, count_everything, prompts
from .curves import plot_losses
from .denoiser import train_denoiser
from .files import write_lora
from .ideas import IDEAS
from .judge import load_judge, save_judge, train_judge
from .pictures import draw_pictures
from .vae import to_image, train_vae
from .world import COLOURS, GROUNDS, SHAPES, SIDE

ROOT = Path(__file__).resolve().parents[1]
MODEL = "remora-shapes"


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where unfinished training is kept")
    parser.add_argument("--demo", type=Path, default=ROOT / "demo", help="where the results go")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these (default: all): {', '.join(_MAKERS)}")
    arguments = parser.parse_args(argv)
    if unknown := [part for part in arguments.parts if part not in _MAKERS]:
        parser.error(f"no part is called {unknown[0]!r}; known are {', '.join(_MAKERS)}")
    arguments.demo.mkdir(parents=True, exist_ok=True)
    for part, make in _MAKERS.items():
        if part in arguments.parts or not arguments.parts:
            make(arguments.runs, arguments.demo)
    _write_checksums(arguments.demo)
    return 0


def _make_model(runs: Path, demo: Path) -> None:
    pipeline = train_denoiser(runs, train_vae(runs))
    pipeline.to(torch.float16).save_pretrained(demo / MODEL)


def _make_judge(runs: Path, demo: Path) -> None:
    save_judge(train_judge(runs), demo / "judge.safetensors")


def _make_loras(runs: Path, demo: Path) -> None:
    folder = demo / "loras"
    folder.mkdir(exist_ok=True)
    pipeline = _load(demo)
    for idea in IDEAS:
        tensors = train_adapter(runs, pipeline, idea).tensors
        path = folder / f"{idea.name}.safetensors"
        write_lora(path, idea, tensors)
        gallery = Gallery(pipeline, load_judge(demo / "judge.safetensors"), folder)
        preview = gallery.pictures(prompts([idea], 1), {idea.name: 1.0})[0]
        write_lora(path, idea, tensors, to_image(preview))


def _make_figures(_: Path, demo: Path) -> None:
    gallery = Gallery(_load(demo), load_judge(demo / "judge.safetensors"), demo / "loras")
    text = json.dumps(count_everything(gallery), indent=2)
    (demo / "figures.json").write_text(f"{text}\n", "utf-8")
    print(text)


def _make_pictures(runs: Path, demo: Path) -> None:
    folder = demo / "pictures"
    folder.mkdir(exist_ok=True)
    _write_checksums(demo)
    draw_pictures(folder, demo)
    order = ("vae", "decoder", "denoiser", "denoiser-again", "judge", *(idea.name for idea in IDEAS))
    tables = [table for name in order if (table := runs / f"{name}.csv").is_file()]
    if tables:
        plot_losses(tables, folder / "losses.png")
    words = {"shapes": SHAPES, "colours": tuple(COLOURS), "grounds": tuple(GROUNDS)}
    write_card(demo, words, SIDE)


_MAKERS = {
    "model": _make_model,
    "judge": _make_judge,
    "loras": _make_loras,
    "figures": _make_figures,
    "pictures": _make_pictures,
}


def _load(demo: Path) -> Any:
    """Load the finished model as it is used: from half precision, for computing in single."""
    pipeline = StableDiffusionPipeline.from_pretrained(demo / MODEL, local_files_only=True, dtype=torch.float32)
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        part.eval().requires_grad_(False)
    return pipeline


def _write_checksums(demo: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    files = sorted(path for path in demo.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".json"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(demo).as_posix()}" for path in files]
    (demo / "SHA256SUMS").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
