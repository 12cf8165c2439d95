"""Differences of quantized models: what the packers of users make is read right, and its rounding is no difference."""

from __future__ import annotations

import json
import sys

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lib_lora import Entry, FileError, Stack, bake_stack, extract_lora
from lib_lora.saving.model_files import ModelFiles
from tests.fakes.contract import worst
from tests.fakes.files import pair, save

pytest.importorskip("bitsandbytes")
from tests.fakes import packed  # which imports it

FIRST, SECOND = "blocks.0.proj.weight", "blocks.1.proj.weight"
SHAPE, RANK = (160, 128), 4
NAMES = [*packed.FORMATS, *packed.GGUF_TYPES]


def weights(dtype=torch.float32):
    """Return weights whose rows and columns are of unlike sizes."""
    generator = torch.Generator().manual_seed(0)
    sizes = [torch.rand(*one, generator=generator) + 0.1 for one in ((SHAPE[0], 1), (1, SHAPE[1]))]
    numbers = torch.randn(2, *SHAPE, generator=generator) * sizes[0] * sizes[1]
    return {FIRST: numbers[0].to(dtype), SECOND: numbers[1].to(dtype)}


def change():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SHAPE[0], RANK, generator=generator) @ torch.randn(RANK, SHAPE[1], generator=generator) * 0.05


def difference(path):
    return load_file(path)["lora_unet_blocks_0_proj.diff"].double()


def test_numbers_are_read_right_whichever_rows(tmp_path):
    for name in NAMES:
        path, meant = packed.save_packed(tmp_path / name, weights(), name)
        model = ModelFiles(path)
        assert {key for _, key in model.stored} == {FIRST, SECOND}, "the other tensors are no parameters"
        found = model.packings["transformer", FIRST]
        assert found.shape == SHAPE
        for start, stop in ((0, SHAPE[0]), (0, 1), (7, 12), (127, 131), (SHAPE[0] - 1, SHAPE[0])):
            got = found.rows(start, stop).numbers()
            assert worst(got, meant[FIRST][start:stop]) < 1e-6, name


def test_a_quantized_copy_does_not_differ(tmp_path):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        own = weights(dtype)
        base = save(tmp_path / "base.safetensors", own)
        for name in NAMES:
            copy, meant = packed.save_packed(tmp_path / name, own, name)
            decoded = save(tmp_path / "decoded.safetensors", {key: one.to(dtype) for key, one in meant.items()})
            for first, second in ((base, copy), (copy, base), (copy, decoded), (decoded, copy), (copy, copy)):
                with pytest.raises(FileError, match="it does not differ from"):
                    extract_lora(first, second, tmp_path / "out.safetensors")


def test_what_was_trained_is_found_in_a_quantized_model(tmp_path):
    """Whole, with the rounding; by the rank of the change, without most of it."""
    own, delta = weights(), change()
    base = save(tmp_path / "base.safetensors", own)
    for name in NAMES:
        tuned, meant = packed.save_packed(tmp_path / name, own | {FIRST: own[FIRST] + delta}, name)
        saved = extract_lora(base, tuned, tmp_path / "out.safetensors", replace=True)
        assert [layer.name for layer in saved.layers] == ["blocks.0.proj"], name
        noise = meant[FIRST] - own[FIRST].double() - delta.double()
        share = float(noise.norm() / (noise + delta.double()).norm())
        rounded, *loud = saved.notes
        assert rounded == "layers that differ by rounding alone are left out: transformer.blocks.1.proj"
        told = [int(one.split("about ")[1].split("%")[0]) / 100 for one in loud]
        assert (told or [0.05]) == pytest.approx([share], abs=0.08), name
        assert worst(difference(saved.path), meant[FIRST] - own[FIRST].double()) < 1e-6
        for rank in (RANK, 8 * RANK):
            saved = extract_lora(base, tuned, tmp_path / "out.safetensors", replace=True, rank=rank)
            assert 0 < saved.layers[0].rank <= RANK, f"{name}: what is left is rounding"
            found = load_file(saved.path)
            up, down = (found[f"lora_unet_blocks_0_proj.lora_{one}.weight"].double() for one in ("up", "down"))
            missed = float((up @ down - delta.double()).norm())
            assert missed <= 2 * (2 * RANK) ** 0.5 * float(torch.linalg.matrix_norm(noise, 2)), name
            assert missed < 0.6 * float(noise.norm())


