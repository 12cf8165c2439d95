"""A model written again with LoRA in its weights: right numbers, the same bytes elsewhere, nothing half."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file

from lib_lora import (
    ArgumentError,
    ComponentError,
    Curve,
    Engine,
    Entry,
    FileError,
    Moment,
    NoMatchError,
    Stack,
    StackError,
    Strength,
    bake_stack,
    combine_files,
    save_again,
)
from lib_lora.__main__ import main
from lib_lora.files.file import AdapterFile
from lib_lora.saving import Combination, baked, writing
from lib_lora.saving.provenance import HEADER
from tests.fakes.checkpoints import save_checkpoint, tiny_pipeline
from tests.fakes.contract import EACH, in_folders, of_recipes, reference, worst, write
from tests.fakes.files import pair, save
from tests.fakes.layers import bias_of, exact, make, weight_of
from tests.fakes.models import dense_deltas, kohya_lora, merged, tiny_text_encoder, tiny_unet, unet_inputs

ROOT = Path(__file__).resolve().parents[3]
HALF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Largest error of rounding to the nearest number, as a share of it."""
SMALLEST = {torch.float32: 0.0, torch.float16: 2.0**-25, torch.bfloat16: 0.0}
"""Half of the smallest number."""
SKELETONS = ("conv grouped", "embedding")
"""Layers that a checkpoint does not tell from others: groups, and tables by another name."""


@pytest.fixture(scope="module")
def parts():
    return {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, parts):
    """Return a diffusers folder, of which the UNet is in shards."""
    made = tmp_path_factory.mktemp("model") / "tiny"
    parts["unet"].save_pretrained(made / "unet", max_shard_size="200KB")
    parts["text_encoder"].save_pretrained(made / "text_encoder")
    (made / "model_index.json").write_text("{}")
    (made / "vae").mkdir()
    save(made / "vae" / "model.safetensors", {"decoder.weight": torch.ones(3)})
    (made / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"another format")
    (made / ".cache").mkdir()
    (made / ".cache" / "note.json").write_text("hidden")
    return made


@pytest.fixture(scope="module")
def lora(tmp_path_factory, parts):
    return kohya_lora(tmp_path_factory.mktemp("lora") / "style.safetensors", parts, seed=1, conv=True)


