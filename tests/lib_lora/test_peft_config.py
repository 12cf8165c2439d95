"""What stands beside the tensors is found, and is that of the right component and module."""

from __future__ import annotations

import json

import pytest
import torch

from lib_lora import FileError
from lib_lora.adapters import configured_alpha
from lib_lora.adapters.base import Alpha
from lib_lora.files.file import AdapterFile
from lib_lora.files.formats import PeftConfig
from lib_lora.naming.parsed import key_formats
from tests.fakes.files import save

PEFT = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": True, "alpha_pattern": {"to_k": 4}}


def config(tmp_path, header: dict[str, object] | None = None, beside: object = None) -> PeftConfig:
    metadata = None if header is None else {key: json.dumps(value) for key, value in header.items()}
    if beside is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(beside))
    path = save(tmp_path / "adapter_model.safetensors", {"a.lora_A": torch.zeros(1)}, metadata)
    return PeftConfig.of(path, AdapterFile.open(path).metadata, (), [key_formats()["peft"]])


def test_values_of_one_component_have_no_prefix(tmp_path):
    packed = {f"unet.{key}": value for key, value in PEFT.items()} | {"text_encoder_2.r": 2}
    got = config(tmp_path, {"lora_adapter_metadata": packed})
    assert dict(got.values("unet")) == PEFT
    assert dict(got.values("text_encoder_2")) == {"r": 2}
    assert dict(got.values("text_encoder")) == dict(got.values(None)) == {}


@pytest.mark.parametrize("component", [None, "unet", "transformer"])
def test_one_configuration_is_every_components(tmp_path, component):
    assert dict(config(tmp_path, beside=PEFT).values(component)) == PEFT


def test_values_of_a_module_are_its_own(tmp_path):
    pattern = {"alpha_pattern": {"to_k": 4, r"mid\..*": 5}, "rank_pattern": {"attn.to_k": 2}}
    got = config(tmp_path, beside={"alpha": 16, "r": 8, **pattern})
    want = {"blocks.attn.to_k": (4, 2), "mid.proj": (5, 8), "blocks.to_kv": (16, 8)}
    assert {module: (got.values(None, module)["alpha"], got.values(None, module)["r"]) for module in want} == want
    assert got.values(None)["r"] == 8


def test_alpha_is_called_alpha_in_lohas_configuration(tmp_path):
    got = config(tmp_path, beside={"peft_type": "LOHA", "alpha": 3, "alpha_pattern": {"a": 2}})
    assert (configured_alpha(got.values(None, "b")), configured_alpha(got.values(None, "x.a"))) == (
        Alpha(3.0),
        Alpha(2.0),
    )


def test_stabilized_rank_is_told(tmp_path):
    assert configured_alpha(config(tmp_path, beside=PEFT).values(None, "x.to_k")) == Alpha(4.0, rank_stabilized=True)


def test_arguments_of_lycoris_from_simpletuners_header(tmp_path):
    arguments = {"algo": "dylora", "linear_dim": 8, "linear_alpha": 4, "block_size": 2}
    got = config(tmp_path, {"lycoris_config": arguments}, beside=PEFT)
    assert dict(got.values("transformer")) == arguments
    assert configured_alpha(got.values("transformer", "a")) == Alpha()


def test_settings_of_onetrainer_that_say_what_tensors_mean(tmp_path):
    settings = {"lora_alpha": 1.0, "lora_rank": 16, "oft_block_size": 32, "oft_block_share": True, "peft_type": "OFT_2"}
    got = config(tmp_path, {"ot_config": settings})
    assert dict(got.values("unet")) == {"oft_block_size": 32, "block_share": True}
    assert configured_alpha(got.values("unet", "a")) == Alpha()


def test_no_configuration_says_nothing(tmp_path):
    got = config(tmp_path)
    assert dict(got.values("unet")) == dict(got.values(None, "a")) == {}
    assert configured_alpha(got.values("unet", "a")) == Alpha()


def test_values_cannot_be_changed(tmp_path):
    with pytest.raises(TypeError):
        config(tmp_path, beside=PEFT).values(None)["r"] = 4


@pytest.mark.parametrize("key", ["lora_adapter_metadata", "lycoris_config", "ot_config"])
@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000], ids=["half", "list", "deep"])
def test_an_unreadable_header_is_told(tmp_path, key, text):
    with pytest.raises(FileError, match=rf"a\.safetensors: metadata {key} is not a JSON object"):
        PeftConfig.of(tmp_path / "a.safetensors", {key: text}, (), ())
