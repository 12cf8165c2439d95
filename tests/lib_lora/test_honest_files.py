"""Files that say what they are in every way: each acts as its trainer meant it, or the report says that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lib_lora import LoraError, Network, load_network
from tests.fakes.trainer_files import Made, Maker

_BOUND = 1e-4
_FEW = 40
_MANY, _EACH = 200, 10


def differs(got: Tensor | None, want: Tensor | None, *, but_for_a_factor: bool = False) -> bool:
    if got is None or want is None:
        return any(one is not None and bool(one.abs().max() > _BOUND) for one in (got, want))
    if but_for_a_factor:
        got, want = got / got.norm().clamp_min(1e-30), want / want.norm()
    return bool((got - want).abs().max() > _BOUND * want.abs().max().clamp_min(1e-6))


def done(network: Network, layer: str, bias: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the change of a layer's weight and of its bias."""
    for one in network.bindings:
        if one.target.path == layer:
            change = one.adapter.change_of_bias(bias)
            return network.delta_weight("unet", layer, torch.float64), None if change is None else change.double()
    return None, None


def wrong_in_silence(made: Made) -> list[str]:
    """Return the layers that a file changes otherwise than it should while the report says nothing of it."""
    try:
        network = load_network(made.path, {"unet": made.model})
    except LoraError:
        return []
    said = " ".join(one.key.replace("_", ".") for one in network.report.unused)
    silent = [] if made.told or network.report.notes else ["the scale"]
    for layer, want in made.changes.items():
        got = done(network, layer, made.model.get_submodule(layer).get_parameter("bias").data)
        right = want is not None and not (
            differs(got[0], want[0], but_for_a_factor=not made.told) or differs(got[1], want[1])
        )
        if not right and layer.replace("_", ".") not in said:
            silent.append(layer)
    return silent


@pytest.mark.parametrize("seed", range(_FEW))
def test_no_file_is_wrong_in_silence(tmp_path: Path, seed: int):
    made = Maker(seed, tmp_path).make()
    assert not wrong_in_silence(made), made.label


@pytest.mark.long
@pytest.mark.parametrize("first", range(_FEW, _MANY, _EACH))
def test_none_of_more_files_is_wrong_in_silence(tmp_path: Path, first: int):
    every = (Maker(seed, tmp_path).make() for seed in range(first, first + _EACH))  # each in the place of the former
    assert [made.label for made in every if wrong_in_silence(made)] == []


def test_most_files_are_not_refused(tmp_path: Path):
    """A refusal is never silent: if all were refused, the files above would show nothing."""
    refused = []
    for seed in range(_FEW):
        made = Maker(seed, tmp_path).make()
        try:
            load_network(made.path, {"unet": made.model})
        except LoraError as error:
            refused.append((made.label, str(error)))
    assert len(refused) < _FEW / 4, refused