def test_what_was_trained_from_a_quantized_base_is_found(tmp_path):
    delta = change().double()
    for name in NAMES:
        base, meant = packed.save_packed(tmp_path / name, weights(), name)
        for dtype, half in ((torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8)):
            tuned = {key: one.to(dtype) for key, one in (meant | {FIRST: meant[FIRST] + delta}).items()}
            tuned = save(tmp_path / "tuned.safetensors", tuned)
            saved = extract_lora(base, tuned, tmp_path / "out.safetensors", replace=True)
            assert [layer.name for layer in saved.layers] == ["blocks.0.proj"], name
            missed = (difference(saved.path) - delta).abs()
            assert (missed <= half * (meant[FIRST] + delta).abs() + 2.0**-23 * (delta.abs() + 1)).all()


def test_a_change_below_the_rounding_is_not_written_with_a_rank(tmp_path):
    """Whole, it is: the numbers differ by more than rounding makes, and nothing tells what of it was trained."""
    own, delta = weights(), change() * 0.02
    base = save(tmp_path / "base.safetensors", own)
    tuned, meant = packed.save_packed(tmp_path / "tuned", own | {FIRST: own[FIRST] + delta}, "nf4")
    for limit in ({"rank": RANK}, {"size": 100_000}):
        with pytest.raises(FileError, match="may be the rounding of quantized weights; give finer models, or no rank"):
            extract_lora(base, tuned, tmp_path / "out.safetensors", **limit)
    saved = extract_lora(base, tuned, tmp_path / "out.safetensors")
    assert worst(difference(saved.path), meant[FIRST] - own[FIRST].double()) < 1e-6
    assert "rounding makes about 100% of the differences" in saved.notes[1]


def test_a_change_of_a_few_numbers_is_found(tmp_path):
    own = weights()
    base, few = save(tmp_path / "base.safetensors", own), own[FIRST].clone()
    few[3:5, 4:6] += 3 * few[3:5].abs().max()
    for name in NAMES:
        tuned, _ = packed.save_packed(tmp_path / name, own | {FIRST: few}, name)
        saved = extract_lora(base, tuned, tmp_path / "out.safetensors", replace=True)
        assert [layer.name for layer in saved.layers] == ["blocks.0.proj"], name


def test_the_k_types_of_gguf(tmp_path):
    for name in packed.K_TYPES:
        kind, shape = gguf.GGMLQuantizationType[name], (48, 512)
        codes, rounded = packed.random_k(shape, name)
        other, also = packed.random_k(shape, name, seed=1)
        meant = packed.decoded(codes, kind)
        tuned = packed.write_gguf(tmp_path / f"{name}.gguf", {FIRST: codes, SECOND: other}, kind)
        found = ModelFiles(tuned).packings["transformer", FIRST]
        for start, stop in ((0, 48), (5, 6), (40, 48)):
            assert torch.equal(found.rows(start, stop).numbers(), meant[start:stop])
        base = save(tmp_path / "base.safetensors", {FIRST: rounded.float(), SECOND: also.float()})
        for first, second in ((base, tuned), (tuned, base)):
            with pytest.raises(FileError, match=r"does not differ .* rounding alone are left out"):
                extract_lora(first, second, tmp_path / "none.safetensors")
        delta = torch.randn(48, 2).double() @ torch.randn(2, 512).double() * 0.05
        base = save(tmp_path / "base.safetensors", {FIRST: (rounded - delta).float(), SECOND: also.float()})
        saved = extract_lora(base, tuned, tmp_path / "out.safetensors", replace=True)
        assert [layer.name for layer in saved.layers] == ["blocks.0.proj"], name
        assert worst(difference(saved.path), meant - (rounded - delta).float().double()) < 1e-6


def test_folded_weights_and_plain_ones_in_gguf(tmp_path):
    """ComfyUI-GGUF folds convolutions into rows of 256 numbers, and says their shapes."""
    conv = torch.randn(32, 16, 3, 3)
    codes = gguf.quantize(conv.reshape(-1, 256).numpy(), gguf.GGMLQuantizationType.Q8_0)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = packed.write_gguf(tmp_path / "tuned.gguf", {FIRST: codes}, kind, {FIRST: tuple(conv.shape)})
    meant = packed.decoded(codes, kind).reshape(conv.shape)
    base = save(tmp_path / "base.safetensors", {FIRST: conv})
    with pytest.raises(FileError, match="rounding alone"):
        extract_lora(base, path, tmp_path / "out.safetensors")
    base = save(tmp_path / "base.safetensors", {FIRST: conv + 1})
    saved = extract_lora(base, path, tmp_path / "out.safetensors")
    assert worst(difference(saved.path), meant - (conv + 1).double()) < 1e-6
    for kind, dtype in (("F16", np.float16), ("F32", np.float32)):
        kind = gguf.GGMLQuantizationType[kind]
        plain = packed.write_gguf(tmp_path / "plain.gguf", {FIRST: conv.numpy().astype(dtype)}, kind)
        with pytest.raises(FileError, match="does not differ"):
            extract_lora(save(tmp_path / "base.safetensors", {FIRST: conv}), plain, tmp_path / "new.safetensors")