@pytest.fixture
def model(tmp_path):
    """Return a file of one transformer of two layers."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"blocks.{i}.proj.weight": torch.randn(48, 24, generator=generator) * 0.1 for i in range(2)}
    tensors |= {"blocks.0.proj.bias": torch.zeros(48), "counts": torch.arange(5), "flags": torch.tensor([True, False])}
    header = {"modelspec.license": "open", "sshs_model_hash": "old", "own": "kept"}
    return save(tmp_path / "model.safetensors", tensors, header)


@pytest.fixture
def style(tmp_path):
    header = {"modelspec.trigger_phrase": "ink", "modelspec.license": "CC0"}
    return save(tmp_path / "style.safetensors", pair("lora_unet_blocks_0_proj", (48, 24), 4, size=0.3), header)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def content(path):
    """Return the bytes behind the header."""
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def check_nearest(got, want, extra=1e-9):
    """Check that numbers are the nearest ones to those in fp64, but for the fp64 of the change itself."""
    want = want.double()
    bound = HALF[got.dtype] * want.abs() * (1 + 1e-6) + SMALLEST[got.dtype] + extra * want.abs().max()
    assert bool(((got.double() - want).abs() <= bound).all())


@pytest.mark.parametrize("family", ["sd1", "sd2", "sdxl"])
def test_a_checkpoint_in_one_file(tmp_path, family):
    for folder, dtype in in_folders(tmp_path, [(one,) for one in HALF]):
        _a_checkpoint_in_one_file(folder, family, dtype)


def _a_checkpoint_in_one_file(tmp_path, family, dtype):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        pipe = tiny_pipeline(family)
    encoder = "text_encoder_2" if family == "sdxl" else "text_encoder"
    for name in ("unet", encoder):
        getattr(pipe, name).to(dtype)
    own = {"unet": pipe.unet, encoder: getattr(pipe, encoder)}
    path = save_checkpoint(pipe, family, tmp_path / "base.safetensors", {"format": "pt"})
    style = kohya_lora(tmp_path / "style.safetensors", own, conv=True)
    saved = bake_stack(Stack([Entry(style, 0.8)]), path, tmp_path / "baked.safetensors")
    deltas = dense_deltas(style, own)
    if deltas[encoder].pop("text_projection", None) is not None:  # no layer of a checkpoint, but said
        assert "no module of that name in text_encoder_2 (3 keys)" in saved.notes[0]
    assert len(saved.layers) <= sum(map(len, deltas.values()))
    for name, module in own.items():
        setattr(pipe, name, merged(module, deltas[name], 0.8))
    want = load_file(save_checkpoint(pipe, family, tmp_path / "want.safetensors"))
    before, got = load_file(path), load_file(saved.path)
    assert list(AdapterFile.open(saved.path).infos) == list(AdapterFile.open(path).infos), "in the same order"
    assert {key: one.dtype for key, one in got.items()} == {key: one.dtype for key, one in before.items()}
    changed = {key for key, one in got.items() if not torch.equal(one, before[key])}
    assert len(changed) == len(saved.layers)
    assert not any(key.startswith(("first_stage_model.", "betas")) for key in changed)
    for key, one in got.items():
        if key in changed:
            check_nearest(one, want[key])
        elif ".resblocks.2." not in key:  # which is random in each file
            assert torch.equal(one.double(), want[key].double()), key
    bound = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 0.2}[dtype]
    assert 0 < saved.error < bound
    errors = [float(got[key].double().sub(want[key].double()).square().sum()) for key in changed]
    sizes = [float(want[key].double().sub(before[key].double()).square().sum()) for key in changed]
    assert saved.error == pytest.approx((sum(errors) / sum(sizes)) ** 0.5, rel=1e-3), "the error is the rounding's"


@pytest.mark.parametrize("alike", of_recipes(EACH))
def test_every_kind(tmp_path, alike):
    for folder, sample, layer in in_folders(tmp_path, alike):
        _every_kind(folder, sample, layer)


def _every_kind(tmp_path, sample, layer):
    if layer in SKELETONS:
        return  # a checkpoint does not tell it from others
    base, _ = make(layer)
    path, tensors = write(tmp_path, sample, layer, tuple(weight_of(base, layer).shape))
    (tmp_path / "unet").mkdir()
    save(tmp_path / "unet" / "model.safetensors", base.state_dict())
    stack, moment = Stack([Entry(path, 0.7)]), Moment(step=0, steps=1, timestep=0.0)
    want = reference(exact(base), layer, sample, tensors, 0.7).state_dict()
    if bias_of(base, layer) is None and want.keys() != base.state_dict().keys():
        with pytest.raises(FileError, match=r"the model has no unet\.layer\.bias to be changed"):
            bake_stack(stack, tmp_path / "unet", tmp_path / "baked", moment=moment)
        return
    saved = bake_stack(stack, tmp_path / "unet", tmp_path / "baked", moment=moment)
    got = load_file(saved.path / "model.safetensors")
    assert got.keys() == want.keys()
    assert all(worst(one, want[key]) < 3e-6 for key, one in got.items())


def test_a_diffusers_folder_in_shards(tmp_path, folder, lora, parts):
    shards = sorted((folder / "unet").glob("*.safetensors"))
    assert len(shards) > 2
    saved = bake_stack(Stack([Entry(lora, 0.8)]), folder, tmp_path / "baked")
    assert {layer.component for layer in saved.layers} == {"unet", "text_encoder"}
    kept = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    left = ["unet/diffusion_pytorch_model.bin", ".cache/note.json"]
    wanted = [path for path in kept if path.as_posix() not in left]
    assert [path.relative_to(saved.path) for path in sorted(saved.path.rglob("*")) if path.is_file()] == wanted
    assert saved.nbytes == sum(path.stat().st_size for path in saved.path.rglob("*") if path.is_file())
    engine = Engine({"unet": parts["unet"]})
    engine.activate(Stack([Entry(lora, 0.8)]))
    with torch.no_grad():
        want = parts["unet"](**unet_inputs(0))[0]
        baked = UNet2DConditionModel.from_pretrained(saved.path / "unet")
        assert worst(baked(**unet_inputs(0))[0], want) < 1e-5
    engine.close()
    index = next((folder / "unet").glob("*.index.json"))
    once_more = save_again(saved.path, tmp_path / "again", None, [folder.parent, lora.parent])
    for path in wanted:
        assert (once_more.path / path).read_bytes() == (saved.path / path).read_bytes()
    again = bake_stack(Stack([Entry(lora, {"unet": 0.8})]), index, tmp_path / "unet only")
    for path in again.path.glob("*.safetensors"):
        assert content(path) == content(saved.path / "unet" / path.name)


def test_shards_of_a_size(tmp_path, model, style):
    """A checkpoint in shards, with an index as diffusers writes it, and back again in one file."""
    stack, size = Stack([Entry(style)]), 5_000
    whole = bake_stack(stack, model, tmp_path / "whole.safetensors")
    planned = bake_stack(stack, model, tmp_path / "parts", shard_size=size, preview=True)
    saved = bake_stack(stack, model, tmp_path / "parts", shard_size=size)
    assert saved == planned
    assert saved.error == whole.error
    index = json.loads((saved.path / "model.safetensors.index.json").read_text())
    shards = sorted(saved.path.glob("*.safetensors"))
    assert [one.name for one in shards] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert saved.nbytes == sum(one.stat().st_size for one in saved.path.iterdir())
    assert index["metadata"]["total_size"] == sum(len(content(one)) for one in shards)
    assert all(len(content(one)) <= size for one in shards)
    want = load_file(whole.path)
    assert index["weight_map"] == {key: one.name for one in shards for key in load_file(one)}
    assert index["weight_map"].keys() == want.keys()
    got = {key: tensor for one in shards for key, tensor in load_file(one).items()}
    assert all(torch.equal(got[key], want[key]) for key in want)
    again = save_again(saved.path, tmp_path / "again", None, [tmp_path])
    assert [one.read_bytes() for one in sorted(again.path.iterdir())] == [
        one.read_bytes() for one in sorted(saved.path.iterdir())
    ]
    nothing = save(tmp_path / "nothing.safetensors", pair("lora_unet_blocks_1_proj", (48, 24), 4, size=0.3))
    index = saved.path / "model.safetensors.index.json"
    for out in ("one.safetensors", "folder"):
        one = bake_stack(Stack([Entry(nothing, 1e-30)]), index, tmp_path / out, shard_size=1 << 40)
        path = one.path if out.endswith(".safetensors") else one.path / "model.safetensors"
        assert names(path.parent) == ["model.safetensors"] or path.parent == tmp_path
        assert one.nbytes == path.stat().st_size
        assert load_file(path).keys() == want.keys()
        assert all(torch.equal(tensor, want[key]) for key, tensor in load_file(path).items())
    args = str(model), str(style), "--shard-size", "5K"
    assert main(["bake", str(tmp_path / "said"), *args]) == 0
    assert names(tmp_path / "said") == names(saved.path)
    with pytest.raises(FileError, match=r"becomes 2 files, which are written into a folder; give a name without"):
        bake_stack(stack, model, tmp_path / "new.safetensors", shard_size=size)
    with pytest.raises(ArgumentError, match="shard_size must be a whole number"):
        bake_stack(stack, model, tmp_path / "new", shard_size=0.5)
    shutil.copy(shards[0], saved.path / "model-00003-of-00003.safetensors")
    with pytest.raises(FileError, match=r"its tensor counts is in model-00001-of-00002\.safetensors, too; leave one"):
        bake_stack(stack, saved.path, tmp_path / "new", shard_size=size)
    assert not (tmp_path / "new").exists()


def test_shards_of_a_folder_become_others(tmp_path, folder, lora):
    stack = Stack([Entry(lora)])
    same = bake_stack(stack, folder, tmp_path / "same").path
    for size, count in ((1 << 40, 1), (100_000, None)):
        saved = bake_stack(stack, folder, tmp_path / str(size), shard_size=size)
        files = sorted((saved.path / "unet").glob("*.safetensors"))
        assert (len(files) == 1) if count else (len(files) > len(list((same / "unet").glob("*.safetensors"))))
        assert (saved.path / "unet" / "diffusion_pytorch_model.safetensors.index.json").exists() == (count is None)
        assert saved.nbytes == sum(one.stat().st_size for one in saved.path.rglob("*") if one.is_file())
        got, want = (UNet2DConditionModel.from_pretrained(one / "unet").state_dict() for one in (saved.path, same))
        assert all(torch.equal(got[key], want[key]) for key in want)
        assert (saved.path / "model_index.json").read_text() == "{}"
        again = save_again(saved.path, tmp_path / f"again{size}", None, [folder.parent, lora.parent])
        for one in saved.path.rglob("*"):
            assert one.is_dir() or (again.path / one.relative_to(saved.path)).read_bytes() == one.read_bytes()


def test_a_shard_that_is_missing(tmp_path, folder, lora):
    copy = shutil.copytree(folder, tmp_path / "copy")
    gone = sorted((copy / "unet").glob("*.safetensors"))[1]
    gone.unlink()
    for model in (copy, copy / "unet", next((copy / "unet").glob("*.index.json"))):
        with pytest.raises(FileError, match=f"its shard {gone.name} is missing"):
            bake_stack(Stack([Entry(lora)]), model, tmp_path / "baked")


def test_stochastic_rounding_is_right_on_average_and_the_same_by_its_seed(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 256, generator=generator).bfloat16()
    path = save(tmp_path / "model.safetensors", {"blocks.0.proj.weight": weight})
    style = save(tmp_path / "style.safetensors", pair("lora_unet_blocks_0_proj", (256, 256), 4, size=0.02))
    factors = load_file(style)
    delta = (
        factors["lora_unet_blocks_0_proj.lora_up.weight"] @ factors["lora_unet_blocks_0_proj.lora_down.weight"]
    ).double()
    want = weight.double() + delta
    found = {}
    for name, options in {
        "nearest": {},
        "first": {"rounding": "stochastic"},
        "again": {"rounding": "stochastic"},
        "other": {"rounding": "stochastic", "seed": 1},
    }.items():
        saved = bake_stack(Stack([Entry(style)]), path, tmp_path / f"{name}.safetensors", **options)
        found[name] = load_file(saved.path)["blocks.0.proj.weight"]
    assert torch.equal(found["first"], found["again"])
    assert not torch.equal(found["first"], found["other"])
    kept = {
        name: float(((one.double() - weight.double()) * delta).sum() / delta.square().sum())
        for name, one in found.items()
    }
    assert kept["nearest"] < 0.9, "most of a small change is lost to the nearest number"
    assert all(abs(kept[name] - 1) < 0.1 for name in ("first", "other"))
    missed = found["first"].double() - want
    assert bool((missed.abs() <= 2.0**-7 * want.abs() * (1 + 1e-5) + 1e-30).all()), "one of the two neighbours"
    assert abs(missed.mean()) < 4 * missed.std() / 256


def test_a_file_is_made_again_bit_for_bit_and_says_how(model, style, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    stack, outs = Stack([Entry(style, 0.5)]), [tmp_path / name / "baked.safetensors" for name in ("a", "b")]
    one, two = (bake_stack(stack, model, out) for out in outs)
    assert one.path.read_bytes() == two.path.read_bytes()
    header, before = AdapterFile.open(one.path).metadata, AdapterFile.open(model).metadata
    assert header["own"] == before["own"] == "kept"
    assert "sshs_model_hash" not in header
    assert header["modelspec.license"] == "model.safetensors: open; style.safetensors: CC0"
    assert header["modelspec.trigger_phrase"] == "ink"
    assert header["modelspec.title"] == "baked"
    assert header["modelspec.merged_from"] == "model.safetensors, style.safetensors"
    assert header["modelspec.hash_sha256"] == f"0x{hashlib.sha256(content(one.path)).hexdigest()}"
    made = json.loads(header[HEADER])
    assert made["model_sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert made["entries"][0]["sha256"] == hashlib.sha256(style.read_bytes()).hexdigest()
    assert (made["model"], made["rounding"], made["seed"]) == ("model.safetensors", "nearest", 0)
    assert torch.equal(load_file(one.path)["counts"], torch.arange(5))
    own, out = one.path.read_bytes(), tmp_path / "again.safetensors"
    again = save_again(one.path, out, None, [tmp_path / "a", tmp_path])
    assert again.path.read_bytes() == own
    random = bake_stack(stack, model, one.path, rounding="stochastic", seed=3, replace=True)
    assert save_again(random.path, out, None, tmp_path, replace=True).path.read_bytes() == random.path.read_bytes()
    save(model, {"blocks.0.proj.weight": torch.ones(48, 24)})
    with pytest.raises(FileError, match=r"its source model\.safetensors is missing: .* is another one by now"):
        save_again(one.path, out, None, tmp_path, replace=True)


RULES = ("dare_linear", "dare_ties_svd", "linear", "magnitude_prune", "orthogonal", "svd", "ties", "ties_svd")


def test_a_rule_makes_the_model_of_the_file_that_it_combines(model, tmp_path):
    for how in RULES:
        (tmp_path / how).mkdir()
        check_rule(how, model, tmp_path / how)


def check_rule(how, model, folder):
    key, entries = "lora_unet_blocks_{}_proj", []
    for seed, strength in ((1, 0.8), (2, -0.5), (3, 1.3)):
        tensors = pair(key.format(0), (48, 24), 4, seed=seed, size=0.3)
        if seed == 2:
            tensors |= pair(key.format(1), (48, 24), 4, seed=9, size=0.3)
        if how in ("orthogonal", "svd"):  # the others are for factors of LoRA alone
            tensors[f"{key.format(0)}.diff_b"] = torch.rand(48, generator=torch.Generator().manual_seed(seed))
        entries.append(Entry(save(folder / f"{seed}.safetensors", tensors), strength))
    density = None if how in ("linear", "orthogonal", "svd") else 0.4
    combination = Combination(how, density, 7)
    file = combine_files(entries, folder / "one.safetensors", how, density=density, seed=7)
    wanted = bake_stack(Stack([Entry(file.path)]), model, folder / "wanted.safetensors")
    saved = bake_stack(Stack(entries), model, folder / "baked.safetensors", combination=combination)
    before, want, got = (load_file(path) for path in (model, wanted.path, saved.path))
    for name in (one for one in got if one not in ("counts", "flags")):
        change = (want[name].double() - before[name].double()).norm()
        assert (got[name].double() - want[name].double()).norm() <= 1e-6 * change, (how, name)
    random = {"combination": combination, "rounding": "stochastic", "seed": 3}
    drawn = bake_stack(Stack(entries), model, folder / "drawn.safetensors", **random)
    for one in (saved, drawn):
        made = json.loads(AdapterFile.open(one.path).metadata[HEADER])
        assert made["combination"] == {"how": how, "density": density, "seed": 7}
        again = save_again(one.path, folder / "again.safetensors", None, [folder, model.parent], replace=True)
        assert again.path.read_bytes() == one.path.read_bytes()
    typed = folder / "typed.safetensors"
    files = [f"{one.path}={one.multiplier}" for one in entries]
    given = [] if density is None else ["--density", str(density)]
    assert main(["bake", str(typed), str(model), *files, "--how", how, "--seed", "7", *given]) == 0
    assert content(typed) == content(saved.path)
    previewed = bake_stack(Stack(entries), model, folder / "none.safetensors", combination=combination, preview=True)
    assert (previewed.error, previewed.layers) == (saved.error, saved.layers)


def test_a_stack_in_order_and_a_moment(model, tmp_path):
    dora = pair("lora_unet_blocks_0_proj", (48, 24), 4, size=0.3)
    dora["lora_unet_blocks_0_proj.dora_scale"] = torch.rand(48, 1) + 0.5
    style, falling = save(tmp_path / "dora.safetensors", dora), Strength(Curve([(0, 1.0), (10, 0.0)]))
    stack = Stack([Entry(style, falling), Entry(style, 0.5)], in_order=True)
    with pytest.raises(StackError, match="differs from step to step"):
        bake_stack(stack, model, tmp_path / "baked.safetensors")
    both = bake_stack(stack, model, tmp_path / "baked.safetensors", moment=Moment(step=5, steps=20))
    first = bake_stack(Stack([Entry(style, 0.5)]), model, tmp_path / "first.safetensors")
    second = bake_stack(Stack([Entry(style, 0.5)]), first.path, tmp_path / "second.safetensors")
    name = "blocks.0.proj.weight"
    assert worst(load_file(both.path)[name], load_file(second.path)[name]) < 1e-6


def test_a_number_that_the_dtype_cannot_hold(tmp_path, style):
    path = save(tmp_path / "half.safetensors", {"blocks.0.proj.weight": torch.full((48, 24), 60000.0).half()})
    with pytest.raises(FileError, match=r"blocks\.0\.proj\.weight would have numbers that float16 cannot hold"):
        bake_stack(Stack([Entry(style, 1e5)]), path, tmp_path / "baked.safetensors")
    spoilt = save(tmp_path / "nan.safetensors", {"blocks.0.proj.weight": torch.full((48, 24), float("nan"))})
    with pytest.raises(FileError, match=r"blocks\.0\.proj\.weight has numbers that are NaN or infinite"):
        bake_stack(Stack([Entry(style)]), spoilt, tmp_path / "baked.safetensors")
    assert names(tmp_path) == ["half.safetensors", "nan.safetensors", "style.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_a_quantized_model_is_refused_with_what_can_be_done(tmp_path, style, dtype):
    path = save(tmp_path / "packed.safetensors", {"blocks.0.proj.weight": torch.zeros(48, 24).to(dtype)})
    with pytest.raises(FileError, match=r"its weights are quantized .* in float16, bfloat16 or float32 and quantize"):
        bake_stack(Stack([Entry(style)]), path, tmp_path / "baked.safetensors")
    assert names(tmp_path) == ["packed.safetensors", "style.safetensors"]


def test_what_cannot_be_baked(model, style, lora, tmp_path):
    out = tmp_path / "baked.safetensors"
    with pytest.raises(StackError, match="no LoRA is in force"):
        bake_stack(Stack(), model, out)
    with pytest.raises(FileError, match="the LoRA change nothing of this model"):
        bake_stack(Stack([Entry(style, 0.0)]), model, out)
    with pytest.raises(NoMatchError):
        bake_stack(Stack([Entry(lora)]), model, out)
    with pytest.raises(FileError, match="there is no such file or folder"):
        bake_stack(Stack([Entry(style)]), tmp_path / "nowhere", out)
    with pytest.raises(ComponentError, match="no unet, transformer or text encoder"):
        bake_stack(Stack([Entry(style)]), tmp_path / style.name, out)
    with pytest.raises(StackError, match="rounding 'up' must be one of nearest, stochastic"):
        bake_stack(Stack([Entry(style)]), model, out, rounding="up")
    with pytest.raises(ArgumentError, match="seed must be a whole number from 0 up"):
        bake_stack(Stack([Entry(style)]), model, out, seed=-1)
    with pytest.raises(ArgumentError, match="combination must be a Combination, as Combination"):
        bake_stack(Stack([Entry(style)]), model, out, combination="ties")
    other = save(tmp_path / "other.safetensors", pair("lora_unet_blocks_0_proj", (48, 24), 3))
    with pytest.raises(StackError, match="takes one rank, and the files have 4, 3; write how='ties_svd'"):
        bake_stack(Stack([Entry(style), Entry(other)]), model, out, combination=Combination("ties", 0.5))
    assert not out.exists()


def test_a_layer_that_does_not_fit_is_said(model, style, tmp_path):
    tensors = load_file(style) | pair("lora_unet_blocks_7_proj", (48, 24), 4)
    path = save(tmp_path / "more.safetensors", tensors)
    saved = bake_stack(Stack([Entry(path)]), model, tmp_path / "baked.safetensors")
    assert "keys without effect are left out" in saved.notes[0]


@pytest.fixture(params=["without a name", "with a name"])
def way(request, monkeypatch):
    """Have the unfinished file without a name, as on Linux, and with one, as elsewhere."""
    if request.param == "with a name":
        monkeypatch.setattr(writing, "_OPEN", Path("/nowhere"))


@pytest.fixture(params=["file", "folder"])
def place(request, model, tmp_path):
    """Return a model that is a file or a folder, and where the new one is to be."""
    if request.param == "file":
        return model, tmp_path / "new.safetensors"
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text("{}")
    shutil.copy(model, tmp_path / "transformer")
    return tmp_path / "transformer", tmp_path / "new"


def make_something(out, source):
    if source.is_dir():
        out.mkdir()
    else:
        out.write_bytes(b"former")


@pytest.mark.usefixtures("way")
def test_a_name_that_is_taken_is_left_alone(place, style, tmp_path):
    source, out = place
    make_something(out, source)
    before = names(tmp_path)
    with pytest.raises(FileError, match=r"there is (a file|something) of that name"):
        bake_stack(Stack([Entry(style)]), source, out)
    assert names(tmp_path) == before
    if source.is_dir():
        with pytest.raises(FileError, match="a folder is never replaced"):
            bake_stack(Stack([Entry(style)]), source, out, replace=True)
        return
    saved = bake_stack(Stack([Entry(style)]), source, out, replace=True)
    assert out.stat().st_size == saved.nbytes
    again = bake_stack(Stack([Entry(style)]), out, out, replace=True)  # its own source, too
    assert again.path == out
    assert names(tmp_path) == before


@pytest.mark.usefixtures("way")
def test_a_name_that_is_taken_meanwhile_is_left_alone(place, style, tmp_path, monkeypatch):
    source, out = place
    before, read_back = names(tmp_path), baked._read_back

    def slow(*args):
        make_something(out, source)
        return read_back(*args)

    monkeypatch.setattr(baked, "_read_back", slow)
    with pytest.raises(FileError, match="another program has made"):
        bake_stack(Stack([Entry(style)]), source, out)
    assert names(tmp_path) == sorted([*before, out.name])
    assert list(out.iterdir()) == [] if source.is_dir() else out.read_bytes() == b"former"


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="Windows tells it otherwise")
def test_a_disk_without_room_is_seen_first(place, style, tmp_path, monkeypatch):
    source, out = place
    before, full = names(tmp_path), os.statvfs_result((1, 1, 1 << 40, 1 << 20, 1 << 20, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(FileError, match="and the disk has 1,048,576 left; free some of it"):
        bake_stack(Stack([Entry(style)]), source, out)
    assert names(tmp_path) == before


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(place, style, tmp_path, monkeypatch, error):
    source, out = place
    before = names(tmp_path)

    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    text = "it cannot be written, and nothing was: No space left" if isinstance(error, OSError) else None
    with pytest.raises(FileError if text else KeyboardInterrupt, match=text):
        bake_stack(Stack([Entry(style)]), source, out)
    assert names(tmp_path) == before


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("which", ["model", "style"])
def test_a_source_that_changes_meanwhile_is_refused(place, style, tmp_path, monkeypatch, which):
    source, out = place
    before, read_back = names(tmp_path), baked._read_back

    def slow(*args):
        read_back(*args)
        path = style if which == "style" else next(source.glob("*.safetensors")) if source.is_dir() else source
        save_file(load_file(path), path)

    monkeypatch.setattr(baked, "_read_back", slow)
    with pytest.raises(FileError, match="it changed on disk while in use"):
        bake_stack(Stack([Entry(style)]), source, out)
    assert names(tmp_path) == before


def test_what_is_read_back_must_be_what_was_meant(model, style, tmp_path, monkeypatch):
    before, write = names(tmp_path), baked.write_tensors
    monkeypatch.setattr(
        baked, "write_tensors", lambda s, h, tensors: write(s, h, [one.clone().fill_(1) for one in tensors])
    )
    with pytest.raises(FileError, match="read back, it differs from what was meant"):
        bake_stack(Stack([Entry(style)]), model, tmp_path / "new.safetensors")
    monkeypatch.setattr(baked, "write_tensors", lambda s, h, tensors: write(s, h, list(tensors)[:-1]))
    with pytest.raises(FileError, match="read back, it is not what was meant"):
        bake_stack(Stack([Entry(style)]), model, tmp_path / "new.safetensors")
    assert names(tmp_path) == before


KILLED = """
import os, random, shutil, signal, sys, time
import torch
from pathlib import Path
from safetensors import safe_open
from lib_lora import Entry, Stack, bake_stack, extract_lora
torch.set_num_threads(1)
folder, source, name, first = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[1]) / sys.argv[4]
stack = Stack([Entry(folder / "style.safetensors")])
bake_stack(stack, source, first)
random.seed(0)

