"""One sample or more of every adapter kind, as a file holds it, with what it must do to a weight, in fp64.

The references are written from the papers and the trainers' forward, apart from the library: no code is shared. A new
kind is one more module here with a tuple `SAMPLES`; `tests/fakes/contract.py` puts each through every layer, way
and dtype.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import Sample

SAMPLES: tuple[Sample, ...] = tuple(
    sample
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name)
    if info.name != "base"
    for sample in importlib.import_module(f"{__name__}.{info.name}").SAMPLES
)
