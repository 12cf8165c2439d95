"""One adapter, written as each trainer writes it, is the same bits beside each layer, in the UNet and text encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, load_network
from lib_lora.execution.dense import DenseExecutor
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.index import LayerIndex
from tests.fakes.families import models
from tests.fakes.files import adapters_of, save
from tests.families import families
from tests.families._unet import ENCODERS

from .test_families import RANK, layers_in, origins, random_factors

NAMES = ("sd1", "sd2", "sdxl", "sdxl_refiner")
TREES = ("diffusers", "ldm")
UNET = (".attn1.to_", ".attn2.to_")
"""What every trainer trains."""
TEXT_LAYERS = 2

Key = Callable[[str, str], str | None]
COMFY = {
    ("sd1", "text_encoder"): "clip_l",
    ("sd2", "text_encoder"): "clip_h",
    ("sdxl", "text_encoder"): "clip_l",
    ("sdxl", "text_encoder_2"): "clip_g",
    ("sdxl_refiner", "text_encoder_2"): "clip_g",
}


def _dotted(prefix: str, down: str, up: str, alpha: str | None = None) -> Key:
    spelled = {"lora_down.weight": down, "lora_up.weight": up, "alpha": alpha}
    return lambda layer, param: None if spelled[param] is None else f"{prefix}.{layer}.{spelled[param]}"


def _flat(prefix: str) -> Key:
    return lambda layer, param: f"{prefix}_{layer.replace('.', '_')}.{param}"


def _attention_processor(component: str) -> Key:
    leaves = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}

    def key(layer: str, param: str) -> str | None:
        above, _, leaf = layer.rpartition(".")
        side = {"lora_down.weight": "down", "lora_up.weight": "up"}.get(param)
        return None if side is None else f"{component}.{above}.{leaves[leaf]}_lora.{side}.weight"

    return key


def _numbered(component: str) -> Key:
    order = ("k_proj", "v_proj", "q_proj", "out_proj")  # transformers models/clip/modeling_clip.py, CLIPAttention

    def key(layer: str, param: str) -> str | None:
        steps = layer.split(".")
        side = {"lora_down.weight": "down", "lora_up.weight": "up"}.get(param)
        return None if side is None else f"{component}:{4 * int(steps[3]) + order.index(steps[-1])}:{side}"

    return key


def text_keys(name: str, component: str) -> Mapping[str, Key]:
    """By the writer of the UNet's part, how it writes the text encoder's; those that write none are absent."""
    kohya = {"sd1": "lora_te", "sd2": "lora_te"}.get(name, "lora_te1" if component == "text_encoder" else "lora_te2")
    comfy = f"text_encoders.{COMFY[name, component]}.transformer"
    return {
        "kohya": _flat(kohya),
        "kohya, ldm": _flat(kohya),
        "attention processors": _attention_processor(component),
        "diffusers before PEFT": _dotted(component, "lora_linear_layer.down.weight", "lora_linear_layer.up.weight"),
        "diffusers": _dotted(component, "lora_A.weight", "lora_B.weight"),
        "comfy": _dotted(comfy, "lora_down.weight", "lora_up.weight", "alpha"),
        "OneTrainer, comfy": _dotted(comfy, "lora_A.weight", "lora_B.weight", "alpha"),
        "cloneofsimo": _numbered(component),
    }


@lru_cache
def components(name: str, tree: str) -> dict[str, nn.Module]:
    family = families()[name]
    assert family.native is not None
    unet = family.build(False) if tree == "diffusers" else skeleton(family.native())
    return {"unet": unet} | {one: models()[name, tree][one] for one in ENCODERS[name]}


@lru_cache
def made(name: str) -> dict[tuple[str, str], tuple[Tensor, Tensor]]:
    """Return the factors of each (component, diffusers' name of a layer)."""
    shapes = {
        (component, layer): shape
        for component, module in components(name, "diffusers").items()
        for layer, shape in layers_in(module).items()
        if (component == "unet" and any(part in layer for part in UNET))
        or (component != "unet" and "self_attn" in layer and int(layer.split("layers.")[1].split(".")[0]) < TEXT_LAYERS)
    }
    return {one: random_factors(shape, seed) for seed, (one, shape) in enumerate(shapes.items())}


def write(name: str, writer: str, folder: Path) -> tuple[Path, set[str]]:
    """Return the adapter as one trainer writes it, and the components it writes."""
    how, tensors, written = families()[name].writers[writer], {}, set()
    for (component, layer), (down, up) in made(name).items():
        key: Key | None = how.key if component == "unet" else text_keys(name, component).get(writer)
        if key is None:
            continue
        called = layer
        if component != "unet":  # trainers name after the nested tree of transformers
            called = layer if layer.startswith("text_model.") else f"text_model.{layer}"
        elif how.names == "native":
            ((called, _, _),) = origins(name)[layer]
        for param, tensor in (("lora_down.weight", down), ("lora_up.weight", up), ("alpha", torch.tensor(float(RANK)))):
            spelled = key(called, param)
            if spelled is not None:
                tensors[spelled] = tensor
                written.add(component)
    return save(folder / f"{writer}.safetensors", tensors, dict(how.metadata)), written


Fused = dict[tuple[str, str], list[Tensor]]
"""(component, layer's name in the tree) -> tensors."""


def fused(name: str, tree: str, path: Path) -> Fused:
    """Return the fused pair of each layer and its strengths, as the engine computes with them."""
    engine = Engine(components(name, tree))
    try:
        report = engine.activate(Stack([Entry(path, 0.7)])).entries[0]
        assert report.unused == ()
        return {
            (component, layer): _pair(slot.executor, module)
            for component, root in components(name, tree).items()
            for layer, module in root.named_modules()
            if (slot := slot_of(module)) is not None and slot.executor is not None
        }
    finally:
        engine.deactivate()


def _pair(way: object, layer: nn.Module) -> list[Tensor]:
    if isinstance(way, DenseExecutor):  # torch's attention takes an effective weight, made of each part of a fused one
        parts = sorted(way._bindings, key=lambda one: one.target.name)
        return [factor for one in parts for factor in (one.adapter.factors().down, one.adapter.factors().up)]
    assert isinstance(way, LowRankExecutor)
    like = torch.device("cpu"), torch.float32, torch.float32
    content = way._content(way._adapters(layer), like[0], like[1:])
    placed = way._placement(content, like[0], like[1:])
    pair = placed.get().pair
    assert pair is not None
    return [pair.down, pair.up, placed.strengths.alike[0].clone()]


@pytest.fixture(scope="module")
def by_kohya(tmp_path_factory) -> Callable[[str, str], Fused]:
    """Return the adapter from a file of kohya's, for a family and a tree."""

    @lru_cache
    def made_of(name: str, tree: str) -> Fused:
        return fused(name, tree, write(name, "kohya", tmp_path_factory.mktemp("kohya"))[0])

    return made_of


WRITERS = [
    (name, writer)
    for name in NAMES
    for writer, how in families()[name].writers.items()
    if writer != "kohya" and not how.component
]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("name", "writer"), WRITERS)
def test_every_format_gives_the_same_bits(name, writer, tree, tmp_path, by_kohya):
    path, written = write(name, writer, tmp_path)
    want = {one: pair for one, pair in by_kohya(name, tree).items() if one[0] in written}
    got = fused(name, tree, path)
    assert got.keys() == want.keys()
    for one, pair in got.items():
        assert len(pair) == len(want[one]), one
        assert all(torch.equal(a, b) for a, b in zip(pair, want[one], strict=True)), one


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", NAMES)
def test_the_first_format_gives_the_adapter(name, tree, tmp_path):
    """What the others are held against is right itself, and also where the engine keeps no pair."""
    network = load_network(write(name, "kohya", tmp_path)[0], components(name, tree))
    for (component, layer), (down, up) in made(name).items():
        index = LayerIndex(component, components(name, tree)[component])
        place = index.find(layer)
        assert place is not None
        ((target, _),) = place.pieces
        found = adapters_of(network)[component][target.name].factors()
        assert torch.equal(found.down, down), layer
        assert torch.equal(found.up, up), layer