def work():
    if name == "lora.safetensors":
        extract_lora(source, first, folder / name, replace=True)
    else:
        bake_stack(stack, source, folder / name, replace=source.is_file())

start = time.monotonic()
work()
took = time.monotonic() - start
for turn in range(30):
    if source.is_dir() and (folder / name).exists():  # a folder is not replaced
        shutil.rmtree(folder / name)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0, 1.2) * took + 1e-4)
        try:
            work()
        finally:
            os._exit(0)
    random.random()
    _, status = os.waitpid(child, 0)
    for part in folder.glob(".*.part"):  # killed in the moment in which it gets its name
        for file in part.rglob("*.safetensors") if part.is_dir() else [part]:
            with safe_open(file, "pt") as opened:
                assert opened.keys()
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    print("killed" if os.WIFSIGNALED(status) else "saved", *sorted(path.name for path in folder.iterdir()))
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="elsewhere an unfinished file has a name")
@pytest.mark.parametrize("kind", ["file", "folder", "lora"])
def test_a_process_that_is_killed_leaves_nothing(tmp_path, kind):
    tensors = {f"blocks.{i}.proj.weight": torch.randn(1200, 1200) * 0.1 for i in range(6)}
    loras = [pair(f"lora_unet_blocks_{i}_proj", (1200, 1200), 32) for i in range(6)]
    save(tmp_path / "style.safetensors", {key: one for tensors in loras for key, one in tensors.items()})
    source, name = tmp_path / "transformer", "new"
    if kind == "folder":
        source.mkdir()
        save(source / "model.safetensors", tensors)
    else:
        source, name = save(tmp_path / "model.safetensors", tensors), f"{kind}.safetensors"
    first = "first" if kind == "folder" else "first.safetensors"
    command = [sys.executable, "-c", KILLED, tmp_path, source, name, first]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 30
    assert {line.split()[0] for line in lines} >= {"killed"}, lines
    own = {source.name, "style.safetensors", first}
    assert {tuple(line.split()[1:]) for line in lines} <= {tuple(sorted(own)), tuple(sorted({*own, name}))}, lines
    if (made := tmp_path / name).exists() and kind != "lora":
        file = made if made.is_file() else made / "model.safetensors"
        assert content(file) == content(tmp_path / first if kind == "file" else tmp_path / first / "model.safetensors")


