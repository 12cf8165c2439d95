"""The difference of two models as a file: the numbers, the layouts, and what rounding makes."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from lib_lora import Engine, Entry, FileError, Stack, bake_stack, extract_lora, load_network, save_again
from lib_lora.__main__ import main
from lib_lora.files.file import AdapterFile
from lib_lora.saving import difference, extraction, new_file
from lib_lora.saving.difference import Difference
from lib_lora.saving.model_files import ModelFiles
from lib_lora.saving.provenance import HEADER
from tests.fakes.checkpoints import save_checkpoint, tiny_pipeline
from tests.fakes.contract import in_folders, worst
from tests.fakes.files import pair, save
from tests.fakes.models import dense_deltas, kohya_lora, merged, tiny_text_encoder, tiny_unet, unet_inputs

HALF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Largest error of rounding to the nearest number, as a share of it."""
NAME = "blocks.0.proj.weight"


@pytest.fixture(scope="module")
def parts():
    return {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}


def save_folder(folder, parts, dtype=torch.float32):
    for name, part in parts.items():
        part.to(dtype).save_pretrained(folder / name)
        part.float()
    return folder


def check_deltas(path, components, deltas, bound):
    """Check the change of every layer against those in fp64, but for the rounding of its base and tuned weight."""
    network, found = load_network(path, components), 0
    for component, own in deltas.items():
        for name, delta in own.items():
            got = network.delta_weight(component, name, torch.float64)
            size = components[component].get_submodule(name).weight.double().norm()
            assert (got - delta).norm() <= bound * size + 1e-6 * delta.norm(), name
            found += 1
    assert found == len({(one.component, one.target.name) for one in network.bindings})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_baked_is_found_again(tmp_path, parts, dtype):
    for folder, limits in in_folders(tmp_path, [({},), ({"rank": 4},), ({"error": 0.01},)]):
        _what_was_baked_is_found_again(folder, parts, dtype, limits)


def _what_was_baked_is_found_again(tmp_path, parts, dtype, limits):
    base = save_folder(tmp_path / "base", parts, dtype)
    lora = kohya_lora(tmp_path / "style.safetensors", parts, conv=True)
    tuned = bake_stack(Stack([Entry(lora, 0.8)]), base, tmp_path / "tuned").path
    saved = extract_lora(base, tuned, tmp_path / "out.safetensors", **limits)
    deltas = {
        component: {name: 0.8 * delta for name, delta in own.items()}
        for component, own in dense_deltas(lora, parts).items()
    }
    if "error" not in limits:
        check_deltas(saved.path, parts, deltas, 2 * HALF[dtype])
    assert saved.error < (0.01 if limits else 1e-6) or dtype is torch.bfloat16
    ranks = {layer.rank for layer in saved.layers}
    assert ranks == {None} if not limits else None not in ranks
    if dtype is torch.float32 and limits:
        assert max(ranks) <= 4, "the ranks of what was baked"


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
@pytest.mark.parametrize("order", ["one file first", "folder first"])
def test_models_of_unlike_layouts(tmp_path, family, order):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        pipe = tiny_pipeline(family)
    own = {name: part for name in ("unet", "text_encoder", "text_encoder_2") if (part := getattr(pipe, name, None))}
    changed = {"unet", "text_encoder_2" if family == "sdxl" else "text_encoder"}
    lora = kohya_lora(tmp_path / "style.safetensors", {name: own[name] for name in changed}, conv=True)
    deltas = dense_deltas(lora, {name: own[name] for name in changed})
    tuned = {name: merged(part, deltas.get(name, {}), 1.0).float() for name, part in own.items()}
    if order == "one file first":
        base = save_checkpoint(pipe, family, tmp_path / "base.safetensors")
        other = save_folder(tmp_path / "tuned", tuned)
    else:
        base = save_folder(tmp_path / "base", own)
        for name, part in tuned.items():
            setattr(pipe, name, part)
        other = save_checkpoint(pipe, family, tmp_path / "tuned.safetensors")
    saved = extract_lora(base, other, tmp_path / "out.safetensors")
    if family == "sdxl":  # a parameter of no layer in one file, a layer in the folder
        lost = deltas["text_encoder_2"].pop("text_projection")
        assert lost.any()
        assert any("text_encoder_2.text_projection" in note for note in saved.notes)
    check_deltas(saved.path, own, deltas, 2 * HALF[torch.float32])
    assert not any("rounding" in note for note in saved.notes)
    keys = set(load_file(saved.path))
    if order == "one file first":  # names that other programs know
        block = "lora_unet_input_blocks_" if family == "sdxl" else "lora_unet_down_blocks_"
        encoder = "lora_te2" if family == "sdxl" else "lora_te"
        assert any(key.startswith(block) for key in keys)
        assert {f"{encoder}_text_model_encoder_layers_0_self_attn_q_proj.diff",
                f"{encoder}_text_model_encoder_layers_1_mlp_fc1.diff"} <= keys  # fmt: skip
    diffusers = extract_lora(base, other, tmp_path / "peft.safetensors", spelling="diffusers", rank=4)
    names = {key.partition(".lora_")[0] for key in load_file(diffusers.path)}
    assert "unet.conv_in" in names
    assert names <= {f"{component}.{name}" for component, own in deltas.items() for name in named(own, component)}


