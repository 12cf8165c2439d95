"""The worked examples of CONTRIBUTING.md: dropped into their folders they are found, and work, with no other change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

import install

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {
    match[1]: match[2]
    for match in re.finditer(
        r"```python\n# (\S+)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
    )
}
PLUGINS = {path: text for path, text in EXAMPLES.items() if not path.startswith("tests/")}
SAMPLES = {path: text for path, text in EXAMPLES.items() if path.startswith("tests/")}
PROGRAM = """
from pathlib import Path
import torch
from safetensors.torch import save_file
from torch import nn
from extension.hosts import current_host, known_hosts
from lib_lora import adapters, load_network
from lib_lora.adapters.base import Adapter, At, Origin, Site
from lib_lora.files import formats
from lib_lora.naming.architectures.base import Architecture, fact, ranked
from lib_lora.weights.readers.base import WeightReader
from lib_lora.files.formats.base import KeyFormat
from lib_lora.adapters.base import Alpha
from lib_lora.naming import architectures
from lib_lora.naming.index import LayerIndex
from lib_lora.files.formats.base import parse_keys
from lib_lora.adapters import recipe_of
from lib_lora.naming.parsed import key_formats
from lib_lora.registry import discover, discover_classes
from lib_lora.placement import schemes
from lib_lora.placement.schemes.base import Scheme
from lib_lora.weights import readers
from lib_lora.weights.readers.base import read_base_weight

coral = next(kind for kind in discover_classes(adapters, Adapter) if kind.name == "coral")
params = {"coral_A": torch.randn(2, 4), "coral_B": torch.randn(3, 2)}
assert recipe_of({name: tuple(value.shape) for name, value in params.items()}).name == "coral"
weight = torch.randn(3, 4)
made = coral.from_params(params, Site((3, 4)), Origin(Alpha(1.0)))
delta = made.delta_weight(At(torch.device("cpu"), torch.float32, 0.5, weight=weight))
assert (delta - 0.25 * weight * (params["coral_B"] @ params["coral_A"])).abs().max() < 1e-6
assert made.nbytes == 56
for side in ("A", "B"):  # as PEFT saves it, with and without the adapter's name
    for key in (f"base_model.model.a.coral_{side}", f"transformer.a.coral_{side}.default"):
        name, parsed = parse_keys(key_formats().values(), [key], {})[0]
        assert (name, parsed.module, parsed.param) == ("peft", "a", f"coral_{side}")
name, parsed = parse_keys(key_formats().values(), ["base_model.model.a.reef_gain.weight"], {})[0]
assert (name, parsed.module, parsed.param) == ("peft", "a", "reef_gain.weight")

tide = discover(formats, KeyFormat)["tide"]
parsed = parse_keys([tide], [tide.example], {})[0][1]
assert (parsed.component, parsed.module, parsed.param) == ("denoiser", "blocks.0.attn.qkv", "lora_down.weight")
low, high = torch.randn(4, 2), torch.randn(2, 3)
save_file({"tide.a_low": low, "tide.a_high": high}, "my_tide.safetensors")
Path("adapter_config.json").write_text('{"training": {"rank": 2, "scale": 3.0}}')
network = load_network("my_tide.safetensors", {"transformer": nn.ModuleDict({"a": nn.Linear(4, 3)})})
assert (network.delta_weight("transformer", "a") - 3.0 * (low @ high).T).abs().max() < 1e-5

known = discover(architectures, Architecture)
assert ranked(known.values(), [fact("transformer", "reef_blocks.0.attn.qkv", 3072)])[0][0] is known["reef"]
split = nn.Module()
for part in "qkv":
    split.add_module(f"to_{part}", nn.Linear(3072, 4, device="meta"))
model = nn.ModuleDict({"polyp_blocks": nn.ModuleList([nn.ModuleDict({"attn": split})])})
index = LayerIndex("transformer", model)
assert index.find("reef_blocks.0.attn.qkv").shape == (12, 3072)

assert "int8_rows" in {reader.name for reader in discover_classes(readers, WeightReader)}
layer = nn.Linear(2, 3)
layer.weight = nn.Parameter(torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int8), requires_grad=False)
layer.register_buffer("weight_scale", torch.tensor([1.0, 0.5, 2.0]))
assert read_base_weight(layer, "weight").tolist() == [[1.0, 2.0], [1.5, 2.0], [10.0, 12.0]]

