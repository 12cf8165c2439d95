"""A file of a stack of any kinds does what the stack does: the reference is the definition of each kind, in fp64."""

from __future__ import annotations

import pytest
import torch

from lib_lora import Engine, Entry, Moment, Stack, save_stack
from tests.covering import chosen
from tests.fakes.contract import (
    EACH,
    common,
    in_folders,
    of_recipes,
    reference,
    reference_of_all,
    run,
    worst,
    write,
)
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import exact, make, weight_of

BOUND = 3e-6
"""Largest error over the largest output: sources and files are fp32, some factors are products made in fp32."""
END = Moment(step=0, steps=1, timestep=0.0)
"""When all ranks act."""


def in_fp64(x):
    return x if x.dtype == torch.int64 else x.double()


@pytest.mark.parametrize("alike", of_recipes(EACH))
def test_the_file_of_one_entry(tmp_path, alike):
    for folder, sample, layer in in_folders(tmp_path, alike):
        _the_file_of_one_entry(folder, sample, layer)


def _the_file_of_one_entry(tmp_path, sample, layer):
    base, x = make(layer)
    path, tensors = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    pristine, served = exact(base), Engine({"unet": base})
    served.activate(Stack([Entry(path, 0.7)]))
    saved = save_stack(served, tmp_path / "saved.safetensors", moment=END)
    served.close()
    assert saved.error < 1e-6
    fresh = Engine({"unet": base})
    report = fresh.activate(Stack([Entry(saved.path)])).entries[0]
    assert not report.unused
    want = run(reference(pristine, layer, sample, tensors, 0.7), in_fp64(x))
    assert worst(run(base, x), want) < BOUND
    fresh.close()


PAIRS = chosen(SAMPLES, SAMPLES, strength=1)


SHARED = [case for case in PAIRS if common(*case.values) is not None]


@pytest.mark.parametrize("alike", of_recipes(SHARED))
def test_the_file_of_two_entries_of_any_kinds(tmp_path, alike):
    for folder, first, second in in_folders(tmp_path, alike):
        _the_file_of_two_entries(folder, first, second)


def _the_file_of_two_entries(tmp_path, first, second):
    layer, strengths = common(first, second), (0.7, -0.4)
    base, x = make(layer)
    shape = tuple(weight_of(base, layer).shape)
    files = [write(tmp_path, one, layer, shape, seed) for seed, one in enumerate((first, second))]
    tensors = [own for _, own in files]
    other = reference_of_all(base, layer, zip((first, second), tensors, strengths, strict=True))
    served = Engine({"unet": base})
    served.activate(Stack([Entry(path, strength) for (path, _), strength in zip(files, strengths, strict=True)]))
    saved = save_stack(served, tmp_path / "saved.safetensors", moment=END)
    served.close()
    fresh = Engine({"unet": base})
    fresh.activate(Stack([Entry(saved.path)]))
    assert worst(run(base, x), run(other, in_fp64(x))) < BOUND
    fresh.close()


TOO_LARGE = {"loha, many ranks", "loha tucker, many ranks"}
"""Their factors are larger than the weight of the test."""
NONE = {"bora", "lora with a sparse residual"}


def test_kinds_with_factors_stay_factors(tmp_path):
    """LoRA, LoCon with a core, LoHa and LoKr by their products of ranks, GLoRA by its parts: no whole difference."""
    ranks = {}
    for sample in SAMPLES:
        if sample.recipe.partition("+")[0] in ("lora", "loha", "lokr", "glora") and "dora" not in sample.recipe:
            layer = "linear, many tokens" if {"linear", "linear, many tokens"} & sample.layers else "conv 3x3, stride"
            base, _ = make(layer)
            path, _ = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
            served = Engine({"unet": base})
            served.activate(Stack([Entry(path)]))
            saved = save_stack(served, tmp_path / f"{sample.name}.safetensors", moment=END)
            ranks[sample.name] = saved.layers[0].rank
            served.close()
    assert {name for name, rank in ranks.items() if rank is None} == TOO_LARGE | NONE
    assert len(ranks) > 25
    wanted = {
        "lora": 4,
        "lora tucker": 3,
        "loha": 2 * 2,
        "loha of PEFT": 3 * 3,
        "lokr full, factored": 3 * 2,
        "glora": 6,
    }
    assert wanted.items() <= ranks.items()


@pytest.mark.parametrize("in_order", [False, True])
def test_in_order_each_acts_on_what_the_former_left(tmp_path, in_order):
    samples = [one for one in SAMPLES if one.name in ("dora by rows", "glora", "lora")]
    base, x = make("linear")
    files = [write(tmp_path, one, "linear", (48, 24), seed)[0] for seed, one in enumerate(samples)]
    stack = Stack([Entry(path, 0.5) for path in files], in_order=in_order)
    served = Engine({"unet": base})
    served.activate(stack)
    want = run(base, x)
    saved = save_stack(served, tmp_path / "saved.safetensors")
    served.activate(Stack([Entry(saved.path)]))
    assert worst(run(base, x), want) < BOUND
    served.close()