def named(deltas, component):
    """Return names of layers as files have them, below `text_model`."""
    lost = component.startswith("text_encoder")
    return [f"text_model.{name}" if lost and not name.startswith("text_model.") else name for name in deltas]


def test_norms_and_biases_go_along_and_other_parameters_are_said(tmp_path, parts):
    tensors = {
        "blocks.0.norm.weight": torch.ones(24),
        "blocks.0.norm.bias": torch.zeros(24),
        "blocks.0.proj.weight": torch.randn(48, 24),
        "blocks.0.proj.bias": torch.zeros(48),
        "blocks.0.gate": torch.zeros(24),
        "blocks.1.proj.weight": torch.randn(48, 24),
    }
    base, tuned = save(tmp_path / "base.safetensors", tensors), dict(tensors)
    for key in ("blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.0.proj.bias", "blocks.0.gate"):
        tuned[key] = tensors[key] + torch.randn(tensors[key].shape)
    del tuned["blocks.1.proj.weight"]
    other = save(tmp_path / "tuned.safetensors", tuned)
    saved = extract_lora(base, other, tmp_path / "out.safetensors", rank=2)
    assert {layer.name for layer in saved.layers} == {"blocks.0.norm", "blocks.0.proj"}
    assert saved.notes == (
        "layers of base.safetensors that tuned.safetensors does not have: transformer.blocks.1.proj",
        "parameters that differ and that no LoRA file can change: transformer.blocks.0.gate",
    )
    again = bake_stack(Stack([Entry(saved.path)]), base, tmp_path / "again.safetensors")
    got = load_file(again.path)
    for key in ("blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.0.proj.bias"):
        assert worst(got[key], tuned[key]) < 1e-6
    assert torch.equal(got["blocks.0.gate"], tensors["blocks.0.gate"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_rounding_is_no_difference(tmp_path, dtype):
    tensors = {f"blocks.{i}.proj.weight": torch.randn(64, 64) * 0.1 for i in range(5)}
    base = save(tmp_path / "base.safetensors", tensors)
    rounded = {key: one.to(dtype) for key, one in tensors.items()}
    tuned = save(tmp_path / "tuned.safetensors", rounded)
    for first, second in ((base, tuned), (tuned, base)):
        with pytest.raises(FileError, match=r"does not differ .* rounding alone are left out: .* and 2 more"):
            extract_lora(first, second, tmp_path / "out.safetensors")
    rounded["blocks.3.proj.weight"] = (tensors["blocks.3.proj.weight"] * 1.5).to(dtype)
    save(tmp_path / "tuned.safetensors", rounded)
    saved = extract_lora(base, tuned, tmp_path / "out.safetensors")
    assert [layer.name for layer in saved.layers] == ["blocks.3.proj"]
    assert "layers that differ by rounding alone are left out: transformer.blocks.0.proj" in saved.notes[0]


def test_last_places_that_flip_are_no_difference(tmp_path):
    """Another program rounds otherwise, as one that takes the digits off."""
    for dtype in (torch.float16, torch.bfloat16):
        (tmp_path / str(dtype)).mkdir()
        _last_places_flip(tmp_path / str(dtype), dtype)


def _last_places_flip(tmp_path, dtype):
    weight = torch.randn(128, 128)
    nearest = weight.to(dtype)
    bits = nearest.view(torch.int16)
    flipped = (bits + (torch.rand(bits.shape) < 0.1)).to(torch.int16).view(dtype)
    base = save(tmp_path / "base.safetensors", {NAME: nearest, "blocks.1.proj.weight": nearest.clone()})
    tuned = save(tmp_path / "tuned.safetensors", {NAME: flipped, "blocks.1.proj.weight": (weight * 1.01).to(dtype)})
    saved = extract_lora(base, tuned, tmp_path / "out.safetensors")
    assert [layer.name for layer in saved.layers] == ["blocks.1.proj"]
    assert saved.notes == (f"layers that differ by rounding alone are left out: transformer.{NAME[:-7]}",)


def test_a_change_that_is_finer_than_the_base_is_a_difference(tmp_path):
    """A model that was trained in float32 from a base in bfloat16 differs by less than rounding would make."""
    weight = torch.randn(128, 128).bfloat16()
    tuned = weight.float() * (1 + 1e-4 * torch.randn(128, 128))
    base = save(tmp_path / "base.safetensors", {NAME: weight})
    saved = extract_lora(base, save(tmp_path / "tuned.safetensors", {NAME: tuned}), tmp_path / "out.safetensors")
    delta = load_file(saved.path)["lora_unet_blocks_0_proj.diff"]
    assert worst(delta, tuned.double() - weight.double()) < 1e-6


def test_a_picture_of_the_file_is_that_of_the_tuned_model(tmp_path, parts):
    base = save_folder(tmp_path / "base", parts)
    lora = kohya_lora(tmp_path / "style.safetensors", {"unet": parts["unet"]})
    tuned = merged(parts["unet"], dense_deltas(lora, {"unet": parts["unet"]})["unet"], 1.0).float()
    saved = extract_lora(base, save_folder(tmp_path / "tuned", {"unet": tuned}), tmp_path / "out.safetensors", rank=4)
    assert saved.notes == ("components that one of the models has: text_encoder",)
    engine = Engine({"unet": parts["unet"]})
    engine.activate(Stack([Entry(saved.path)]))
    with torch.no_grad():
        assert worst(parts["unet"](**unet_inputs(0))[0], tuned(**unet_inputs(0))[0]) < 1e-5
    engine.close()


def test_weights_in_float8_with_scales(tmp_path):
    """The scale makes the numbers: a base in scaled float8 and a tuned model in bfloat16, and the other way round."""
    cases = [(key, by_rows) for key in ("scale_weight", "weight_scale") for by_rows in (False, True)]
    for folder, key, by_rows in in_folders(tmp_path, cases):
        _weights_in_float8_with_scales(folder, key, by_rows)


def _weights_in_float8_with_scales(tmp_path, key, by_rows):
    weight, change = torch.randn(48, 24) * 0.02, torch.zeros(48, 24)
    scale = weight.abs().amax(1, keepdim=True) / 448 if by_rows else weight.abs().max() / 448
    packed = (weight / scale).to(torch.float8_e4m3fn)
    change[3:9, 4:8] = 0.05
    tensors = {NAME: packed, NAME.replace("weight", key): scale, NAME.replace("weight", "input_scale"): torch.ones(())}
    same = {"blocks.1.proj.weight": weight.bfloat16()}
    base = save(tmp_path / "base.safetensors", tensors | same)
    for dtype in (torch.float32, torch.bfloat16):
        meant = packed.double() * scale.double()
        tuned = save(tmp_path / "tuned.safetensors", {NAME: (meant + change).to(dtype)} | same)
        saved = extract_lora(base, tuned, tmp_path / "out.safetensors", replace=True)
        assert [layer.name for layer in saved.layers] == ["blocks.0.proj"]
        delta = load_file(saved.path)["lora_unet_blocks_0_proj.diff"].double()
        assert (delta - change).abs().max() <= HALF[dtype] * (meant + change).abs().max() + 1e-7
        back = extract_lora(tuned, base, tmp_path / "back.safetensors", replace=True)
        assert worst(load_file(back.path)["lora_unet_blocks_0_proj.diff"], -delta) < 1e-6
    rounded = save(tmp_path / "tuned.safetensors", {NAME: weight} | same)
    with pytest.raises(FileError, match="layers that differ by rounding alone are left out"):
        extract_lora(base, rounded, tmp_path / "none.safetensors")


def test_a_quantized_model_is_refused(tmp_path):
    base = save(tmp_path / "base.safetensors", {NAME: torch.randn(48, 24)})
    scales = {"blocks.0.proj.scale_weight": torch.ones(6)}  # of blocks, which no program here reads
    for dtype, more in ((torch.int8, {}), (torch.float8_e4m3fn, scales)):
        packed = {NAME: torch.zeros(48, 24, dtype=dtype)} | more
        with pytest.raises(FileError, match=r"its weights are quantized .*; give the model in float16"):
            extract_lora(base, save(tmp_path / "tuned.safetensors", packed), tmp_path / "out.safetensors")


def test_models_that_have_nothing_in_common(tmp_path, parts):
    base = save_folder(tmp_path / "base", {"text_encoder": parts["text_encoder"]})
    other = save(tmp_path / "tuned.safetensors", {NAME: torch.randn(48, 24)})
    with pytest.raises(FileError, match="it has no component of base, which has text_encoder"):
        extract_lora(base, other, tmp_path / "out.safetensors")
    with pytest.raises(FileError, match=r"it does not differ from tuned\.safetensors"):
        extract_lora(other, other, tmp_path / "out.safetensors")


def test_a_number_that_is_nan(tmp_path):
    weight = torch.randn(48, 24)
    base, weight = save(tmp_path / "base.safetensors", {NAME: weight}), weight + 1
    weight[0, 0] = float("nan")
    tuned = save(tmp_path / "tuned.safetensors", {NAME: weight})
    for limits in ({}, {"rank": 2}):
        with pytest.raises(FileError, match="NaN or infinite"):
            extract_lora(base, tuned, tmp_path / "out.safetensors", **limits)
    assert not (tmp_path / "out.safetensors").exists()


def nearest(rest):
    """Return the singular values, and a function of a rank that returns the nearest matrix."""
    u, values, v = torch.linalg.svd(rest.flatten(1), full_matrices=False)
    return values, lambda rank: (u[:, :rank] * values[:rank] @ v[:rank]).reshape(rest.shape)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (16, 8, 3, 3)])
