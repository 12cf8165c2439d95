"""Real files from real trainers: every key used or listed, and the deltas that an independent reading gave."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch

from lib_lora import PickleError, UnknownAdapterError, UnknownFormatError, load_network
from tests.fakes.families import models

SUPPORTED = {  # file name begins with: (component, layers, format)
    "catundchat+stable-diffusion-v1.5-lora__pytorch_lora_weights.safetensors": ("unet", 128, "diffusers"),
    "hansjohn819-commits+sd-lora-anime-style": ("text_encoder", 24, "peft"),
    "huggingface+diffusers__examples__text_to_image": ("unet", 128, "diffusers"),
}
REFUSED = {
    "KohakuBlueleaf+LyCORIS__result__smart_falcon_4": (UnknownAdapterError, "lokr_w1_a"),
    "KohakuBlueleaf+LyCORIS__result__smart_falcon_8": (UnknownAdapterError, "lokr_w1_a"),
    "catundchat+stable-diffusion-v1.5-lora__pytorch_lora_weights.bin": (PickleError, "convert it once"),
    "cloneofsimo+lora__example_loras__analog": (UnknownFormatError, "text_encoder:0:down"),
    "cloneofsimo+lora__example_loras__lora_disney": (UnknownFormatError, "text_encoder:0:down"),
    "cloneofsimo+lora__example_loras__lora_kiriko2": (PickleError, "convert it once"),
}


def the_file(folder: Path, start: str) -> Path:
    return next(path for path in folder.iterdir() if path.name.startswith(start))


def test_every_real_file_is_spoken_of(real_loras):
    names = [path.name for path in real_loras.iterdir() if path.suffix != ".tsv"]
    assert all(any(name.startswith(start) for start in (*SUPPORTED, *REFUSED)) for name in names)


@pytest.mark.parametrize("tree", ["diffusers", "ldm"])
@pytest.mark.parametrize("start", SUPPORTED)
def test_supported_files_resolve_wholly(real_loras, start, tree):
    component, layers, spelled = SUPPORTED[start]
    network = load_network(the_file(real_loras, start), models()["sd1", tree])
    report = network.report
    assert (report.hit, report.layers, report.unused) == (layers, layers, ())
    assert (report.format, report.architecture, dict(report.kinds)) == (spelled, "sd1", {"lora": layers})
    assert set(network.adapters) == {component}
    tensors = sum(1 for adapter in network.adapters[component].values() for _ in adapter.tensors())
    assert tensors == len(network.file.keys), "every key is used"


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
        component = next(iter(networks[row["file"]].adapters))
        path = re.sub(r"to_out$", "to_out.0", row["module"])
        delta = networks[row["file"]].delta_weight(component, path)
        assert delta.dtype == torch.float32
        assert list(delta.shape) == [int(size) for size in row["shape"].split("x")]
        place = tuple(int(index) for index in row["argmax_row,col(flattened)"].split(","))
        flat = delta.flatten(1).double()
        assert float(flat.norm()) == pytest.approx(float(row["frobenius"]), rel=1e-6)
        assert float(flat.sum()) == pytest.approx(float(row["sum"]), rel=1e-6)
        assert float(flat[place]) == pytest.approx(float(row["value_at_argmax"]), rel=1e-6)
        assert float(flat.abs().max()) == pytest.approx(abs(float(row["value_at_argmax"])), rel=1e-6)
    assert len(rows) == 12
