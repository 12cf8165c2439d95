"""Makes the LoRA files, several at a time: each is trained on one core, and carries a picture it made."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from .adapters import train_adapter
from .check import Gallery, prompts
from .denoiser import load_pipeline
from .files import write_lora
from .ideas import Idea
from .judge import load_judge
from .vae import to_image


def make_loras(ideas: Sequence[Idea], runs: Path, model: Path, judge: Path, folder: Path) -> None:
    """Train LoRAs on the finished model, or go on where each stopped; two cores make two in the time of one."""
    folder.mkdir(exist_ok=True)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        for made in as_completed([workers.submit(make_lora, idea, runs, model, judge, folder) for idea in ideas]):
            made.result()


def make_lora(idea: Idea, runs: Path, model: Path, judge: Path, folder: Path) -> None:
    """Train one and write it."""
    torch.set_num_threads(1)  # which also gives the same bits on any number of cores
    pipeline = load_pipeline(model)
    tensors = train_adapter(runs, pipeline, idea).tensors
    path = folder / f"{idea.name}.safetensors"
    write_lora(path, idea, tensors)
    gallery = Gallery(pipeline, load_judge(judge), folder)
    picture = gallery.pictures(prompts([idea], 1), {idea.name: 1.0})[0]
    write_lora(path, idea, tensors, to_image(picture))