def test_values_and_the_nearest_lora_by_the_smaller_product(shape):
    generator = torch.Generator().manual_seed(0)
    rest = torch.randn(shape, generator=generator, dtype=torch.float64) * torch.rand(shape[0], *(1,) * (len(shape) - 1))
    dense, (want, best) = Difference(shape, (), rest), nearest(rest)
    values, vectors = dense.spectrum()
    assert vectors is None
    assert worst(values, want) < 1e-7
    for rank in (1, 5, min(len(want), 30)):
        values, vectors = dense.spectrum(rank)
        assert worst(values, want) < 1e-7
        for cut in (dense.cut(rank), dense.cut(rank, vectors)):
            assert worst(cut.dense(), best(rank)) < 1e-7
            assert cut.rank == rank


@pytest.mark.parametrize("shape", [(300, 170), (170, 300), (180, 64, 3, 3)])
@pytest.mark.parametrize("spectrum", ["falling", "flat"])
def test_a_random_subspace_finds_the_first_values(shape, spectrum, monkeypatch):
    eigh, sizes = torch.linalg.eigh, []
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: sizes.append(len(matrix)) or eigh(matrix))
    generator = torch.Generator().manual_seed(0)
    rest = torch.randn(shape, generator=generator, dtype=torch.float64)
    if spectrum == "falling":
        u, _, v = torch.linalg.svd(rest.flatten(1), full_matrices=False)
        rest = (u * 0.8 ** torch.arange(u.shape[1], dtype=torch.float64) @ v).reshape(shape)
    few, (want, best) = Difference(shape, (), rest), nearest(rest)
    values, vectors = few.spectrum(8)
    assert max(sizes) <= min(rest.flatten(1).shape) / 2, "or the way through all of them"
    assert float(values.norm()) == pytest.approx(float(want.norm()), rel=1e-9)
    bound = 1e-5 if spectrum == "falling" else 0.05
    assert worst(values[:8], want[:8]) < bound
    for rank in (1, 8):
        missed, least = (float((one - rest).norm()) for one in (few.cut(rank, limit=8).dense(), best(rank)))
        assert least * (1 - 1e-12) <= missed < 1.001 * least, "nearly as near as the nearest"
        left = float(values.square().sum() - values[:rank].square().sum()) ** 0.5
        assert missed == pytest.approx(left, rel=1e-6), "the error is told right"
    again = Difference(shape, (), rest)
    assert torch.equal(few.cut(8, vectors).dense(), again.cut(8, limit=8).dense()), "always the same"
    monkeypatch.setattr(difference, "_EXCESS", 1e-12)
    missed, least = (float((one - rest).norm()) for one in (few.cut(8, limit=8).dense(), best(8)))
    assert missed == pytest.approx(least, rel=1e-9), "where it does not find them, all are computed"


