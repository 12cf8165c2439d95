"""Other packages add plug-ins of each kind, by `register` and by entry points, without a change to the library."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lib_lora import ActivationError, Engine, Entry, Stack, plugins, register, uninstall, unregister
from lib_lora.adapters import recipe_of
from lib_lora.adapters.base import Adapter
from lib_lora.adapters.bias import Bias
from lib_lora.errors import RegistryError
from lib_lora.naming.architectures.base import known_architectures
from lib_lora.placement import schemes
from lib_lora.weights.readers.base import read_base_weight
from tests.fakes.keys import parse_key
from tests.test_contributing import outside

MODULES = {"adapters/coral": "Coral", "formats/tide": "TIDE", "architectures/reef": "REEF"}
MODULES |= {"readers/int8_rows": "Int8Rows", "schemes/manual_cast": "ManualCast"}
EXAMPLES = {"_".join(("outside", *place.split("/"))): name for place, name in MODULES.items()}
"""A module of another package, made of an example of CONTRIBUTING.md -> the plug-in in it."""


def write(folder: Path) -> None:
    for name, text in outside().items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Import the examples as modules outside of the library."""
    write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = {name: importlib.import_module(name) for name in EXAMPLES}
    yield found
    unregister(*(getattr(module, EXAMPLES[name]) for name, module in found.items()))
    for name in found:
        del sys.modules[name]
    uninstall()


def has_each() -> list[bool]:
    """Return which of the five examples the library knows, by what it does."""
    layer = nn.Linear(2, 3)
    layer.weight = nn.Parameter(torch.ones(3, 2, dtype=torch.int8), requires_grad=False)
    layer.register_buffer("weight_scale", torch.tensor([1.0, 0.5, 2.0]))
    resting = nn.Linear(2, 3)
    resting.parameters_manual_cast = True
    recipe = recipe_of({"coral_A": (2, 4), "coral_B": (3, 2)})
    try:
        read = read_base_weight(layer, "weight").tolist()[1] == [0.5, 0.5]
    except Exception:  # noqa: BLE001  # unknown quantization
        read = False
    return [
        recipe is not None and recipe.name == "coral",
        parse_key("tide.blocks.0.attn.qkv_low")[0] == "tide",
        "reef" in {one.name for one in known_architectures()},
        read,
        not schemes.stays(resting),
    ]


def test_a_module_outside_registers_each_kind(modules: dict[str, ModuleType]) -> None:
    assert has_each() == [False] * 5
    own = [getattr(module, EXAMPLES[name]) for name, module in modules.items()]
    register(*own)
    register(*own)  # again changes nothing
    assert has_each() == [True] * 5
    unregister(*own)
    assert has_each() == [False] * 5


def test_a_file_that_nobody_read_is_read_after_registration(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    """The early use of a list of plug-ins, and of the file, freezes nothing."""
    file = tmp_path / "a.safetensors"
    down, up = torch.ones(2, 4), torch.ones(4, 2)
    tensors = {"coral_A": down, "coral_B": up, "alpha": torch.tensor(2.0)}
    save_file({f"lora_unet_layer.{name}": tensor for name, tensor in tensors.items()}, str(file))
    model = nn.ModuleDict({"layer": nn.Linear(4, 4, bias=False)})
    engine, x = Engine({"unet": model}), torch.ones(1, 4)
    before = model["layer"](x)
    with pytest.raises(ActivationError):
        engine.activate(Stack([Entry(file)]))
    register(modules["outside_adapters_coral"].Coral)
    engine.activate(Stack([Entry(file)]))
    assert (model["layer"](x) - before * 3).abs().max() < 1e-6
    engine.deactivate()
    assert torch.equal(model["layer"](x), before)


DISTRIBUTION = """
import sys, warnings
warnings.simplefilter("error")
from lib_lora.naming.architectures.base import known_architectures
assert "lib_lora.plugins" not in sys.modules, "as in a host that registers nothing"
assert "reef" in {one.name for one in known_architectures()}
from tests.lib_lora.test_plugins import has_each
assert has_each() == [True] * 5, has_each()
"""


def test_an_installed_distribution_needs_no_call(tmp_path: Path) -> None:
    """Entry points name a plug-in, or a module of plug-ins; a broken one costs itself alone."""
    write(tmp_path)
    info = tmp_path / "reefs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reefs\nVersion: 1.0\n")
    points = [f"{name} = {name}{f':{plugin}' if plugin.isupper() else ''}" for name, plugin in EXAMPLES.items()]
    broken = ["absent = no_such_module", "none = json", "wrong = json:loads"]
    (info / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *broken, *points]))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {DISTRIBUTION}"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for text in (
        "absent (no_such_module)",
        "none (json) is not loaded: the module has no plug-in",
        "wrong (json:loads)",
    ):
        assert text in done.stderr


def test_mistakes_are_named_and_change_nothing(modules: dict[str, ModuleType]) -> None:
    tide = modules["outside_formats_tide"].TIDE
    with pytest.raises(RegistryError, match="is not a plug-in: want a subclass or an instance of Adapter"):
        register("tide")  # type: ignore[arg-type]
    with pytest.raises(RegistryError, match="lacks delta_weight, from_params"):
        register(type("Half", (Adapter,), {"name": "half"}))
    register(tide)
    late = plugins.KeyFormat(name="late", patterns=(), example="", before=("ghost",))
    for wrong, text in (
        (plugins.KeyFormat("tide", (), ""), "two plug-ins are named 'tide'"),
        (late, "unknown 'ghost'"),
    ):
        with pytest.raises(RegistryError, match=text):
            register(wrong)
    around = type("Around", (Bias,), {"name": "around", "before": ("lora",)})
    with pytest.raises(RegistryError, match="'around' wants to be before unknown 'lora'"):
        register(around)  # modifiers are in an order of their own
    first = plugins.KeyFormat("first", (), "", before=("tide",))
    register(first)
    with pytest.raises(RegistryError, match="'first' wants to be before unknown 'tide'"):
        unregister(tide)
    assert has_each() == [False, True, False, False, False]
    unregister(first)


def test_a_plugin_imports_stable_names() -> None:
    assert {"Adapter", "Architecture", "KeyFormat", "Scheme", "WeightReader", "register"} <= set(plugins.__all__)
    assert all(hasattr(plugins, name) for name in plugins.__all__)
