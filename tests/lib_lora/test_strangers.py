"""Models that Remora does not know: files fit by the model's own names, and it is taken for no known family."""

from __future__ import annotations

import math
import zlib

import pytest
import torch
from torch import Tensor, nn

from lib_lora import ActivationError, Engine, Entry, Stack, model_family
from lib_lora.files.components import DENOISER, role
from lib_lora.naming.architectures.base import Alias, Architecture, known_architectures
from tests.covering import some_of
from tests.fakes.files import pair, save

WIDTH = 12
FAMILIES = {one.name: one for one in known_architectures()}


def tree(paths: dict[str, tuple[int, int]]) -> nn.Module:
    """Make a model with linear layers at these paths: outputs, inputs."""
    torch.manual_seed(0)
    root = nn.Module()
    for path, (outputs, inputs) in paths.items():
        parent = root
        *above, last = path.split(".")
        for name in above:
            if not hasattr(parent, name):
                parent.add_module(name, nn.Module())
            parent = getattr(parent, name)
        parent.add_module(last, nn.Linear(inputs, outputs))
    return root.requires_grad_(False)


def native(family: Architecture) -> dict[str, Alias]:
    """Return the names that a family's own code has and diffusers has not, none of them the beginning of another."""
    found: dict[str, Alias] = {}
    for alias in family.aliases:
        path = alias.native.replace("{}", "0").strip(".")
        flat = {one.replace(".", "_"): one for one in found}
        clashes = path.replace(".", "_") in flat or any(
            f"{one}.".startswith(f"{path}.") or f"{path}.".startswith(f"{one}.") for one in found
        )
        if role(alias.component) == DENOISER and path and path not in alias.parts and not clashes:
            found[path] = alias
    return found


def names(path: str, kohya: bool) -> str:
    return f"lora_unet_{path.replace('.', '_')}" if kohya else f"diffusion_model.{path}"


def tensors(path: str, shape: tuple[int, int], kohya: bool) -> dict[str, Tensor]:
    made = pair(names(path, kohya), shape, 2, alpha=2 if kohya else None, seed=zlib.crc32(path.encode()))
    if kohya:
        return made
    return {key.replace("lora_down", "lora_A").replace("lora_up", "lora_B"): one for key, one in made.items()}


def every(shapes: dict[str, tuple[int, int]], kohya: bool) -> dict[str, Tensor]:
    return {key: tensor for path, shape in shapes.items() for key, tensor in tensors(path, shape, kohya).items()}


@some_of(("family", "kohya"), [name for name, one in FAMILIES.items() if native(one)], [True, False], strength=1)
def test_on_an_unknown_model_a_file_in_its_own_names_is_applied_as_it_stands(tmp_path, family, kohya):
    """No halves are swapped and nothing is taken apart, whatever a known family means by such a name."""
    known = native(FAMILIES[family])
    shapes = {path: (math.lcm(2, 3, 4, len(alias.parts)) * WIDTH, WIDTH) for path, alias in known.items()}
    shapes |= {f"zorks.{number}.blurb": (WIDTH, WIDTH) for number in range(len(known))}
    model = tree(shapes)
    file = save(tmp_path / "own.safetensors", every(shapes, kohya))
    x = torch.randn(3, WIDTH)
    before = {path: model.get_submodule(path)(x) for path in shapes}
    with Engine({"transformer": model}) as engine:
        (report,) = engine.activate(Stack([Entry(file)])).entries
        assert (report.hit, report.layers, report.warning) == (len(shapes), len(shapes), "")
        for path, shape in shapes.items():
            down, up, *_ = (tensor.double() for tensor in tensors(path, shape, kohya).values())
            want = before[path].double() + x.double() @ down.T @ up.T
            assert (model.get_submodule(path)(x) - want).abs().max() < 1e-4 * want.abs().max(), path


@some_of(("family", "kohya"), [name for name, one in FAMILIES.items() if native(one)], [True, False], strength=1)
def test_on_an_unknown_model_names_of_a_known_family_do_not_fit_by_accident(tmp_path, family, kohya):
    """The model has diffusers' names; layers that are fused or swapped in the file fit none of them."""
    meant = {path: alias for path, alias in native(FAMILIES[family]).items() if not alias.only_names}
    if not meant:
        pytest.skip("only renames")
    theirs = {part.replace("{}", "0"): (WIDTH, WIDTH) for alias in meant.values() for part in alias.parts}
    model = tree(theirs)
    if model_family({"transformer": model}) is not None:
        pytest.skip("its names are of this family alone")
    shapes = {path: (len(alias.parts) * WIDTH, WIDTH) for path, alias in meant.items()}
    file = save(tmp_path / "own.safetensors", every(shapes, kohya))
    engine = Engine({"transformer": model})
    with pytest.raises(ActivationError) as caught:
        engine.activate(Stack([Entry(file)]))
    assert "fits" in str(caught.value)
