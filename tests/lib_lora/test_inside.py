"""Anima's adapter, which files have inside the transformer: found there, and where a host has it beside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lib_lora import load_network
from lib_lora.files.components import candidates
from lib_lora.naming.index import LayerIndex
from tests.fakes.files import adapters_of, pair, save

WIDTH, NARROW, RANK = 16, 8, 2
LAYER = "blocks.0.self_attn.q_proj"
PREFIXES = {
    "lora_unet_llm_adapter_": "llm_adapter.",
    "lora_unet__llm_adapter_": "llm_adapter.",
    "lycoris_llm_adapter_": "llm_adapter.",
    "diffusion_model.llm_adapter.": "llm_adapter.",
    "transformer.llm_adapter.": "llm_adapter.",
    "net.llm_adapter.": "llm_adapter.",
    "llm_adapter.": "llm_adapter.",
    "text_conditioner.": "llm_adapter.",
}


def blocks(width: int) -> nn.Module:
    with torch.device("meta"):
        block = nn.ModuleDict({"self_attn": nn.ModuleDict({"q_proj": nn.Linear(width, width)})})
        return nn.ModuleDict({"blocks": nn.ModuleList([block])})


def models(tree: str) -> dict[str, nn.Module]:
    """Return the transformer with its adapter inside, or beside it under a program's name for it."""
    transformer, adapter = blocks(WIDTH), blocks(NARROW)
    if tree == "inside":
        transformer.add_module("llm_adapter", adapter)
        return {"transformer": transformer}
    return {tree: adapter, "transformer": transformer}  # the order of a host's components does not count


def spelled(prefix: str, layer: str) -> str:
    return prefix + (layer.replace(".", "_") if prefix.startswith(("lora_", "lycoris_")) else layer)


@pytest.mark.parametrize("tree", ["inside", "llm_adapter", "text_conditioner"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_adapters_keys_find_it(prefix, tree, tmp_path):
    tensors = pair(spelled(prefix, LAYER), (NARROW, NARROW), RANK)
    network = load_network(save(tmp_path / "file.safetensors", tensors), models(tree))
    assert network.report.unused == ()
    assert network.report.architecture == "anima"
    found = {(component, layer) for component, layers in adapters_of(network).items() for layer in layers}
    assert found == {("transformer", f"llm_adapter.{LAYER}") if tree == "inside" else (tree, LAYER)}


@pytest.mark.parametrize("tree", ["inside", "llm_adapter", "text_conditioner"])
def test_the_transformers_keys_stay_there(tree, tmp_path):
    """The adapter has layers of the same names."""
    tensors = pair(f"diffusion_model.{LAYER}", (WIDTH, WIDTH), RANK)
    network = load_network(save(tmp_path / "file.safetensors", tensors), models(tree))
    assert network.report.unused == ()
    assert list(adapters_of(network)) == ["transformer"]


def test_components_inside_another_are_asked_after_it():
    present = ["llm_adapter", "text_encoder", "transformer"]
    assert candidates("diffusion_model", present) == [("transformer",), ("llm_adapter",)]
    assert candidates("transformer", present) == [("transformer",), ("llm_adapter",)]
    assert candidates("text_encoder", present) == [("text_encoder",)]
    assert candidates("llm_adapter", present) == [("llm_adapter",)]


def test_what_stands_before_every_name_stands_there_once():
    """A prefix for all names of a component is not put before itself."""
    index = LayerIndex("llm_adapter", blocks(NARROW))
    assert index.find(f"llm_adapter.{LAYER}") == index.find(LAYER)
    assert index.find(f"llm_adapter.llm_adapter.{LAYER}") is None
    assert index.find(f"text_conditioner.llm_adapter.{LAYER}") is None