assert "manual_cast" in {scheme.name for scheme in discover_classes(schemes, Scheme)}
layer.org_forward = layer.forward
assert list(schemes.captured(layer)) == [(layer, "org_forward")]
del layer.org_forward
assert schemes.stays(layer)
layer.parameters_manual_cast = True
assert not schemes.stays(layer)

assert "easel" in {host.name for host in known_hosts()}
assert current_host() is None
"""


def outside() -> dict[str, str]:
    """Return the examples of the library as modules of another package: their imports alone differ."""
    found = {}
    for path, text in PLUGINS.items():
        if path.startswith("lib_lora/"):
            name = "_".join(("outside", *Path(path).with_suffix("").parts[-2:]))
            found[name] = re.sub(r"^from \.\S* import", "from lib_lora.plugins import", text, flags=re.MULTILINE)
    return found


def folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths}


def test_every_kind_of_plugin_has_an_example() -> None:
    plugins = {"adapters", "files/formats", "naming/architectures", "weights/readers", "placement/schemes"}
    assert folders(PLUGINS) == {"extension/hosts", *(f"lib_lora/{folder}" for folder in plugins)}


def test_every_folder_of_samples_has_an_example() -> None:
    assert folders(SAMPLES) == {"tests/fakes/kinds", "tests/fakes/quantized", "tests/families"}


def copy_with_examples(folder: Path, parts: Iterable[str]) -> None:
    """Copy parts of the project into a folder, and add the examples that belong there."""
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder)
    for path, text in EXAMPLES.items():
        if (folder / path).parent.is_dir():
            (folder / path).write_text(text, encoding="utf-8")


def test_examples_are_found_and_work(tmp_path: Path) -> None:
    copy_with_examples(tmp_path, ("lib_lora", "extension"))
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_examples_keep_the_import_contracts(tmp_path: Path) -> None:
    copy_with_examples(tmp_path, ("lib_lora", "extension", "training", "pyproject.toml"))
    done = subprocess.run([sys.executable, "-c", install.IMPORTS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


PROJECT = ("lib_lora", "extension", "training", "scripts", "tests", "install.py", "pyproject.toml", "CONTRIBUTING.md")
TESTS = {
    "tests/test_contributing.py": "examples and not no_other_change",
    "tests/extension/hosts/test_hosts.py": "contract",
    "tests/lib_lora/test_registry.py": "shipped or asked",
    "tests/lib_lora/test_formats.py": "example or other_keys",
    "tests/lib_lora/test_signs.py": "reef or metadata or one_layer or architecture",
    "tests/lib_lora/test_families.py": "reef",
    "tests/lib_lora/test_base_weights.py": "int8_rows or every_reader",
    "tests/lib_lora/test_kinds.py": "coral or every_kind",
    "tests/lib_lora/test_kinds_output.py": "coral",
    "tests/lib_lora/test_kinds_on_bases.py": "coral or int8_rows",
    "tests/lib_lora/test_fused.py": "coral",
}
"""Files with tests that enumerate plug-ins -> words of `-k` for those that an example may change."""
MET = {"coral": "test_kinds", "tide": "test_formats", "reef": "test_families", "int8_rows": "test_base_weights"}
"""An example -> a file with tests that must run on it."""


@pytest.mark.long  # `test_examples_are_found_and_work` tries each plug-in, and this one the tests of the samples
def test_the_tests_pass_with_the_examples_and_no_other_change(tmp_path: Path) -> None:
    copy_with_examples(tmp_path, PROJECT)
    words = " or ".join(f"({Path(file).stem} and ({some}))" for file, some in TESTS.items())
    command = [sys.executable, "-m", "pytest", *TESTS, "-k", words, "-q", "--junitxml=a.xml"]
    # without what this run was told by its environment
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYT")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    cases = list(ElementTree.parse(tmp_path / "a.xml").iter("testcase"))
    passed = {
        f"{case.get('classname')} {case.get('name')}"
        for case in cases
        if not {"skipped", "failure", "error"} & {one.tag for one in case}
    }
    for example, file in MET.items():
        assert any(example in one and f".{file} " in one for one in passed), example
