"""The demo that Remora ships: a small model of a drawn world and six LoRA for it, made by `training`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "demo"
DEMO_PROMPT = "two red circles on a blue ground <lora:stripes:1> <lora:stars:1>"
DEMO_SEED = 1
"""The page begins with this seed, so that pictures differ by what the user changes alone."""
DEMO_MODEL = "remora-shapes"
DEMO_EXAMPLES = (
    "a big red circle on a blue ground",
    "a green heart on a white ground",
    "two yellow stars on a grey ground",
    "a purple square left of an orange triangle on a green ground",
)
"""Prompts of words that the model knows."""
_SUMS = "SHA256SUMS"


class DemoError(ValueError):
    """The demo's files are not as published; the message is one sentence for the user."""


@dataclass(frozen=True)
class Demo:
    """The files of the demo."""

    model: Path
    loras: Path


def find_demo(folder: Path = FOLDER) -> Demo:
    """Return the demo in `folder` after checking every file's checksum.

    Raises:
        DemoError: a file is missing or has changed.
    """
    for name, published in _published(folder).items():
        path = folder / name
        if not path.is_file():
            raise DemoError(f"{path} is missing; get a complete copy of Remora, or choose a model with --model")
        if hashlib.sha256(path.read_bytes()).hexdigest() != published:
            raise DemoError(f"{path} is damaged; download it again, or choose a model with --model")
    return Demo(folder / DEMO_MODEL, folder / "loras")


def _published(folder: Path) -> Mapping[str, str]:
    """Return the checksum of each file, as `sha256sum` wrote them: digest, two spaces, name."""
    try:
        lines = (folder / _SUMS).read_text("utf-8").splitlines()
    except OSError as error:
        raise DemoError(f"the demo in {folder} cannot be read ({error}); choose a model with --model") from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
