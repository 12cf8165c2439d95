"""Which model a file was made from, in the words of its trainer. Text for people; nothing is decided by it.

kohya's scripts and musubi-tuner write `ss_sd_model_name` and `ss_base_model_version`, ai-toolkit the second, OneTrainer
and SimpleTuner `modelspec.architecture`, PEFT `base_model_name_or_path` into its configuration, OneTrainer
`base_model_name` into its settings. `modelspec.title` is what the file itself is called, so it is none of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES = ("ss_sd_model_name", "ss_base_model")
_VERSIONS = ("ss_base_model_version", "modelspec.architecture")
_LONGEST = 120  # characters
_NOTHING = frozenset({"", "None", "unknown"})  # what trainers write where they know nothing


def base_model(metadata: Mapping[str, str], configured: object = None) -> str | None:
    """The name and the version of the model a file was made from; None where the header says nothing.

    Args:
        metadata: the header's.
        configured: the model's name or path in the trainer's configuration.
    """
    names = [*(metadata.get(key) for key in _NAMES), configured]
    name = next((text for one in names if (text := _name(one))), "")
    version = next((text for key in _VERSIONS if (text := _version(metadata.get(key)))), "")
    return (f"{name} ({version})" if name and version else name or version) or None


def _name(value: object) -> str:
    """A file's name without its folders, or one as on a hub, `owner/name`."""
    text = _clean(value)
    parts = re.split(r"[\\/]+", text.rstrip("\\/"))
    return parts[-1] if "\\" in text or text.startswith("/") or len(parts) > 2 else text


def _version(value: object) -> str:
    """Without what ModelSpec and OneTrainer append: `stable-diffusion-xl-v1-base/lora`, `sdxl_`."""
    return _clean(value).partition("/")[0].rstrip("_")


def _clean(value: object) -> str:
    """One line of printable text: a file may say anything."""
    text = value if isinstance(value, str) else ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return "" if line in _NOTHING else line[:_LONGEST]
