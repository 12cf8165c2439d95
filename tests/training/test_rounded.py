"""Rounded weights: few values, little changed, and the same after a second time."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from extension.standalone.demo import find_demo
from training.rounded import round_lora, round_model, rounded


@pytest.mark.parametrize("share", [1.0, 0.25, 0.1])
def test_values_are_multiples_of_a_power_of_two_and_stay_so(share: float) -> None:
    for scale in torch.logspace(-2, 0, 12).tolist():
        weight = torch.randn(64, 64) * scale
        once = rounded(weight, share)
        step = once.abs()[once != 0].min()
        assert step.log2() == step.log2().round()
        assert share / 1.5 < step / weight.square().mean().sqrt() < share * 1.5
        assert (once - weight).abs().max() <= step / 2
        assert torch.equal(rounded(once, share), once)
    assert torch.equal(rounded(torch.zeros(4, 4), share), torch.zeros(4, 4))


def test_small_matrices_of_a_model_and_vectors_stay_and_large_ones_take_eight_bits(tmp_path: Path) -> None:
    folder = tmp_path / "unet"
    folder.mkdir()
    tensors = {"large": torch.randn(128, 128).half(), "small": torch.randn(8, 8).half(), "bias": torch.randn(9999)}
    save_file(tensors, folder / "a.safetensors", {"format": "pt"})
    round_model(tmp_path)
    got = load_file(folder / "a.safetensors")
    assert got["large"].dtype == torch.float8_e4m3fn
    assert 0 < (got["large"].float() - tensors["large"].float()).abs().mean() < 0.1
    assert all(torch.equal(got[key], tensors[key]) for key in ("small", "bias"))
    before = (folder / "a.safetensors").read_bytes()
    round_model(tmp_path)
    assert (folder / "a.safetensors").read_bytes() == before


def test_a_lora_keeps_its_metadata_and_its_hash_is_that_of_the_new_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"lora_up.weight": torch.randn(256, 64).half(), "alpha": torch.tensor(4.0).half()}
    save_file(tensors, path, {"modelspec.title": "A", "modelspec.hash_sha256": "0x0"})
    packed = len(zlib.compress(path.read_bytes()))
    round_lora(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    got = load_file(path)
    digest = hashlib.sha256(save(got)).hexdigest()
    assert metadata == {"modelspec.title": "A", "modelspec.hash_sha256": f"0x{digest}"}
    assert {value.dtype for value in got.values()} == {torch.float16}
    assert torch.equal(got["alpha"], tensors["alpha"])
    assert len(zlib.compress(path.read_bytes())) < packed / 2


def test_the_demos_loras_are_rounded() -> None:
    for path in find_demo().loras.glob("*.safetensors"):
        assert all(value.dtype == torch.float16 for value in load_file(path).values())
        assert len(zlib.compress(path.read_bytes())) < path.stat().st_size / 2.2
