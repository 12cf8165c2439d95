"""Files of every kind and of every pair of kinds on single layers, beside the kinds' definitions in fp64."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import combinations_with_replacement, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import Record

from lib_lora import Engine, Entry, Moment, Stack, save_stack

CONTRACT: Any = import_module("tests.fakes.contract")
LAYERS: Any = import_module("tests.fakes.layers")
STRENGTHS: Mapping[int, tuple[float, ...]] = {1: (1.0,), 2: (0.7, -0.4)}
"""Of one entry, at which a DoRA stays one; and of two."""
END = Moment(step=0, steps=1, timestep=0.0)
"""When all ranks of all kinds act."""
HEADERS = ("kind", "forms", "layers", "in the file", "error", "of the stack", "pairs", "error of pairs", "largest with")


def saved_kinds(options: argparse.Namespace) -> list[Record]:
    """Return a row for each kind: each of its forms on each layer, and it with each kind that a layer is for, too."""
    forms: dict[str, list[Any]] = {}
    for sample in CONTRACT.SAMPLES:
        forms.setdefault(sample.recipe, []).append(sample)
    kinds = sorted(forms)[::10] if options.tiny else sorted(forms)
    cases = [case.values for case in CONTRACT.CASES]
    alone = [_measured((sample,), layer) for sample, layer in cases if sample.recipe in kinds]
    places = [_place(forms[first], forms[second]) for first, second in combinations_with_replacement(kinds, 2)]
    both = [_measured(pair, layer) for place in places if place is not None for pair, layer in [place]]
    return [_row(kind, alone, both) for kind in kinds]


def _place(firsts: Sequence[Any], seconds: Sequence[Any]) -> tuple[tuple[Any, Any], str] | None:
    """Return the first forms of two kinds that are for one layer, and that layer."""
    found = ((pair, CONTRACT.common(*pair)) for pair in product(firsts, seconds))
    return next(((pair, layer) for pair, layer in found if layer is not None), None)


def _measured(samples: Sequence[Any], layer: str) -> Record:
    """Save a stack of these; return how far the stack and the file are from what they mean, as shares of the change."""
    base, x = LAYERS.make(layer)
    shape, strengths = tuple(LAYERS.weight_of(base, layer).shape), STRENGTHS[len(samples)]
    engine = Engine({"unet": base})
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [CONTRACT.write(Path(folder), one, layer, shape, seed) for seed, one in enumerate(samples)]
        tensors = [own for _, own in files]
        wanted = CONTRACT.reference_of_all(base, layer, list(zip(samples, tensors, strengths, strict=True)))
        plain, want = CONTRACT.run(base, x), CONTRACT.run(wanted, x)
        engine.activate(Stack([Entry(path, one) for (path, _), one in zip(files, strengths, strict=True)]))
        stack = CONTRACT.run(base, x)
        saved = save_stack(engine, Path(folder, "saved.safetensors"), moment=END)
        (report,) = engine.activate(Stack([Entry(saved.path)])).entries
        file = CONTRACT.run(base, x)
    engine.close()
    size = float((want - plain).norm())
    return {
        "kinds": [one.recipe for one in samples],
        "names": [one.name for one in samples],
        "layer": layer,
        "in the file": sorted(report.kinds),
        "error": float((file - want).norm()) / size,
        "of the stack": float((stack - want).norm()) / size,
    }


def _row(kind: str, alone: Sequence[Record], both: Sequence[Record]) -> Record:
    """Sum up what was measured of a kind."""
    own = [one for one in alone if kind in one["kinds"]]
    pairs = [one for one in both if kind in one["kinds"]]
    worst = max(pairs, key=lambda one: float(one["error"]), default=None)
    other = [] if worst is None else [name for name in worst["kinds"] if name != kind]
    return {
        "kind": kind,
        "forms": len({name for one in own for name in one["names"]}),
        "layers": len({one["layer"] for one in own}),
        "in the file": ", ".join(sorted({name for one in own for name in one["in the file"]})),
        "error": max([one["error"] for one in own]),
        "of the stack": max([one["of the stack"] for one in own]),
        "pairs": len(pairs),
        "error of pairs": 0.0 if worst is None else worst["error"],
        "largest with": "-" if worst is None else ", ".join(other) or kind,
    }
