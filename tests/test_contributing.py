"""The worked examples of CONTRIBUTING.md: dropped into their folders they are found, and work, with no other change."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layering import modules_of, sources, violations

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {
    match[1]: match[2]
    for match in re.finditer(
        r"```python\n# (\S+)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
    )
}
PROGRAM = """
import torch
from torch import nn
from extension.hosts import current_host, known_hosts
from lib_lora import adapters, architectures, base_weights, formats, residency
from lib_lora.adapters.base import Adapter, Alpha, At, Origin, Site
from lib_lora.architectures.base import Architecture, fact, recognise
from lib_lora.base_weights.base import WeightReader
from lib_lora.formats.base import KeyFormat
from lib_lora.layer import LayerIndex, read_base_weight
from lib_lora.places import AliasTable
from lib_lora.recipe import recipe_of
from lib_lora.registry import discover, discover_classes
from lib_lora.residency.base import Scheme

hira = next(kind for kind in discover_classes(adapters, Adapter) if kind.name == "hira")
params = {"hira_A": torch.randn(2, 4), "hira_B": torch.randn(3, 2)}
assert recipe_of({name: tuple(value.shape) for name, value in params.items()}).name == "hira"
weight = torch.randn(3, 4)
made = hira.from_params(params, Site((3, 4)), Origin(Alpha(1.0)))
delta = made.delta_weight(At(torch.device("cpu"), torch.float32, 0.5, weight=weight))
assert (delta - 0.25 * weight * (params["hira_B"] @ params["hira_A"])).abs().max() < 1e-6
assert made.nbytes == 56

tide = discover(formats, KeyFormat)["tide"]
parsed = tide.parse(tide.example)
assert (parsed.component, parsed.module, parsed.param) == ("denoiser", "blocks.0.attn.qkv", "lora_down.weight")

known = discover(architectures, Architecture)
assert recognise(known.values(), [fact("transformer", "polyps.0.attn.qkv", 3072)]) is known["reef"]
split = nn.Module()
for part in "qkv":
    split.add_module(f"to_{part}", nn.Linear(4, 4))
model = nn.ModuleDict({"polyp_blocks": nn.ModuleList([nn.ModuleDict({"attn": split})])})
index = LayerIndex("transformer", model, AliasTable(known["reef"].aliases))
assert index.find("polyps.0.attn.qkv").shape == (12, 4)

assert "int8_rows" in {reader.name for reader in discover_classes(base_weights, WeightReader)}
layer = nn.Linear(2, 3)
layer.weight = nn.Parameter(torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int8), requires_grad=False)
layer.register_buffer("weight_scale", torch.tensor([1.0, 0.5, 2.0]))
assert read_base_weight(layer, "weight").tolist() == [[1.0, 2.0], [1.5, 2.0], [10.0, 12.0]]

assert "manual_cast" in {scheme.name for scheme in discover_classes(residency, Scheme)}
assert residency.stays(layer)
layer.parameters_manual_cast = True
assert not residency.stays(layer)

assert "easel" in {host.name for host in known_hosts()}
assert current_host() is None
"""


def test_every_kind_of_plugin_has_an_example() -> None:
    folders = {path.rpartition("/")[0] for path in EXAMPLES}
    plugins = {"adapters", "formats", "architectures", "base_weights", "residency"}
    assert folders == {"extension/hosts", *(f"lib_lora/{folder}" for folder in plugins)}


@pytest.mark.parametrize("path", EXAMPLES)
def test_example_keeps_the_layers(path: str) -> None:
    assert violations(path, EXAMPLES[path], modules_of(sources())) == []


def test_examples_are_found_and_work(tmp_path: Path) -> None:
    for package in ("lib_lora", "extension"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in EXAMPLES.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