def test_a_dense_change_is_decomposed_once(tmp_path, monkeypatch):
    """The vectors by which a rank is chosen are those by which the factors are written, as far as memory has room."""
    weights = {f"blocks.{i}.proj.weight": torch.randn(48, 24) for i in range(3)}
    base = save(tmp_path / "base.safetensors", weights)
    tuned = save(tmp_path / "tuned.safetensors", {key: one + torch.randn(48, 24) for key, one in weights.items()})
    counts, files = [], []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: counts.append(1) or eigh(matrix))
    for room in (1 << 20, 24 * 4 * 8, 0):
        monkeypatch.setattr(new_file, "_HELD", room)
        files.append(extract_lora(base, tuned, tmp_path / f"{room}.safetensors", rank=4).path)
        counts.append(0)
    assert [len(one) for one in "".join(map(str, counts)).split("0")[:3]] == [3, 5, 6]
    first, *others = map(load_file, files)
    assert all(torch.equal(other[key], one) for other in others for key, one in first.items())


def test_a_name_that_is_taken_is_said_before_the_models_are_compared(tmp_path):
    base, taken = save(tmp_path / "base.safetensors", {NAME: torch.randn(48, 24)}), tmp_path / "taken.safetensors"
    taken.write_bytes(b"former")
    with pytest.raises(FileError, match="there is a file of that name"):
        extract_lora(base, base, taken)
    assert taken.read_bytes() == b"former"


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="Windows tells it otherwise")
def test_a_disk_without_room_is_seen_before_the_work(tmp_path, monkeypatch):
    """Before models are compared if it is full; without a limit before a difference is computed; else after some."""
    weights = {f"blocks.{i}.proj.weight": torch.randn(48, 24) for i in range(9)}
    base = save(tmp_path / "base.safetensors", weights)
    tuned = save(tmp_path / "tuned.safetensors", {key: one + torch.randn(48, 24) for key, one in weights.items()})
    spare, count, work = 1 << 20, 2 * (48 + 24) * 4, []
    monkeypatch.setattr(extraction, "both", seen(work, "read", extraction.both))
    monkeypatch.setattr(extraction.ModelWeight, "difference", seen(work, "computed", extraction.ModelWeight.difference))
    cases = (
        (spare - 1, {}, 0, 0),
        (spare + 9 * 48 * 24 * 4 - 1, {}, 9 * 48 * 24 * 4, 0),
        (spare + 3 * count, {"rank": 2}, 4 * count, 4),
    )
    for free, limits, least, computed in cases:
        full = os.statvfs_result((1, 1, 1 << 40, free, free, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path, full=full: full)
        work.clear()
        with pytest.raises(FileError, match=f"takes at least {least:,} bytes, and the disk has {free:,} left"):
            extract_lora(base, tuned, tmp_path / "out.safetensors", **limits)
        assert ("read" in work) == (least > 0)
        assert work.count("computed") == computed


def seen(work, name, function):
    return lambda *args: work.append(name) or function(*args)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch, error):
    weight = torch.randn(48, 24)
    files = [save(tmp_path / f"{i}.safetensors", {NAME: weight + i}) for i in range(2)]

    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError if isinstance(error, OSError) else KeyboardInterrupt):
        extract_lora(*files, tmp_path / "out.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.safetensors", "1.safetensors"]