MEMORY = """
import resource, sys
import torch
from lib_lora import Entry, Stack, bake_stack, extract_lora
torch.set_num_threads(1)
folder = sys.argv[1]

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def work(name):
    stack = Stack([Entry(f"{folder}/{name} style.safetensors")])
    bake_stack(stack, f"{folder}/{name}.safetensors", f"{folder}/{name} baked.safetensors")
    if "dora" not in name:
        files = [f"{folder}/{name}{part}.safetensors" for part in ("", " baked", " out")]
        extract_lora(*files)

work(sys.argv[2])
before = peak()
work(sys.argv[3])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system counts memory otherwise")
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_memory_has_a_layer_and_not_the_model(tmp_path, kind):
    shape, layer = (1024, 1024), 4 << 20
    for name, count in ((f"{kind} few", 2), (f"{kind} many", 48)):
        tensors = {f"blocks.{i}.proj.weight": torch.randn(shape) * 0.1 for i in range(count)}
        save(tmp_path / f"{name}.safetensors", tensors)
        loras: dict[str, torch.Tensor] = {}
        for i in range(count):
            loras |= pair(f"lora_unet_blocks_{i}_proj", shape, 4, size=0.3)
            if kind == "dora":
                loras[f"lora_unet_blocks_{i}_proj.dora_scale"] = torch.rand(shape[0], 1)
        save(tmp_path / f"{name} style.safetensors", loras)
    command = [sys.executable, "-c", MEMORY, tmp_path, f"{kind} few", f"{kind} many"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 * layer, "of 48 layers"


def test_the_command_line(model, style, tmp_path, capsys):
    out = tmp_path / "baked.safetensors"
    assert (
        main(["bake", str(out), str(model), f"{style}=0.5", "--rounding", "stochastic", "--seed", "3", "--layers"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{out}: {out.stat().st_size:,} bytes, 1 whole differences, error ")
    assert lines[-1].endswith("blocks.0.proj")
    assert json.loads(AdapterFile.open(out).metadata[HEADER])["seed"] == 3
    assert main(["bake", str(out), str(model), f"{style}=0.5"]) == 1
    assert "there is a file of that name" in capsys.readouterr().err
    assert main(["bake", str(out), str(model), f"{style}=0.5", "--replace"]) == 0
