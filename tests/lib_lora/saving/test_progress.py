"""Saving tells how far it is, may be ended in between, and tells before what a file would be."""

from __future__ import annotations

import math

import pytest
import torch

from lib_lora import (
    ArgumentError,
    Engine,
    Entry,
    FileError,
    Stack,
    bake_stack,
    combine_files,
    convert_file,
    extract_lora,
    save_stack,
)
from lib_lora.saving import writing
from tests.fakes.files import pair, save
from tests.fakes.three import SHAPES, ThreeLayers, lora_of_three


@pytest.fixture
def files(tmp_path):
    ranks = {1: 5, 2: 7}
    return [
        lora_of_three(tmp_path / f"{rank}.safetensors", rank, seed, (0.1, 0.2, 0.3)) for seed, rank in ranks.items()
    ]


@pytest.fixture
def engine(files):
    net = ThreeLayers()  # an engine does not keep its model
    made = Engine({"unet": net})
    made.activate(Stack([Entry(path, strength) for path, strength in zip(files, (0.8, -0.5), strict=True)]))
    yield made
    made.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Told:
    """Notes what it is told, and ends the work at a layer."""

    def __init__(self, last=math.inf):
        self.told, self.last = [], last

    def __call__(self, done, layers):
        self.told.append((done, layers))
        if len(self.told) > self.last:
            raise InterruptedError("enough")


def test_the_layers_that_are_done_are_told_up_to_the_last(engine, files, tmp_path):
    for write in (
        lambda path, told: save_stack(engine, path, progress=told),
        lambda path, told: combine_files(files, path, "svd", rank=4, progress=told),
        lambda path, told: convert_file(files[0], path, rank=4, progress=told),
        lambda path, told: save_stack(engine, path, preview=True, progress=told),
    ):
        told = Told()
        write(tmp_path / "out.safetensors", told)
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        assert told.told[0] == (0, 3)
        assert told.told[-1] == (3, 3)
        assert told.told == sorted(told.told)


@pytest.mark.parametrize("has_names", [True, False], ids=["with a name", "without a name"])
def test_what_it_raises_ends_the_work_and_nothing_is_written(engine, tmp_path, monkeypatch, has_names):
    if has_names:
        monkeypatch.setattr(writing, "_OPEN", tmp_path / "nowhere")
    before = names(tmp_path)
    whole = Told()
    save_stack(engine, tmp_path / "out.safetensors", progress=whole)
    (tmp_path / "out.safetensors").unlink()
    for last in range(len(whole.told)):
        with pytest.raises((InterruptedError, FileError), match="enough"):
            save_stack(engine, tmp_path / "out.safetensors", progress=Told(last))
        assert names(tmp_path) == before


@pytest.mark.parametrize("spelling", ["kohya", "diffusers", "comfy"])
@pytest.mark.parametrize(
    "limits", [{}, {"rank": 3}, {"size": 9000}, {"error": 0.2}, {"rank": 4, "dtype": torch.float16}]
)
def test_a_preview_is_the_file_that_is_written(engine, tmp_path, limits, spelling):
    before = names(tmp_path)
    path = tmp_path / "out.safetensors"
    told = save_stack(engine, path, preview=True, spelling=spelling, **limits)
    assert names(tmp_path) == before
    saved = save_stack(engine, path, spelling=spelling, **limits)
    assert told.nbytes == saved.nbytes == path.stat().st_size
    assert [(one.name, one.rank) for one in told.layers] == [(one.name, one.rank) for one in saved.layers]
    rounding = 1e-3 if "dtype" in limits else 1e-6
    assert told.error == pytest.approx(saved.error, rel=1e-4, abs=rounding)
    for one, other in zip(told.layers, saved.layers, strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-4, abs=rounding)
    assert (told.error > 0.01) == bool(limits)
    assert told.notes == saved.notes


def test_a_preview_needs_no_free_name_and_says_what_is_too_small(engine, tmp_path):
    path = tmp_path / "out.safetensors"
    path.write_bytes(b"of another program")
    assert save_stack(engine, path, preview=True).nbytes > 0
    assert path.read_bytes() == b"of another program"
    with pytest.raises(FileError, match="bytes at least; allow a larger size"):
        save_stack(engine, path, preview=True, size=100)


@pytest.fixture
def models(files, tmp_path):
    """Return the net on disk, and the same with a file in its weights."""
    found = [tmp_path / f"{name}.safetensors" for name in ("base", "tuned")]
    save(found[0], {f"blocks.0.{name}.weight": torch.zeros(shape) for name, shape in SHAPES.items() if len(shape) == 2})
    tensors = {}
    for i, (name, shape) in enumerate([one for one in SHAPES.items() if len(one[1]) == 2]):
        tensors |= pair(f"lora_unet_blocks_0_{name}", shape, 4, seed=i)
    bake_stack(Stack([Entry(save(tmp_path / "own.safetensors", tensors))]), found[0], found[1])
    return found


def test_baking_and_extraction_tell_the_same_before_and_may_be_ended(models, tmp_path):
    base, tuned = models
    stack, out = Stack([Entry(tmp_path / "own.safetensors", 0.5)]), tmp_path / "out.safetensors"
    before = names(tmp_path)
    for write in (
        lambda **options: bake_stack(stack, base, out, **options),
        lambda **options: extract_lora(base, tuned, out, rank=2, **options),
    ):
        told, whole = Told(), Told()
        planned = write(preview=True, progress=told)
        assert told.told[-1] == (2, 2)
        assert names(tmp_path) == before
        saved = write(progress=whole)
        assert (planned.nbytes, len(planned.layers)) == (saved.nbytes, 2) == (out.stat().st_size, len(saved.layers))
        assert planned.error == pytest.approx(saved.error, rel=1e-5)
        assert whole.told[-1] == (2, 2)
        assert write(preview=True).nbytes == saved.nbytes, "the name may be taken"
        out.unlink()
        for last in range(len(whole.told)):
            with pytest.raises((InterruptedError, FileError), match="enough"):
                write(progress=Told(last))
            assert names(tmp_path) == before


def test_wrong_options_are_said(engine, tmp_path):
    with pytest.raises(ArgumentError, match="preview must be True or False"):
        save_stack(engine, tmp_path / "a.safetensors", preview="yes")
    for write in (save_stack, lambda _, path, **options: bake_stack(engine.stack, path, path, **options)):
        with pytest.raises(ArgumentError, match="progress must be a function of two numbers, or None"):
            write(engine, tmp_path / "a.safetensors", progress=3)
