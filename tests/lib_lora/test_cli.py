"""`python -m lib_lora inspect`, with and without a model on disk."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from lib_lora.__main__ import main
from lib_lora.skeleton import model_skeleton
from tests.fakes.files import pair, save
from tests.fakes.models import kohya_lora, tiny_text_encoder, tiny_unet


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A diffusers folder on disk."""
    folder = tmp_path_factory.mktemp("model")
    tiny_unet(0).save_pretrained(folder / "unet")
    tiny_text_encoder(0).save_pretrained(folder / "text_encoder")
    return folder


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    modules = {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}
    return kohya_lora(tmp_path_factory.mktemp("lora") / "style.safetensors", modules, rank=4, conv=True)


def test_text_without_a_model(lora, capsys):
    assert main(["inspect", str(lora)]) == 0
    out = capsys.readouterr().out
    for line in ("format        kohya", "architecture  sd1", "kinds         lora x", "rank          4"):
        assert line in out


def test_json_against_a_model(lora, model, capsys):
    assert main(["inspect", str(lora), "--model", str(model), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["hit"] == data["layers"] > 90
    assert data["unused"] == {}


def test_against_a_single_checkpoint(tmp_path, capsys):
    checkpoint = {
        "model.diffusion_model.time_embed.0.weight": torch.zeros(8, 4),
        "cond_stage_model.model.transformer.resblocks.0.attn.in_proj_weight": torch.zeros(12, 4),
        "cond_stage_model.model.transformer.resblocks.0.attn.out_proj.weight": torch.zeros(4, 4),
        "first_stage_model.decoder.conv_in.weight": torch.zeros(4, 4, 3, 3),
    }
    save(tmp_path / "model.safetensors", checkpoint)
    tensors = pair("lora_unet_time_embedding_linear_1", (8, 4), 2)
    tensors |= pair("lora_te_text_model_encoder_layers_0_self_attn_v_proj", (4, 4), 2)
    path = save(tmp_path / "a.safetensors", tensors)
    assert main(["inspect", str(path), "--model", str(tmp_path / "model.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hit"] == 2
    assert set(model_skeleton(tmp_path / "model.safetensors")) == {"unet", "text_encoder"}


def test_unused_keys_are_shown_with_their_reason(tmp_path, model, capsys):
    path = save(
        tmp_path / "a.safetensors", pair("lora_unet_nowhere", (8, 8), 2) | pair("lora_unet_conv_in", (9, 4, 3, 3), 2)
    )
    assert main(["inspect", str(path), "--model", str(model)]) == 0
    out = capsys.readouterr().out
    assert "layers        0 hit of 2" in out
    assert "  2 no module of that name in unet:\n    lora_unet_nowhere" in out
    assert "  2 of another shape:\n    lora_unet_conv_in" in out
    assert "(unet.conv_in: want up (32, r), got (9, 2, 1, 1))" in out
    assert "rank          2" in out


def test_what_cannot_be_read_is_one_line_on_stderr(tmp_path, lora, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, text in (
        ([str(tmp_path / "none.safetensors")], "error: none.safetensors: cannot be read"),
        ([str(lora), "--model", str(tmp_path / "empty")], "no unet, transformer or text encoder"),
    ):
        assert main(["inspect", *arguments]) == 1
        printed = capsys.readouterr()
        assert text in printed.err
        assert printed.out == ""


def test_as_a_program(lora):
    done = subprocess.run([sys.executable, "-m", "lib_lora", "inspect", str(lora)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "kohya" in done.stdout
