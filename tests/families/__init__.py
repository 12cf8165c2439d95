"""What the tests know of each model family: its model, its own code's names, and how trainers write files for it.

Each `Architecture` has one file here or several, with a constant `FAMILY`; `families()` finds them. Files that begin
with `_` hold what several families share. All of it comes from the trainers and from diffusers' converters of
checkpoints, never from the tables under test.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests.conftest import TORCH, why_too_old

from .base import Family as Family
from .base import Writer as Writer


class Families(dict[str, Family]):
    """Families by name; a test is skipped that asks for one whose model the diffusers for an old torch lacks."""

    def __missing__(self, name: str) -> Family:
        if TORCH < (2, 3):
            pytest.skip(f"diffusers has no model of {name} yet")
        raise KeyError(name)


def families() -> Families:
    """All families, by name."""
    found = Families()
    for info in pkgutil.iter_modules(__path__):
        if info.name != "base" and not info.name.startswith("_"):
            try:
                family = importlib.import_module(f"{__name__}.{info.name}").FAMILY
            except (ImportError, AttributeError) as error:
                if why_too_old(error) is None:
                    raise
                continue
            found[family.name] = family
    return found
