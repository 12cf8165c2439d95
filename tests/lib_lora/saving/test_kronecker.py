"""Changes as LoKr: the nearest Kronecker products, by dense matrices in fp64, and files that other programs read."""

from __future__ import annotations

import math

import pytest
import torch
from lycoris.modules.lokr import LokrModule
from safetensors.torch import load_file
from torch import nn

from lib_lora import ArgumentError, convert_file, extract_lora, inspect_file, load_network, save_again
from lib_lora.__main__ import main
from lib_lora.saving.new_file import first_of_lokr
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.three import SHAPES, ThreeLayers


@pytest.fixture
def net():
    return ThreeLayers()


def products(rank=None, seed=0):
    """Return changes that are Kronecker products, with a second matrix of a rank."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for name, (out, inside, *kernel) in SHAPES.items():
        rows, columns = first_of_lokr((out, inside), 4)
        first = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        height, width = out // rows, math.prod([inside // columns, *kernel])
        second = torch.randn(height, width, generator=generator, dtype=torch.float64)
        if rank is not None:
            second = second[:, :rank] @ torch.randn(rank, width, generator=generator, dtype=torch.float64)
        found[name] = torch.kron(first, second).reshape(out, inside, *kernel)
    return found


def models(folder, net, changes):
    """Write a model and one with changes."""
    base = {f"blocks.0.{key}": one for key, one in net.state_dict().items()}
    tuned = {key: one + changes.get(key[9:-7], 0) for key, one in base.items()}
    return [save(folder / f"{name}.safetensors", one) for name, one in (("base", base), ("tuned", tuned))]


def deltas(path, net, prefix="blocks.0."):
    model = nn.ModuleDict({"blocks": nn.ModuleList([net])}) if prefix else net
    component = "transformer" if prefix else "unet"
    network = load_network(path, {component: model})
    return {name: network.delta_weight(component, f"{prefix}{name}", torch.float64) for name in SHAPES}


@pytest.mark.parametrize(("rank", "limits"), [(None, {}), (2, {"rank": 2}), (2, {"error": 1e-5}), (2, {"size": 9_000})])
def test_a_trained_lokr_is_found_again(tmp_path, net, rank, limits):
    changes = products(rank)
    saved = extract_lora(*models(tmp_path, net, changes), tmp_path / "out.safetensors", kind="lokr", factor=4, **limits)
    assert saved.error < 1e-5
    for name, delta in deltas(saved.path, net).items():
        assert (delta - changes[name]).norm() < 1e-5 * changes[name].norm()
    assert inspect_file(saved.path).kinds.keys() == {"lokr"}
    assert {layer.rank for layer in saved.layers} == ({2} if limits else {4, 6}), "of the second matrix"
    assert saved.nbytes <= limits.get("size", math.inf)


def error_of(wanted, found):
    missed = sum((one - found[name]).square().sum() for name, one in wanted.items())
    return math.sqrt(missed / sum(one.square().sum() for one in wanted.values()))


@pytest.mark.parametrize("limits", [{}, {"rank": 2}, {"size": 4_000}, {"rank": 100}, {"error": 0.95}])
def test_the_nearest_product_and_its_error(tmp_path, net, limits):
    generator = torch.Generator().manual_seed(1)
    changes = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    source = save(tmp_path / "full.safetensors", {f"lora_unet_{name}.diff": one for name, one in changes.items()})
    out = tmp_path / "lokr.safetensors"
    told = convert_file(source, out, kind="lokr", factor=4, preview=True, dtype=torch.float32, **limits)
    saved = convert_file(source, out, kind="lokr", factor=4, dtype=torch.float32, **limits)
    assert (told.nbytes, [one.rank for one in told.layers]) == (saved.nbytes, [one.rank for one in saved.layers])
    assert saved.nbytes == out.stat().st_size <= limits.get("size", math.inf)
    assert told.error == pytest.approx(saved.error, rel=1e-5)
    found = deltas(out, net, "")
    assert error_of(changes, found) == pytest.approx(saved.error, rel=1e-5)
    for name, change in changes.items() if limits.keys() <= {"rank"} else ():
        (rows, columns), shape = first_of_lokr(change.shape, 4), change.shape
        parts = change.reshape(rows, shape[0] // rows, columns, shape[1] // columns, -1).transpose(1, 2)
        u, values, v = torch.linalg.svd(parts.reshape(rows * columns, -1), full_matrices=False)
        second = torch.linalg.svd((values[0] * v[0]).reshape(shape[0] // rows, -1), full_matrices=False)
        kept = slice(limits.get("rank"))
        best = (second.U[:, kept] * second.S[kept]) @ second.Vh[kept]
        assert worst(found[name], torch.kron(u[:, 0].reshape(rows, columns), best).reshape(shape)) < 1e-5
    assert save_again(out, tmp_path / "again.safetensors", None, [tmp_path]).path.read_bytes() == out.read_bytes()


def test_lycoris_reads_it(tmp_path, net):
    changes = products(2)
    for options in ({}, {"rank": 2}, {"rank": 4}, {"size": 9_000}):
        source = save(tmp_path / "full.safetensors", {f"lora_unet_{name}.diff": one for name, one in changes.items()})
        out = tmp_path / "out.safetensors"
        tensors = load_file(convert_file(source, out, kind="lokr", factor=2, replace=True, **options).path)
        for name, change in products(2).items():
            names = ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b")
            given = [tensors.get(f"lora_unet_{name}.lokr_{one}") for one in names]
            alpha = tensors[f"lora_unet_{name}.alpha"]
            with torch.no_grad():
                module = LokrModule.make_module_from_state_dict(
                    name, net.get_submodule(name), *given, None, None, alpha, None
                )
                found = module.get_diff_weight()[0]
            own = load_network(out, {"unet": net}).delta_weight("unet", name, torch.float64)
            assert worst(found.reshape(change.shape), own) < 1e-6


def test_embeddings_and_norms_are_no_lokr_and_other_names_have_none(tmp_path, net, capsys):
    model = nn.ModuleDict({"words": nn.Embedding(30, 16), "norm": nn.LayerNorm(16), "a": net.a})
    tensors = pair("lora_unet_a", SHAPES["a"], 4) | {"lora_unet_norm.diff": torch.ones(16)}
    tensors |= {"lora_unet_words.diff": torch.randn(30, 16)}
    source, out = save(tmp_path / "mixed.safetensors", tensors), tmp_path / "lokr.safetensors"
    saved = convert_file(source, out, kind="lokr", rank=2, components={"unet": model})
    assert {key.rpartition(".")[2] for key in load_file(saved.path) if "_a." in key} >= {"lokr_w1", "lokr_w2_b"}
    assert {key for key in load_file(saved.path) if "norm" in key} == {"lora_unet_norm.diff"}
    assert {key.partition(".")[2] for key in load_file(saved.path) if "words" in key} == {
        "alpha", "lora_down.weight", "lora_up.weight"
    }  # fmt: skip
    with pytest.raises(ArgumentError, match="the spelling 'diffusers' has no LoKr; write spelling='kohya' or 'comfy'"):
        convert_file(source, out, kind="lokr", spelling="diffusers")
    with pytest.raises(ArgumentError, match="factor must be a whole number from 1 up"):
        convert_file(source, out, kind="lokr", factor=0)
    lora = save(tmp_path / "lora.safetensors", pair("lora_unet_a", SHAPES["a"], 4))
    assert main(["convert", str(lora), str(out), "--kind", "lokr", "--factor", "2", "--replace"]) == 0
    assert "1 layers of rank 12 to 12, error " in capsys.readouterr().out
    assert load_file(out)["lora_unet_a.lokr_w1"].shape == (2, 2)