def test_the_header_says_how_it_was_made(tmp_path):
    weight, header = torch.randn(48, 24), {"modelspec.license": "open", "modelspec.architecture": "flux-1-dev"}
    base = save(tmp_path / "base.safetensors", {NAME: weight}, header)
    tuned = save(tmp_path / "tuned.safetensors", {NAME: weight + 1}, header)
    saved = extract_lora(base, tuned, tmp_path / "out.safetensors", rank=1, dtype=torch.float16)
    said = AdapterFile.open(saved.path).metadata
    made = json.loads(said[HEADER])
    assert made["base"].keys() == {"base.safetensors"}
    assert len(made["tuned"]["tuned.safetensors"]) == 64
    assert (made["rank"], made["dtype"]) == (1, "float16")
    assert said["modelspec.license"] == "tuned.safetensors: open; base.safetensors: open"
    assert said["modelspec.architecture"] == "flux-1-dev/lora"
    before = saved.path.read_bytes()
    assert extract_lora(base, tuned, saved.path, rank=1, dtype=torch.float16, replace=True) == saved
    assert saved.path.read_bytes() == before, "bit for bit"
    folders = [save_folder(tmp_path / str(i), {"unet": tiny_unet(i)}) for i in range(2)]
    shards = extract_lora(folders[0] / "unet", folders[1] / "unet", tmp_path / "shards.safetensors", rank=2)
    for one, places in ((saved, [tmp_path]), (shards, folders)):
        again = save_again(one.path, tmp_path / "again.safetensors", None, places, replace=True)
        assert again.path.read_bytes() == one.path.read_bytes()
    with pytest.raises(FileError, match=r"its source unet is missing: .* is another one by now"):
        save_again(shards.path, tmp_path / "again.safetensors", None, folders[:1], replace=True)


