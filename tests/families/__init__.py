"""What the tests know of each model family: its model, its own code's names, and how trainers write files for it.

Each `Architecture` has one file here or several, with a constant `FAMILY`; `families()` finds them. Files that begin
with `_` hold what several families share. All of it comes from the trainers and from diffusers' converters of
checkpoints, never from the tables under test.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import Family as Family
from .base import Writer as Writer


def families() -> dict[str, Family]:
    """All families, by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name != "base" and not info.name.startswith("_"):
            family = importlib.import_module(f"{__name__}.{info.name}").FAMILY
            found[family.name] = family
    return found
