"""Other extensions that do not work while Remora applies LoRA, recognised by their attributes, for the user.

An extension that registers a handler of its own for the tags, such as loractl, is found in `_extra_networks` instead.
ControlNet, ADetailer, Dynamic Prompts, tiled VAE and tiled diffusion, HiDiffusion and Regional Prompter's attention
mode work, and are tested with stand-ins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ._webui_modules import module


@dataclass(frozen=True)
class Conflict:
    """One extension."""

    marks: tuple[str, ...]
    """Names that only its script defines together."""
    sentence: str


SCRIPTS = (
    # Source: hako-mikan/sd-webui-lora-block-weight; it edits the built-in's loaded networks or its patches
    Conflict(
        ("loradealer", "load_loras_blocks"),
        "LoRA Block Weight changes the web UI's own LoRA only: its weights of blocks, and its start and stop, have no"
        " effect while Remora applies LoRA",
    ),
    # Source: hako-mikan/sd-webui-regional-prompter scripts/latent.py; it sets the multipliers of the built-in's
    # networks for each call
    Conflict(
        ("lora_namer", "setuploras"),
        "Regional Prompter's latent mode gives regions their LoRA through the web UI's own: while Remora applies LoRA,"
        " each acts on the whole picture",
    ),
    # Source: opparco/stable-diffusion-webui-composable-lora; it adds the built-in's loaded networks in its own forwards
    Conflict(
        ("composable_lora", "ComposableLoraScript"),
        "Composable LoRA divides the web UI's own LoRA among the parts of a prompt: while Remora applies LoRA, each"
        " acts on all parts",
    ),
    # Source: Haoming02/sd-forge-couple lib_couple/attention_couple.py; lib_lora refuses such a call
    Conflict(
        ("AttentionCouple",),
        "Forge Couple repeats the images of a batch inside the model: with it on, the images of one batch must all"
        " have the same LoRA; a batch count has no such limit",
    ),
)


def found() -> tuple[str, ...]:
    """Return one sentence for each installed extension that conflicts."""
    return tuple(dict.fromkeys(_of_scripts(_scripts())))


def _scripts() -> Iterator[ModuleType]:
    for data in getattr(module("modules.scripts"), "scripts_data", ()):
        own = getattr(data, "module", None)
        if own is not None:
            yield own


def _of_scripts(scripts: Iterable[Any]) -> Iterator[str]:
    for script in scripts:
        for conflict in SCRIPTS:
            if all(hasattr(script, mark) for mark in conflict.marks):
                yield conflict.sentence
