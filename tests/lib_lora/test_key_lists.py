"""Key lists that users sent, and the command that makes a case of them."""

from __future__ import annotations

import json

import pytest
import torch

from lib_lora.__main__ import main
from tests import key_lists
from tests.fakes.files import pair, save

CASES = sorted(path.stem for path in key_lists.FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", CASES)
def test_what_became_of_a_list_that_was_sent(name):
    case = json.loads((key_lists.FOLDER / f"{name}.json").read_text())
    assert key_lists.becomes(key_lists.replay(case)) == case["becomes"]


def test_a_case_is_made_of_the_report_that_a_user_sends(tmp_path, monkeypatch):
    """It has the first and the last block, and comes to the same as the whole file does."""
    layers = [f"blocks.{i}.attn.{part}" for i in range(12) for part in ("q", "k")]
    save(tmp_path / "model.safetensors", {f"{layer}.weight": torch.zeros(8, 8) for layer in layers})
    tensors = {}
    for layer in [*layers, *[f"blocks.{i}.attn.z" for i in range(12)]]:
        tensors |= pair(f"lora_unet_{layer.replace('.', '_')}", (8, 8), 2)
    path = save(tmp_path / "a.safetensors", tensors)
    command = ["inspect", str(path), "--model", str(tmp_path / "model.safetensors")]
    assert main([*command, "--report", str(tmp_path / "report.json")]) == 0
    monkeypatch.setattr(key_lists, "FOLDER", tmp_path / "made")
    key_lists.main(str(tmp_path / "report.json"), "issue_1")
    case = json.loads((tmp_path / "made" / "issue_1.json").read_text())
    assert sorted(case["model"]["transformer"]) == sorted(f"blocks.{i}.attn.{part}" for i in (0, 11) for part in "qk")
    becomes = case["becomes"]
    assert (becomes["format"], becomes["layers"], becomes["hit"]) == ("kohya", 6, 4)
    assert becomes["unused"] == {"no module of that name in transformer": 4}
    assert key_lists.becomes(key_lists.replay(case)) == becomes
