"""One file in another form, without a model where its layers are LoRA, and by the command line."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib_lora import (
    ArgumentError,
    BlockWeights,
    Engine,
    Entry,
    FileError,
    Stack,
    StackError,
    Strength,
    combine_files,
    inspect_file,
    load_network,
    save_again,
    save_stack,
)
from lib_lora.__main__ import main
from lib_lora.saving import convert_file
from lib_lora.saving.model_files import ModelFiles
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora, tiny_text_encoder, tiny_unet


@pytest.fixture(scope="module")
def parts():
    return {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}


@pytest.fixture(scope="module")
def model(tmp_path_factory, parts):
    """Return a diffusers folder on disk."""
    folder = tmp_path_factory.mktemp("model")
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def lora(tmp_path_factory, parts):
    return kohya_lora(tmp_path_factory.mktemp("lora") / "style.safetensors", parts, rank=6, conv=True)


def deltas(path, parts):
    """Return the change of every layer, by component and name."""
    network = load_network(path, parts)
    names = {(one.component, one.target.name) for one in network.bindings}
    return {name: network.delta_weight(*name, dtype=torch.float64) for name in names}


def check_same(path, lora, parts, factor=1.0, bound=1e-6):
    found, wanted = deltas(path, parts), deltas(lora, parts)
    for name, delta in found.items():
        assert (delta - factor * wanted[name]).norm() <= bound * wanted[name].norm(), name
    return found.keys()


def test_a_strength_is_folded_in_and_the_keys_stay(lora, parts, tmp_path):
    saved = convert_file(lora, tmp_path / "half.safetensors", strength=0.5)
    assert check_same(saved.path, lora, parts, 0.5) == deltas(lora, parts).keys()
    assert load_file(saved.path).keys() == load_file(lora).keys()


def test_text_encoders_out_or_alone(lora, parts, tmp_path):
    for encoders, kept in (("drop", {"unet"}), ("only", {"text_encoder"})):
        saved = convert_file(lora, tmp_path / f"{encoders}.safetensors", text_encoders=encoders)
        assert {component for component, _ in check_same(saved.path, lora, parts)} == kept
        out = tmp_path / f"{encoders} with the model.safetensors"
        again = convert_file(lora, out, text_encoders=encoders, components=parts)
        assert load_file(saved.path).keys() == load_file(again.path).keys()


def test_blocks_alone(lora, parts, tmp_path):
    for model in (None, parts):
        out = tmp_path / "part.safetensors"
        saved = convert_file(lora, out, blocks=["IN04-M00", "BASE"], components=model, replace=True)
        names = check_same(saved.path, lora, parts)
        tops = {name.split(".")[0] for component, name in names if component == "unet"}
        assert tops == {"down_blocks", "mid_block"}
        assert all(".0." not in name[:14] for component, name in names if name.startswith("down_blocks"))
        assert "text_encoder" in {component for component, _ in names}


def test_a_resized_file_says_its_error(lora, parts, tmp_path):
    saved = convert_file(lora, tmp_path / "small.safetensors", rank=2)
    found, wanted = deltas(saved.path, parts), deltas(lora, parts)
    missed = sum((found[name] - delta).square().sum() for name, delta in wanted.items())
    assert saved.error == pytest.approx(
        math.sqrt(missed / sum(delta.square().sum() for delta in wanted.values())), rel=1e-5
    )
    assert inspect_file(saved.path).ranks == (2, 2)


def test_precision_and_layers_of_zeros(lora, tmp_path):
    tensors = {key: one.half() if one.ndim else one for key, one in load_file(lora).items()}
    empty = next(key for key in tensors if key.endswith("lora_up.weight"))
    tensors[empty] = torch.zeros_like(tensors[empty])
    half = tmp_path / "half.safetensors"
    save_file(tensors, half)
    saved = convert_file(half, tmp_path / "pruned.safetensors")
    found = load_file(saved.path)
    assert {one.dtype for one in found.values() if one.ndim} == {torch.float16}, "as the file has it"
    assert tensors.keys() - found.keys() == {key for key in tensors if key.startswith(empty.split(".")[0] + ".")}
    wide = convert_file(half, tmp_path / "wide.safetensors", dtype=torch.float32)
    assert wide.error < 1e-7 < saved.error < 1e-3
    tensors[empty] = torch.full_like(tensors[empty], 6e4)
    down = empty.replace("up", "down")
    tensors[down] = torch.full_like(tensors[down], 6e4)
    save_file(tensors, half)
    with pytest.raises(FileError, match="float16 cannot hold"):
        convert_file(half, tmp_path / "large.safetensors", strength=100)


def test_a_converted_file_is_made_again_bit_for_bit_without_a_model(lora, tmp_path):
    options = {"text_encoders": "drop", "blocks": ["IN04-M00"], "rank": 3, "dtype": torch.bfloat16}
    saved = convert_file(lora, tmp_path / "part.safetensors", strength=0.7, **options)
    again = save_again(saved.path, tmp_path / "again.safetensors", None, [lora.parent])
    assert again.path.read_bytes() == saved.path.read_bytes()


def test_there_and_back_between_the_spellings(lora, parts, tmp_path):
    for spelling in ("diffusers", "comfy"):
        (tmp_path / spelling).mkdir()
        check_there_and_back(lora, parts, tmp_path / spelling, spelling)


def check_there_and_back(lora, parts, tmp_path, spelling):
    with pytest.raises(
        FileError, match=r"nothing tells where its name has dots of .*; give the model that the file is for"
    ):
        convert_file(lora, tmp_path / "there.safetensors", spelling=spelling)
    there = convert_file(lora, tmp_path / "there.safetensors", spelling=spelling, components=parts)
    check_same(there.path, lora, parts)
    back = convert_file(there.path, tmp_path / "back.safetensors", components=parts)
    assert check_same(back.path, lora, parts) == deltas(lora, parts).keys()
    assert load_file(back.path).keys() == load_file(lora).keys()
    if spelling == "diffusers":  # whose names have dots
        alone = convert_file(there.path, tmp_path / "alone.safetensors", spelling="kohya")
        assert load_file(alone.path).keys() == load_file(lora).keys()


def test_other_kinds_become_lora(tmp_path):
    from tests.fakes.kinds import SAMPLES

    net = nn.ModuleDict({"layer": nn.Linear(48, 24).requires_grad_(False)})
    for name in ("loha", "lokr full, factored", "full", "lora with bias"):
        sample = next(one for one in SAMPLES if one.name == name)
        path, _ = sample.write(tmp_path, (24, 48))
        saved = convert_file(path, tmp_path / "lora.safetensors", rank=24, replace=True)
        assert inspect_file(saved.path).kinds.keys() <= {"lora", "lora+bias"}, name
        first, other = (load_network(one, {"unet": net}).delta_weight("unet", "layer") for one in (path, saved.path))
        assert torch.allclose(first, other, atol=1e-5), name


def test_kinds_that_need_the_model_are_refused_without_it(tmp_path):
    tensors = pair("lora_unet_layer", (48, 24), 4) | {"lora_unet_layer.dora_scale": torch.ones(48, 1)}
    path = save(tmp_path / "dora.safetensors", tensors)
    with pytest.raises(FileError, match="is on meta; give the model that the file is for"):
        convert_file(path, tmp_path / "out.safetensors")
    net = nn.ModuleDict({"layer": nn.Linear(24, 48).requires_grad_(False)})
    saved = convert_file(path, tmp_path / "out.safetensors", components={"unet": net}, rank=24)
    first, other = (load_network(one, {"unet": net}).delta_weight("unet", "layer") for one in (path, saved.path))
    assert torch.allclose(first, other, atol=1e-5)


def test_a_dora_stays_one_where_it_is_alone_and_whole(tmp_path):
    for shape in ((48, 24), (3, 8, 3, 3)):  # the convolution has fewer channels than ranks
        check_dora(tmp_path, shape)


def check_dora(tmp_path, shape):
    layer = nn.Conv2d(8, 3, 3) if len(shape) > 2 else nn.Linear(24, 48)
    net = nn.ModuleDict({"layer": layer.requires_grad_(False)})
    other = save(tmp_path / "lora.safetensors", pair("lora_unet_layer", shape, 2, seed=5))
    for axis in (0, 1):
        norms = torch.rand([size if dim == axis else 1 for dim, size in enumerate(shape)]) + 0.5
        tensors = pair("lora_unet_layer", shape, 4, alpha=2.0) | {"lora_unet_layer.dora_scale": norms}
        path, out = save(tmp_path / "dora.safetensors", tensors), tmp_path / "out.safetensors"
        want = load_network(path, {"unet": net}).delta_weight("unet", "layer", torch.float64)
        for dtype, bound in ((torch.float32, 1e-6), (torch.float16, 3e-3)):
            saved = convert_file(path, out, components={"unet": net}, dtype=dtype, pad=6, replace=True)
            assert torch.equal(load_file(out)["lora_unet_layer.dora_scale"], norms.to(dtype))
            assert load_file(out)["lora_unet_layer.lora_down.weight"].shape == (6, *shape[1:])
            got = load_network(out, {"unet": net}).delta_weight("unet", "layer", torch.float64)
            assert (got - want).norm() < bound * want.norm()
            assert saved.error < bound
        for options in ({"strength": 0.5}, {"rank": 2}):
            convert_file(path, out, components={"unet": net}, replace=True, **options)
            assert not any("dora_scale" in key for key in load_file(out))
        combine_files([path, other], out, components={"unet": net}, replace=True)
        assert load_file(out).keys() == {"lora_unet_layer.diff"}


def test_lower_ranks_are_filled_up_with_zeros(parts, tmp_path):
    for spelling in ("kohya", "diffusers"):
        (tmp_path / spelling).mkdir()
        check_padded(parts, tmp_path / spelling, spelling)


def check_padded(parts, tmp_path, spelling):
    files = [kohya_lora(tmp_path / f"{rank}.safetensors", parts, rank=rank, conv=True) for rank in (3, 5)]
    narrow = {key: one for key, one in load_file(files[0]).items() if "to_q" in key}
    save_file(narrow | {key: one for key, one in load_file(files[1]).items() if "to_q" not in key}, files[1])
    out = tmp_path / "padded.safetensors"
    saved = convert_file(files[1], out, pad=8, spelling=spelling, components=parts)
    assert {layer.rank for layer in saved.layers} == {3, 4, 5}, "4 of a convolution to 4 channels"
    check_same(out, files[1], parts)
    assert inspect_file(out).ranks == (8, 8)
    told = convert_file(files[1], out, pad=8, spelling=spelling, components=parts, preview=True)
    assert told.nbytes == saved.nbytes == out.stat().st_size
    assert save_again(out, tmp_path / "again.safetensors", parts, [tmp_path]).path.read_bytes() == out.read_bytes()
    with pytest.raises(FileError, match="a layer has the rank 5; pad to 5, or cut to a rank"):
        convert_file(files[1], tmp_path / "short.safetensors", pad=4)
    assert convert_file(files[1], tmp_path / "short.safetensors", pad=4, rank=4).layers
    for options in ({"pad": 0}, {"pad": 8, "size": 10_000}, {"pad": 8, "kind": "lokr"}):
        with pytest.raises(ArgumentError, match="pad m"):
            convert_file(files[1], tmp_path / "wrong.safetensors", **options)


def test_wrong_arguments(lora, tmp_path):
    for error, options in (
        (StackError, {"text_encoders": "none"}),
        (StackError, {"strength": math.inf}),
        (ArgumentError, {"blocks": "IN01"}),
        (FileError, {"strength": 0.0}),
        (FileError, {"blocks": ["OUT99"]}),
    ):
        with pytest.raises(error):
            convert_file(lora, tmp_path / "out.safetensors", **options)
    assert list(tmp_path.iterdir()) == []


def test_the_command_saves_several_files_as_one(lora, parts, model, tmp_path, capsys):
    other = kohya_lora(tmp_path / "other.safetensors", parts, seed=3)
    out = tmp_path / "both.safetensors"
    assert main(["save", str(out), str(lora), f"{other}=-0.5", "--model", str(model), "--layers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{out}: {out.stat().st_size:,} bytes, ")
    assert "error " in lines[0]
    assert len(lines) == 2 + len(deltas(lora, parts))
    found, first, second = (deltas(path, parts) for path in (out, lora, other))
    for name, delta in found.items():
        wanted = first[name] + (-0.5 * second[name] if name in second else 0)
        assert (delta - wanted).norm() <= 1e-6 * wanted.norm()
    assert main(["save", str(out), str(lora), "--model", str(model)]) == 1
    assert "there is a file of that name" in capsys.readouterr().err
    folders = [str(lora.parent), str(tmp_path)]
    again = tmp_path / "again.safetensors"
    assert main(["save", str(again), *folders, "--again", str(out), "--model", str(model)]) == 0
    assert all(torch.equal(one, load_file(out)[key]) for key, one in load_file(again).items())
    for wrong in ("=x", "=1:te=", ":lbw=1,x", ":dyn=a"):
        assert main(["save", str(again), f"{lora}{wrong}", "--model", str(model), "--replace"]) == 1
        assert "what is behind = is no number" in capsys.readouterr().err
    wanted = f"{lora}=0.8:te=0.25:dyn=2:lbw=1{',0.5' * 11}"
    assert main(["save", str(again), wanted, "--model", str(model), "--replace"]) == 0
    engine = Engine(parts)
    strength = Strength({"unet": 0.8, "text_encoder": 0.25}, blocks=BlockWeights((1.0, *[0.5] * 11)))
    engine.activate(Stack([Entry(lora, strength, 2)]))
    wanted = load_file(save_stack(engine, tmp_path / "wanted.safetensors").path)
    engine.close()
    found = load_file(again)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(one, wanted[key]) for key, one in found.items())


def test_the_command_converts_a_file(lora, tmp_path, capsys):
    out = tmp_path / "small.safetensors"
    assert main(["resize", str(lora), str(out), "--energy", "0.9", "--size", "0.3M", "--dtype", "float16"]) == 0
    assert "error " in capsys.readouterr().out
    assert out.stat().st_size < 300_000
    with pytest.raises(SystemExit):
        main(["convert", str(lora), str(out), "--size", "big"])
    with pytest.raises(SystemExit):
        main(["convert", str(lora), str(out), "--energy", "1.5"])


def test_a_model_on_disk_gives_the_weights_that_are_needed(parts, model, tmp_path):
    """DoRA reads the norms of the base weight, and a whole bias the bias."""
    layer, bare = "mid_block.attentions.0.proj_out", "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    tensors = pair(f"lora_unet_{layer.replace('.', '_')}", (64, 64, 1, 1), 4)
    tensors |= {f"lora_unet_{layer.replace('.', '_')}.dora_scale": torch.ones(64, 1, 1, 1)}
    tensors |= {f"lora_unet_{layer.replace('.', '_')}.set_bias": torch.ones(64)}
    tensors |= pair(f"lora_unet_{bare.replace('.', '_')}", (64, 64), 4)
    path = save(tmp_path / "dora.safetensors", tensors)
    for where in (model, model / "unet"):
        out = tmp_path / "saved.safetensors"
        assert main(["convert", str(path), str(out), "--model", str(where), "--replace"]) == 0
        first, other = (deltas(one, parts) for one in (path, out))
        assert first.keys() == other.keys()
        assert all(torch.allclose(delta, other[name], atol=1e-5) for name, delta in first.items())
    engine, loaded = Engine({"unet": parts["unet"]}), ModelFiles(model).components["unet"]
    assert loaded.get_submodule(bare).bias is None
    assert torch.equal(loaded.get_submodule(layer).bias, parts["unet"].get_submodule(layer).bias)
    engine.activate(Stack([Entry(out)]))
    engine.close()


def test_a_checkpoint_in_one_file_gives_the_weights_too(tmp_path):
    layer = "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
    generator = torch.Generator().manual_seed(0)
    shapes = {f"{layer}.weight": (32, 32), "input_blocks.0.0.weight": (32, 4, 3, 3), "time_embed.0.weight": (64, 32)}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    checkpoint = save(
        tmp_path / "model.safetensors", {f"model.diffusion_model.{key}": one for key, one in weights.items()}
    )
    name = f"lora_unet_{layer.replace('.', '_')}"
    tensors = pair(name, (32, 32), 4, alpha=4.0) | {f"{name}.dora_scale": torch.full((32, 1), 2.0)}
    path, out = save(tmp_path / "dora.safetensors", tensors), tmp_path / "out.safetensors"
    assert main(["convert", str(path), str(out), "--model", str(checkpoint)]) == 0
    base = weights[f"{layer}.weight"].double()
    whole = base + tensors[f"{name}.lora_up.weight"].double() @ tensors[f"{name}.lora_down.weight"].double()
    wanted = whole * (2.0 / whole.norm(dim=1, keepdim=True)) - base
    found, name = load_file(out), "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    parts = {"alpha", "lora_down.weight", "lora_up.weight", "dora_scale"}
    assert found.keys() == {f"{name}.{part}" for part in parts}, "as kohya's trainer"
    weak = tmp_path / "weak.safetensors"
    assert main(["convert", str(path), str(weak), "--model", str(checkpoint), "--strength", "0.5"]) == 0
    (weak_found,) = load_file(weak).items()
    assert weak_found[0] == f"{name}.diff", "half of a DoRA is none"
    assert (weak_found[1] - 0.5 * wanted).norm() < 1e-6 * wanted.norm()
