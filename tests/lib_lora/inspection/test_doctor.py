"""`python -m lib_lora doctor`: one file, a stack, a set; as text and as JSON."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lib_lora.__main__ import main
from tests.fakes import spoiled
from tests.fakes.files import pair, save
from tests.lib_lora.inspection.test_files import LORAS, MODEL

FIRST, SECOND = (f"lora_unet_down_blocks_{i}_attentions_0_proj_in" for i in (0, 1))


BAR, CANCEL = (0x3B, 0x76, 0xC4), (0xF2, 0xA3, 0xA3)


def counted(picture: Path, colour: tuple[int, int, int]) -> list[int]:
    """Return how many pixels of each row have a colour."""
    with Image.open(picture) as made:
        pixels = numpy.asarray(made.convert("RGB"))
    return [int(one) for one in (pixels == colour).all(-1).sum(-1)]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["doctor", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_file_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = pair(FIRST, (12, 8), 2, alpha=2) | pair(SECOND, (12, 8), 2, alpha=2)
    tensors[f"{SECOND}.lora_up.weight"].zero_()
    spectral = torch.linalg.svdvals(spoiled.delta(tensors, FIRST))[0].item()
    said = {"ss_network_dim": "2", "ss_steps": "700", "ss_sd_model_name": "base"}
    out = run(capsys, save(tmp_path / "a_lcm_lora.safetensors", tensors, said))
    for line in (
        "kinds       lora x 2",
        "layers      2",
        "made from   base",
        "trained     rank 2, steps 700, distilled LCM, 2 to 8 steps, CFG scale 1 to 2",
        "energy      denoiser 100.0%",
        "scale       1",
        f"  IN01             100.0% {spectral:>8.4g} {'#' * 40}",
        "  IN04               0.0%        0 ",
        f"spectral    denoiser {spectral:.4g}",
        "verdict     layers that change nothing: 1 of 2 (down_blocks_1_attentions_0_proj_in). "
        "These layers were not trained.",
    ):
        assert line in out.split("\n")
    assert "together" not in out
    assert "alike" not in out


def test_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "a.png"
    tensors = pair(FIRST, (12, 8), 2, size=1.0) | pair(SECOND, (12, 8), 2, size=0.8)
    out = run(capsys, save(tmp_path / "絵 é.safetensors", tensors), "--png", picture)
    assert "verdict     nothing is wrong by these measures" in out
    whole, part = [line.count("#") for line in out.split("\n") if line.endswith("#")]
    rows = counted(picture, BAR)
    widths = [one for at, one in enumerate(rows) if one and not rows[at - 1]]
    assert widths[0] == 520, "of the block with the most energy"
    assert widths[1] / widths[0] == pytest.approx(part / whole, abs=0.05)


def test_a_file_stands_among_those_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"
    folder = tmp_path / "loras" / "more"
    folder.mkdir(parents=True)
    for file, (width, size) in {"a": (768, 1.0), "b": (768, 2.0), "c": (768, 3.0), "xl": (2048, 0.5)}.items():
        save(folder / f"{file}.safetensors", pair(name, (24, width), 4, size=size, alpha=4.0), {"ss_network_dim": "8"})
    (folder / "broken.safetensors").write_bytes(b"?")
    out = run(capsys, folder / "b.safetensors", "--library", tmp_path / "loras")
    assert "(higher than in 1 of 2 other files for this model)\n" in out
    assert "(sd-scripts). (higher than in 0 of 2 other files for this model, and the same in 2)" in out
    told = json.loads(run(capsys, folder / "xl.safetensors", "--library", tmp_path / "loras", "--json"))
    assert told["files"][0]["standings"]["norm"] == {"others": 0, "smaller": 0, "same": 0}
    assert main(["doctor", str(folder / "a.safetensors"), "--library", str(tmp_path / "none")]) == 1
    assert "--library takes a folder of LoRA files" in capsys.readouterr().err


def test_a_kind_that_depends_on_base_weights_asks_for_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    path = LORAS / "stars.safetensors"
    assert "unmeasured  18 x diag_oft: give --model" in run(capsys, path)
    out = run(capsys, path, "--model", MODEL)
    assert "unmeasured" not in out
    (file,) = json.loads(run(capsys, path, "--model", MODEL, "--json"))["files"]
    assert f", {file['relative_norm']:.1%} of the base weights'" in out
    assert file["components"]["text_encoder"]["relative_norm"] == pytest.approx(file["relative_norm"])
    assert f"of base     text_encoder {file['relative_norm']:.1%}\n" in out
    assert f"  text_encoder     100.0% {file['spectral_norm']:>8.4g} {file['relative_norm']:>8.1%} ###" in out


def test_layers_that_do_not_fit_the_model_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stripes = load_file(LORAS / "stripes.safetensors")
    some = {key: value for key, value in stripes.items() if "mid_block_attentions_0_transformer_blocks_0_attn" in key}
    path = save(tmp_path / "a.safetensors", some | pair("lora_unet_mid_block_nowhere", (12, 8), 2))
    lines = run(capsys, path, "--model", MODEL).split("\n")
    assert lines[0].startswith("WARNING: 1 of 9 layers is left out, such as lora_unet_mid_block_nowhere.")
    assert "layers      8 of 9 fit the model" in lines


def test_a_stack_and_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    night, stripes = (
        {key: value for key, value in load_file(LORAS / f"{name}.safetensors").items() if "down_blocks_2" in key}
        for name in ("night", "stripes")
    )
    files = {
        "night": night,
        "stripes": stripes,
        "weaker": spoiled.with_alpha(night, 0.5),
        "both": spoiled.merged([(0.5, night), (1.0, stripes)], 12),
    }
    paths = [save(tmp_path / f"{name}.safetensors", tensors) for name, tensors in files.items()]
    out = run(capsys, *paths[:3], "--strengths", 0.8, 1, 0.5)
    assert "together    night 0.8, stripes 1, weaker 0.5: norm " in out
    assert "pair        night + weaker: reinforce, cosine +1.000 to +1.000" in out
    assert "denoiser IN07: reinforce; cosine +1.000 (±0.00" in out
    assert "pair        night + stripes: " in out
    assert "alike       weaker is a multiple of night (cosine 1.0000, times 0.5)" in out
    assert "alone: each may undo the other" not in out
    rival = save(tmp_path / "rival.safetensors", spoiled.merged([(-0.3, night), (1.0, stripes)], 12))
    out = run(capsys, paths[0], rival)
    assert "pair        night + rival: cancel" in out
    assert "\n  use night or rival alone: each may undo the other" in out
    turned = run(capsys, paths[0], rival, "--strengths", 1, -1, "--norm", 5)
    assert "may undo" not in turned
    assert "pair        night + rival: reinforce, cosine +" in turned, "one is turned round"
    assert "the sum has the norm 5" in turned
    lost = run(capsys, paths[0], rival, "--strengths", 1, 0.1)
    assert "  rival: norm " in lost
    assert "  half of each file is left at night 0." in lost
    undone = save(tmp_path / "undone.safetensors", spoiled.merged([(-1.0, night)], 12))
    assert "no strengths leave half of each file: use fewer of them" in run(capsys, paths[0], undone)
    picture = tmp_path / "pairs.png"
    run(capsys, paths[0], paths[1], rival, "--png", picture)
    cells = 148 * 44 * 2
    assert 0.7 * cells < sum(counted(picture, CANCEL)) < cells, "letters cover a part of the two cells of a pair"
    data = json.loads(run(capsys, *paths, "--json"))
    assert [Path(one["file"]).stem for one in data["files"]] == list(files)
    stack = data["stack"]
    assert stack["strengths"] == [1.0] * 4
    assert stack["factor"] == pytest.approx(max(stack["alone"]) / stack["norm"])
    assert len(stack["left"]) == len(stack["alive"]) == 4
    assert {pair["relation"] for pair in data["stack"]["pairs"] if pair["files"] == [0, 2]} == {"reinforce"}
    assert [one["files"] for one in data["alike"]] == [[0, 2]]
    (merge,) = data["merged"]
    assert merge["file"] == 3
    assert set(merge["parents"]) in ({0, 1}, {2, 1})
    assert "merged      both is " in run(capsys, *paths)


def test_json_of_a_file_has_the_measures_of_each_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = pair(FIRST, (12, 8), 2, size=1.0, alpha=1)
    path, table = save(tmp_path / "a.safetensors", tensors), tmp_path / "layers.csv"
    (file,) = json.loads(run(capsys, path, "--json", "--csv", table))["files"]
    values = torch.linalg.svdvals(spoiled.delta(tensors, FIRST))[:2]
    (layer,) = file["layers"]
    assert layer["block"] == "IN01"
    assert layer["scale"] == 0.5
    assert layer["singular_values"] == pytest.approx(values.tolist(), rel=1e-5)
    assert layer["spectral_norm"] == pytest.approx(values[0].item(), rel=1e-5)
    assert layer["norm"] == pytest.approx(values.norm().item(), rel=1e-5)
    with table.open(encoding="utf-8", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["file"] == str(path)
    assert {name: row[name] for name in ("layer", "block", "relative_norm")} == {
        "layer": layer["layer"],
        "block": "IN01",
        "relative_norm": "",
    }
    assert float(row["norm"]) == layer["norm"]
    assert [float(one) for one in row["singular_values"].split()] == layer["singular_values"]
    assert file["verdicts"] == []
    assert list(file["kept"]) == ["1", "2"]


def test_files_without_a_common_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save(tmp_path / f"{i}.safetensors", pair(name, (12, 8), 2)) for i, name in enumerate((FIRST, SECOND))]
    out = run(capsys, *paths)
    assert "no two files change the same layer" in out
    assert "alike" in out


def test_what_cannot_be_done_is_one_line_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "a.safetensors", pair(FIRST, (12, 8), 2))
    whole = path.read_bytes()
    for option, ending in (("--csv", ".csv"), ("--png", ".png")):
        with pytest.raises(SystemExit, match="2"):
            main(["doctor", str(path), option, str(path)])
        assert f"the name of the file to write must end in {ending}: {path}" in capsys.readouterr().err
    assert path.read_bytes() == whole
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "lib_lora.inspection.drawing", raising=False)
    for arguments, text in (
        ([str(path), "--png", str(tmp_path / "a.png")], "error: --png needs the package Pillow. Install it with `pip"),
        ([str(path), "--csv", str(tmp_path / "none" / "a.csv")], "error: [Errno 2] No such file or directory"),
        ([str(tmp_path / "none.safetensors")], "error: none.safetensors: there is no such file or folder"),
        ([str(path), "--strengths", "1", "2"], "error: 2 strengths for 1 files"),
        ([str(path), str(path), "--strengths", "1", "nan"], "a strength must be a finite number"),
        ([str(path), "--norm", "-1"], "error: --norm must be a number from 0 up, not -1"),
        ([str(path), "--model", str(tmp_path)], "no unet, transformer or text encoder"),
    ):
        assert main(["doctor", *arguments]) == 1
        printed = capsys.readouterr()
        assert text in printed.err
        assert printed.out == ""