def test_what_is_packed_otherwise_is_refused(tmp_path):
    base = save(tmp_path / "base.safetensors", weights())
    parts = {f"{FIRST}{one}": tensor for one, tensor in packed.four_bits(weights()[FIRST], nested=True)[0].items()}
    state = next(key for key in parts if "quant_state" in key)
    said = json.loads(bytes(parts[state].tolist()))
    int8, _ = packed.save_packed(tmp_path / "int8", {FIRST: weights()[FIRST]}, "int8")
    comfy = load_file(int8)
    marker, layer = f"{FIRST.removesuffix('weight')}comfy_quant", FIRST.removesuffix("weight")
    four, eight = (load_file(packed.save_packed(tmp_path / one, weights(), one)[0]) for one in ("nvfp4", "mxfp8"))
    lacks = "its weights are quantized in a way that Remora cannot read"
    wrong = "do not fit to what its quant_state says; download it again"
    cases = (
        ({key: one for key, one in parts.items() if key != state}, lacks),
        (parts | {state: packed.text(said | {"shape": [3, 3]})}, wrong),
        (parts | {state: packed.text(said | {"blocksize": "many"})}, wrong),
        (parts | {state: packed.text(said | {"blocksize": 0})}, wrong),
        (parts | {state: packed.text(said | {"shape": []})}, wrong),
        (parts | {f"{FIRST}.absmax": parts[f"{FIRST}.absmax"].float()}, wrong),
        (parts | {state: torch.zeros(9, dtype=torch.uint8)}, wrong),
        ({key: one for key, one in parts.items() if "nested_absmax" not in key}, wrong),
        (comfy | {marker: packed.text({"format": "int8_tensorwise", "convrot": True})}, lacks),
        (comfy | {marker: packed.text({"format": "int8_blockwise"})}, lacks),
        (comfy | {marker: packed.text({})[:1]}, lacks),
        (comfy | {f"{layer}pre_quant_scale": torch.ones(SHAPE[1])}, lacks),
        ({FIRST: comfy[FIRST], f"{layer}SCB": torch.ones(3)}, lacks),
        (four | {f"{FIRST}_scale": four[f"{FIRST}_scale"].view(torch.uint8)}, lacks),
        (four | {f"{FIRST}_scale_2": torch.ones(2)}, lacks),
        (eight | {f"{FIRST}_scale": eight[f"{FIRST}_scale"][:128]}, lacks),
    )
    for tensors, text in cases:
        with pytest.raises(FileError, match=text):
            extract_lora(base, save(tmp_path / "tuned.safetensors", tensors), tmp_path / "out.safetensors")
    del comfy[marker]
    for layers, refused in (({}, True), ({layer.rstrip("."): {"format": "int8_tensorwise"}}, False)):
        header = {"_quantization_metadata": json.dumps({"layers": layers})}
        tuned = save(tmp_path / "tuned.safetensors", comfy, header)
        with pytest.raises(FileError, match=lacks if refused else "does not differ"):
            extract_lora(base, tuned, tmp_path / "out.safetensors")


def test_damaged_files_and_a_missing_package(tmp_path, monkeypatch):
    base = save(tmp_path / "base.safetensors", weights())
    whole, _ = packed.save_packed(tmp_path / "whole", weights(), "Q4_0")
    content, path = whole.read_bytes(), tmp_path / "cut.gguf"
    for length in (*range(0, 300, 7), len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(FileError, match="it is truncated"):
            ModelFiles(path)
    kind = gguf.GGMLQuantizationType.TQ1_0
    codes = gguf.quantize(torch.randn(8, 256).numpy(), kind)
    with pytest.raises(FileError, match="its weights are quantized in a way that Remora cannot read"):
        extract_lora(base, packed.write_gguf(path, {FIRST: codes}, kind), tmp_path / "out.safetensors")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(FileError, match="the package gguf is needed to read it; run `pip install gguf`"):
        extract_lora(base, whole, tmp_path / "out.safetensors")


def test_they_are_not_baked_into(tmp_path):
    style = save(tmp_path / "style.safetensors", pair("lora_unet_blocks_0_proj", SHAPE, 4))
    for name in NAMES:
        model, _ = packed.save_packed(tmp_path / name, weights(), name)
        with pytest.raises(FileError, match=r"quantized .* cannot be baked into; bake into the model in float16"):
            bake_stack(Stack([Entry(style)]), model, tmp_path / "baked.safetensors")