def test_the_parameters_of_a_folder(tmp_path, parts):
    """A file in fp16 beside the full one is another form of the same tensors."""
    folder = save_folder(tmp_path / "model", parts)
    parts["unet"].half().save_pretrained(folder / "unet", variant="fp16")
    parts["unet"].float()
    files = ModelFiles(folder)
    assert {one.info.dtype for one in files.stored.values()} == {torch.float32}
    assert set(files.components) == {"unet", "text_encoder"}


def test_the_command_line(tmp_path, capsys):
    weight = torch.randn(48, 24)
    base = save(tmp_path / "base.safetensors", {NAME: weight})
    style = save(tmp_path / "style.safetensors", pair("lora_unet_blocks_0_proj", (48, 24), 4, size=0.3))
    tuned, out = tmp_path / "tuned.safetensors", tmp_path / "out.safetensors"
    assert main(["bake", str(tuned), str(base), str(style)]) == 0
    capsys.readouterr()
    assert main(["extract", str(out), str(base), str(tuned), "--rank", "4", "--dtype", "float16"]) == 0
    assert "1 layers of rank 4 to 4, error " in capsys.readouterr().out
    assert load_file(out)["lora_unet_blocks_0_proj.lora_down.weight"].dtype is torch.float16
    assert main(["extract", str(out), str(base), str(tuned)]) == 1
    assert "there is a file of that name" in capsys.readouterr().err
    again = tmp_path / "again.safetensors"
    assert main(["extract", str(again), str(base), str(tuned), "--again", str(out)]) == 0
    assert again.read_bytes() == out.read_bytes()
    assert main(["bake", str(again), str(base), str(tmp_path), "--again", str(tuned), "--replace"]) == 0
    assert again.read_bytes() == tuned.read_bytes()
    assert main(["bake", str(again), str(base), "--replace"]) == 1
    assert "there is nothing to save" in capsys.readouterr().err
