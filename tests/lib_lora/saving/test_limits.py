"""Ranks, sizes and bounds of error: the nearest product, with the ranks where they matter most over all layers."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lib_lora import ArgumentError, Engine, Entry, FileError, Stack, load_network, save_stack
from tests.fakes.three import SHAPES, ThreeLayers, lora_of_three


@pytest.fixture
def net():
    return ThreeLayers()


@pytest.fixture
def served(net, tmp_path):
    """Return an engine with two LoRA, of rank 12 together."""
    engine = Engine({"unet": net})
    files = [lora_of_three(tmp_path / f"{rank}.safetensors", rank, rank) for rank in (5, 7)]
    engine.activate(Stack([Entry(path, strength) for path, strength in zip(files, (0.8, -0.5), strict=True)]))
    yield engine
    engine.close()


def dense(path, net):
    network = load_network(path, {"unet": net})
    return {name: network.delta_weight("unet", name, torch.float64).flatten(1) for name in SHAPES}


def whole(served, net):
    found = {}
    for entry in served.stack:
        for name, delta in dense(entry.path, net).items():
            found[name] = found.get(name, 0) + entry.multiplier * delta
    return found


def error_of(path, served, net):
    """Return the relative error of all layers of a file, by dense matrices."""
    wanted, kept = whole(served, net), load_file(path)
    network = load_network(path, {"unet": net})
    named = {key.split(".")[0].removeprefix("lora_unet_") for key in kept}
    missed = sum(
        ((network.delta_weight("unet", name, torch.float64).flatten(1) if name in named else 0) - delta).square().sum()
        for name, delta in wanted.items()
    )
    return math.sqrt(missed / sum(delta.square().sum() for delta in wanted.values()))


def test_without_a_limit_factors_lie_beside_each_other(served, net, tmp_path):
    saved = save_stack(served, tmp_path / "all.safetensors")
    assert [layer.rank for layer in saved.layers] == [12, 12, 12]
    assert saved.error < 1e-7
    assert error_of(saved.path, served, net) == pytest.approx(saved.error, rel=0.2)
    assert saved.nbytes == saved.path.stat().st_size


def test_no_layer_has_more_ranks_than_a_matrix(net, tmp_path):
    engine = Engine({"unet": net})
    engine.activate(
        Stack([Entry(lora_of_three(tmp_path / f"{rank}.safetensors", rank, rank), 0.5) for rank in (14, 15)])
    )
    saved = save_stack(engine, tmp_path / "all.safetensors")
    assert [layer.rank for layer in saved.layers] == [24, 16, 24]
    assert saved.error < 1e-7
    engine.close()


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_a_rank_is_the_nearest_product(served, net, tmp_path, rank):
    saved = save_stack(served, tmp_path / "cut.safetensors", rank=rank)
    for layer, (name, delta) in zip(saved.layers, whole(served, net).items(), strict=True):
        values = torch.linalg.svdvals(delta)
        assert (layer.name, layer.rank) == (name, rank)
        assert layer.error == pytest.approx((values[rank:].norm() / values.norm()).item(), rel=1e-5)
    assert error_of(saved.path, served, net) == pytest.approx(saved.error, rel=1e-5)


def test_an_error_takes_the_fewest_bytes_over_all_layers(served, net, tmp_path):
    saved = save_stack(served, tmp_path / "error.safetensors", error=0.3)
    assert error_of(saved.path, served, net) <= 0.3
    ranks = [layer.rank for layer in saved.layers]
    assert len(set(ranks)) > 1, "layers that matter less have less"
    uniform = [save_stack(served, tmp_path / f"rank {rank}.safetensors", rank=rank) for rank in range(1, 12)]
    enough = next(one for one in uniform if one.error <= 0.3)
    assert saved.nbytes < enough.nbytes


@pytest.mark.parametrize("size", [4_000, 6_000, 9_000])
def test_a_size_is_kept_and_used(served, net, tmp_path, size):
    for spelling, end in (("kohya", ".safetensors"), ("diffusers", ".safetensors"), ("peft", "")):
        options = {"spelling": spelling}
        saved = save_stack(served, tmp_path / f"{spelling}{end}", size=size, **options)
        files = [saved.path] if end else list(saved.path.iterdir())
        assert saved.nbytes == sum(file.stat().st_size for file in files)
        assert size - (1200 if end else 2400) < saved.nbytes <= size
        smaller = [
            save_stack(served, tmp_path / f"rank {rank}{end}", rank=rank, preview=True, **options)
            for rank in range(1, 12)
        ]
        fitting = [one.error for one in smaller if one.nbytes <= saved.nbytes]
        assert all(saved.error <= error + 1e-6 for error in fitting), "no better than one rank for all"


def test_limits_that_cannot_be_met_are_refused(served, tmp_path):
    with pytest.raises(FileError, match=r"it takes [0-9,]+ bytes at least; allow a larger size"):
        save_stack(served, tmp_path / "a.safetensors", size=300)
    with pytest.raises(FileError, match=r"its error would be .* not 0.001; allow a larger rank"):
        save_stack(served, tmp_path / "a.safetensors", rank=2, error=0.001)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5.safetensors", "7.safetensors"]


@pytest.mark.parametrize("options", [{"rank": 0}, {"size": 1.5}, {"error": 2.0}, {"dtype": torch.int8}, {"ranks": 4}])
def test_wrong_options(served, tmp_path, options):
    with pytest.raises(ArgumentError):
        save_stack(served, tmp_path / "a.safetensors", **options)


def test_half_precision(served, net, tmp_path):
    for dtype, bound in ((torch.float16, 1e-3), (torch.bfloat16, 1e-2)):
        saved = save_stack(served, tmp_path / "half.safetensors", dtype=dtype, replace=True)
        assert 1e-5 < error_of(saved.path, served, net) < bound
        kinds = {key.rpartition(".")[2]: tensor.dtype for key, tensor in load_file(saved.path).items()}
        assert kinds == {"alpha": torch.float32, "weight": dtype}


def test_numbers_beyond_half_precision_are_refused(net, tmp_path):
    engine = Engine({"unet": net})
    engine.activate(Stack([Entry(lora_of_three(tmp_path / "big.safetensors", 4, 1, (3e5, 1, 1)), 4.0)]))
    with pytest.raises(FileError, match="numbers that float16 cannot hold; write the dtype bfloat16 or float32"):
        save_stack(engine, tmp_path / "a.safetensors", dtype=torch.float16)
    assert save_stack(engine, tmp_path / "a.safetensors", dtype=torch.bfloat16).error < 1e-2
    engine.close()


@pytest.mark.parametrize(("kind", "rank"), [("cat", None), ("svd", 5)])
def test_peft_has_the_same(tmp_path, kind, rank):
    """PEFT's `add_weighted_adapter` on the same two LoRA."""
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(1)
        model = nn.Sequential(nn.Linear(24, 48), nn.Linear(48, 16)).requires_grad_(False)
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["0", "1"], init_lora_weights=False)
        made = peft.get_peft_model(model, config, adapter_name="first")
        made.add_adapter(
            "second", peft.LoraConfig(r=6, lora_alpha=3, target_modules=["0", "1"], init_lora_weights=False)
        )
        files = []
        for name in ("first", "second"):
            made.save_pretrained(tmp_path, selected_adapters=[name])
            files.append(tmp_path / name / "adapter_model.safetensors")
        made.add_weighted_adapter(["first", "second"], [0.8, -0.5], "both", kind, svd_rank=rank)
        wanted = [made.base_model.model[i].get_delta_weight("both").detach().double() for i in (0, 1)]
    plain = nn.Sequential(nn.Linear(24, 48), nn.Linear(48, 16)).requires_grad_(False)
    engine = Engine({"transformer": plain})
    engine.activate(Stack([Entry(path, strength) for path, strength in zip(files, (0.8, -0.5), strict=True)]))
    saved = save_stack(engine, tmp_path / "saved.safetensors", rank=rank)
    network = load_network(saved.path, {"transformer": plain})
    for i, want in enumerate(wanted):
        got = network.delta_weight("transformer", str(i), torch.float64)
        assert (got - want).norm() / want.norm() < 1e-5
    engine.close()


@pytest.mark.parametrize("strength", [-1.0, -0.999])
def test_what_cancels_is_no_layer_and_no_error(served, net, tmp_path, strength):
    """A file at opposite strengths leaves rounding, or a small part of large factors."""
    path, other = (entry.path for entry in served.stack)
    served.activate(Stack([Entry(path), Entry(path, strength), Entry(other, {"unet": 0.0})]))
    out = tmp_path / "saved.safetensors"
    if strength == -1.0:
        with pytest.raises(FileError, match="changes nothing"):
            save_stack(served, out)
        return
    assert save_stack(served, out).error < 1e-3
    assert save_stack(served, out, rank=8, replace=True).error < 1e-6
