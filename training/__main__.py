"""Make the demo's model, its LoRAs, the classifier and the figures: `python install.py train`.

On two cores its parts take two hours and a quarter together, and the figures up to half an hour more. What is finished
is kept in the folder of runs, and an interrupted run goes on there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .card import write_card
from .check import Gallery, count_everything, count_saved
from .curves import plot_losses
from .denoiser import load_pipeline, train_denoiser
from .fights import PAIRS, count_fight, rival, train_rival
from .ideas import IDEAS
from .judge import load_judge, save_judge, train_judge
from .loras import make_loras
from .pictures import draw_pictures, draw_saved
from .rounded import round_lora, round_model
from .vae import train_vae
from .world import COLOURS, GROUNDS, SHAPES, SIDE

ROOT = Path(__file__).resolve().parents[1]
MODEL = "remora-shapes"


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where unfinished training is kept")
    parser.add_argument("--demo", type=Path, default=ROOT / "demo", help="where the results go")
    text = f"only these (default: all but fights): {', '.join(_MAKERS)}"
    parser.add_argument("parts", nargs="*", metavar="PART", help=text)
    arguments = parser.parse_args(argv)
    if unknown := [part for part in arguments.parts if part not in _MAKERS]:
        parser.error(f"no part is called {unknown[0]!r}; known are {', '.join(_MAKERS)}")
    arguments.demo.mkdir(parents=True, exist_ok=True)
    for part, make in _MAKERS.items():
        if part in arguments.parts or not (arguments.parts or part == "fights"):
            make(arguments.runs, arguments.demo)
    _write_checksums(arguments.demo)
    return 0


def _make_model(runs: Path, demo: Path) -> None:
    pipeline = train_denoiser(runs, train_vae(runs))
    pipeline.to(torch.float16).save_pretrained(demo / MODEL)


def _make_judge(runs: Path, demo: Path) -> None:
    save_judge(train_judge(runs), demo / "judge.safetensors")


def _make_loras(runs: Path, demo: Path) -> None:
    make_loras(IDEAS, runs, demo / MODEL, demo / "judge.safetensors", demo / "loras")


def _round_weights(_: Path, demo: Path) -> None:
    round_model(demo / MODEL)
    for path in sorted((demo / "loras").glob("*.safetensors")):
        round_lora(path)


def _gallery(demo: Path) -> Gallery:
    return Gallery(load_pipeline(demo / MODEL), load_judge(demo / "judge.safetensors"), demo / "loras")


def _make_figures(_: Path, demo: Path) -> None:
    gallery = _gallery(demo)
    text = json.dumps(count_everything(gallery), indent=2)
    (demo / "figures.json").write_text(f"{text}\n", "utf-8")
    print(text)


def _count_saved(runs: Path, demo: Path) -> None:
    folder = runs / "saved"
    folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps(count_saved(_gallery(demo), folder), indent=2))
    draw_saved(folder, demo)


def _make_pictures(runs: Path, demo: Path) -> None:
    folder = demo / "pictures"
    folder.mkdir(exist_ok=True)
    _write_checksums(demo)
    draw_pictures(folder, demo)
    order = ("vae", "decoder", "denoiser", "denoiser-again", "judge", *(idea.name for idea in IDEAS))
    tables = [table for name in order if (table := runs / f"{name}.csv").is_file()]
    if tables:
        plot_losses(tables, folder / "losses.webp")
    words = {"shapes": SHAPES, "colours": tuple(COLOURS), "grounds": tuple(GROUNDS)}
    write_card(demo, words, SIDE)


def _make_fights(runs: Path, demo: Path) -> None:
    pipeline, folder = load_pipeline(demo / MODEL), runs / "fights"
    judge, counted = load_judge(demo / "judge.safetensors"), {}
    for first, other in PAIRS:
        train_rival(pipeline, demo / "loras" / f"{first}.safetensors", folder, rival(other))
        counted[f"{first} {other}"] = count_fight(pipeline, judge, folder, (first, other))
    text = json.dumps(counted, indent=2)
    (folder / "fights.json").write_text(f"{text}\n", "utf-8")
    print(text)


_MAKERS = {
    "model": _make_model,
    "judge": _make_judge,
    "loras": _make_loras,
    "rounded": _round_weights,
    "figures": _make_figures,
    "saved": _count_saved,
    "pictures": _make_pictures,
    "fights": _make_fights,
}


def _write_checksums(demo: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    files = sorted(path for path in demo.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".json"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(demo).as_posix()}" for path in files]
    (demo / "SHA256SUMS").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
