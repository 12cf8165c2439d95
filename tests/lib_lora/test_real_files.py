"""Real files from real trainers: every key used or listed, and the deltas that an independent reading gave."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch

from lib_lora import PickleError, load_network
from lib_lora.naming.index import LayerIndex
from lib_lora.naming.network import Network
from tests.fakes.families import models
from tests.fakes.files import adapters_of

SUPPORTED = {  # file name begins with: (layers by component, format, kind)
    "KohakuBlueleaf+LyCORIS__result__smart_falcon_4": ({"unet": 278, "text_encoder": 72}, "kohya", "lokr"),
    "KohakuBlueleaf+LyCORIS__result__smart_falcon_8": ({"unet": 278, "text_encoder": 72}, "kohya", "lokr"),
    "catundchat+stable-diffusion-v1.5-lora__pytorch_lora_weights.safetensors": ({"unet": 128}, "diffusers", "lora"),
    "cloneofsimo+lora__example_loras__analog": ({"unet": 144, "text_encoder": 48}, "cloneofsimo", "lora"),
    "cloneofsimo+lora__example_loras__lora_disney": ({"unet": 144, "text_encoder": 48}, "cloneofsimo", "lora"),
    "hansjohn819-commits+sd-lora-anime-style": ({"text_encoder": 24}, "peft", "lora"),
    "huggingface+diffusers__examples__text_to_image": ({"unet": 128}, "diffusers", "lora"),
}
REFUSED = {
    "catundchat+stable-diffusion-v1.5-lora__pytorch_lora_weights.bin": (PickleError, "convert it once"),
    "cloneofsimo+lora__example_loras__lora_kiriko2": (PickleError, "convert it once"),
}


EMBEDDINGS = {"cloneofsimo+lora__example_loras__lora_disney": {"<s1>", "<s2>"}}
_BLOCK, _LAYER = "down_blocks.0.attentions.0.transformer_blocks.0", "text_model.encoder.layers"
NUMBERED = {
    "unet:0": f"{_BLOCK}.attn1.to_q",
    "unet:4": f"{_BLOCK}.ff.net.0.proj",  # these were trained when diffusers had it between the attentions
    "unet:5": f"{_BLOCK}.attn2.to_q",
    "unet:6": f"{_BLOCK}.attn2.to_k",
    "unet:8": f"{_BLOCK}.attn2.to_out.0",
    "text_encoder:0": f"{_LAYER}.0.self_attn.k_proj",  # transformers makes it before q_proj
    "text_encoder:47": f"{_LAYER}.11.self_attn.out_proj",
}


def the_file(folder: Path, start: str) -> Path:
    return next(path for path in folder.iterdir() if path.name.startswith(start))


def test_every_real_file_is_accepted_or_refused_as_it_must_be(real_loras):
    with (real_loras / "index.tsv").open() as stream:
        roles = {row["file"]: row["role"] for row in csv.DictReader(stream, delimiter="\t")}
    assert roles.keys() == {path.name for path in real_loras.iterdir() if path.suffix != ".tsv"}
    for starts, role in ((SUPPORTED, "accept"), (REFUSED, "refuse-pickle")):
        assert {the_file(real_loras, start).name for start in starts} == {n for n in roles if roles[n] == role}


@pytest.mark.parametrize("tree", ["diffusers", "ldm"])
@pytest.mark.parametrize("start", SUPPORTED)
def test_supported_files_resolve_wholly(real_loras, start, tree):
    components, spelled, kind = SUPPORTED[start]
    layers = sum(components.values())
    network = load_network(the_file(real_loras, start), models()["sd1", tree])
    report = network.report
    assert (report.hit, report.layers, report.unused) == (layers, layers, ())
    assert (report.format, report.architecture, dict(report.kinds)) == (spelled, "sd1", {kind: layers})
    assert {component: len(adapters) for component, adapters in adapters_of(network).items()} == components
    tensors = sum(1 for one in network.bindings for _ in one.adapter.tensors())
    alphas = sum(1 for key in network.file.infos if key.endswith(".alpha"))
    assert network.embeddings.keys() == EMBEDDINGS.get(start, set())
    assert tensors + alphas + len(network.embeddings) == len(network.file.infos), "every key is used"


def test_embeddings_come_with_their_vectors(real_loras):
    network = load_network(the_file(real_loras, "cloneofsimo+lora__example_loras__lora_disney"), {})
    for name, parts in network.embeddings.items():
        assert parts.keys() == {"string_to_param.*"}
        assert torch.equal(parts["string_to_param.*"], network.file.tensor(name).view(1, 768))


@pytest.mark.parametrize("start", REFUSED)
def test_others_are_refused_with_the_keys_seen(real_loras, start):
    error, text = REFUSED[start]
    with pytest.raises(error, match=re.escape(text)):
        load_network(the_file(real_loras, start), models()["sd1", "diffusers"])


@pytest.mark.parametrize("tree", ["diffusers", "ldm"])
def test_deltas_are_the_expected_ones(real_loras, tree):
    """Frobenius norm, sum and largest entry to 1e-6 of the published values."""
    with (real_loras / "expected_deltas.tsv").open() as stream:
        rows = [row for row in csv.DictReader(stream, delimiter="\t") if row["file"].startswith(tuple(SUPPORTED))]
    networks = {row["file"]: load_network(real_loras / row["file"], models()["sd1", tree]) for row in rows}
    for row in rows:
        network = networks[row["file"]]
        delta = network.delta_weight(*_layer(network, row["module"]), torch.float64)
        assert delta.dtype == torch.float64
        shape = [int(size) for size in row["shape"].split("x")]
        assert list(delta.shape if len(shape) > 2 else delta.flatten(1).shape) == shape
        place = tuple(int(index) for index in row["argmax_row,col(flattened)"].split(","))
        flat = delta.flatten(1)
        assert float(flat.norm()) == pytest.approx(float(row["frobenius"]), rel=1e-6)
        assert float(flat.sum()) == pytest.approx(float(row["sum"]), rel=1e-6)
        assert float(flat[place]) == pytest.approx(float(row["value_at_argmax"]), rel=1e-6)
        assert float(flat.abs().max()) == pytest.approx(abs(float(row["value_at_argmax"])), rel=1e-6)
    assert len(rows) == 38


def _layer(network: Network, module: str) -> tuple[str, str]:
    """Component and path of a layer as the table spells it."""
    if module in NUMBERED:
        return module.partition(":")[0], NUMBERED[module]
    flat = re.fullmatch(r"lora_(te|unet)_(.+)", module)
    if flat is None:
        return next(iter(adapters_of(network))), re.sub(r"to_out$", "to_out.0", module)
    component = "unet" if flat[1] == "unet" else "text_encoder"
    index = LayerIndex(component, models()["sd1", "diffusers"][component])
    target = index.find(flat[2], flattened=True)
    assert target is not None
    return component, target.name
