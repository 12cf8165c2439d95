"""Files whose layers have numbers: the trainer's own way of counting, on models as it saw them, against every tree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn

from lib_lora import inspect_file, load_network
from lib_lora.files.formats.cloneofsimo import _NUMBERINGS, numbered
from lib_lora.naming.index import LayerIndex
from lib_lora.naming.network import Network
from tests.fakes.families import diffusers_unet, models
from tests.fakes.files import adapters_of, save

ATTENTION = ("CrossAttention", "Attention", "GEGLU")
EXTENDED = (*ATTENTION, "ResnetBlock2D")
OF_TEXT = ("CLIPAttention", "CLIPSdpaAttention")
"""What releases of transformers call it."""
TREES = [("sd1", "diffusers"), ("sd1", "ldm"), ("sd2", "diffusers"), ("sd2", "ldm")]


@lru_cache
def unet(family: str, *, early: bool) -> nn.Module:
    """diffusers' UNet; `early` as it was when the trainer came out, the feed-forward between the attentions."""
    model = diffusers_unet(family)
    for block in [one for one in model.modules() if type(one).__name__ == "BasicTransformerBlock"] if early else ():
        attention = block._modules.pop("attn2")
        block._modules["attn2"] = attention  # behind `ff` now
    return model


def counted(model: nn.Module, classes: Sequence[str], kinds: tuple[type[nn.Module], ...]) -> list[str]:
    """Names of layers as the trainer's `_find_modules_v2` lists them."""
    return [
        ".".join(filter(None, (above, inside)))
        for above, module in model.named_modules()
        if type(module).__name__ in classes
        for inside, layer in module.named_modules()
        if isinstance(layer, kinds)
    ]


def tensors_of(model: nn.Module, names: Sequence[str], component: str = "unet") -> dict[str, Tensor]:
    """Return a file of rank 1 whose `up` of a layer is full of its number."""
    made: dict[str, Tensor] = {}
    for number, name in enumerate(names):
        shape = model.get_submodule(name).weight.shape
        made[f"{component}:{number}:up"] = torch.full((shape[0], 1, *(1,) * (len(shape) - 2)), float(number))
        made[f"{component}:{number}:down"] = torch.ones(1, *shape[1:])
    return made


@lru_cache
def index(family: str, tree: str, component: str) -> LayerIndex:
    return LayerIndex(component, models()[family, tree][component])


def numbers_of(network: Network, names: Sequence[str], layers: LayerIndex) -> list[float]:
    """Return the number that fills the adapter of each of these layers."""
    adapters = adapters_of(network)[layers.component]
    places = [layers.find(name) for name in names]
    return [float(adapters[place.pieces[0][0].name].factors().up[0, 0]) for place in places if place is not None]


def header(component: str, classes: Sequence[str]) -> dict[str, str]:
    return {component: json.dumps(list(classes))}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("classes", "kinds"),
    [(ATTENTION, (nn.Linear,)), (EXTENDED, (nn.Linear,)), (EXTENDED, (nn.Linear, nn.Conv2d))],
    ids=["attention", "extended", "extended with convolutions"],
)
@pytest.mark.parametrize(("family", "tree"), TREES)
def test_unet_layers_are_those_that_were_counted(tmp_path, family, tree, classes, kinds, early):
    trained, components = unet(family, early=early), models()[family, tree]
    names = counted(trained, classes, kinds)
    path = save(tmp_path / "a.safetensors", tensors_of(trained, names), header("unet", classes))
    network = load_network(path, components)
    assert (network.report.unused, network.report.hit) == ((), len(names))
    assert (network.report.architecture, network.report.format) == (family, "cloneofsimo")
    assert numbers_of(network, names, index(family, tree, "unet")) == list(range(len(names)))
    assert inspect_file(path).architecture == family


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize(("family", "tree"), TREES)
def test_text_encoder_layers_are_those_that_were_counted(tmp_path, family, tree, said):
    trained = models()[family, "diffusers"]["text_encoder"]
    names = counted(trained, OF_TEXT, (nn.Linear,))
    metadata = header("text_encoder", ["CLIPAttention"]) if said else {}
    path = save(tmp_path / "a.safetensors", tensors_of(trained, names, "text_encoder"), metadata)
    network = load_network(path, models()[family, tree])
    assert (network.report.unused, network.report.hit) == ((), len(names))
    assert numbers_of(network, names, index(family, tree, "text_encoder")) == list(range(len(names)))


def test_a_part_of_the_layers_keeps_its_numbers(tmp_path):
    trained = unet("sd1", early=True)
    names = counted(trained, ATTENTION, (nn.Linear,))
    made = {key: value for key, value in tensors_of(trained, names).items() if int(key.split(":")[1]) in (4, 13, 130)}
    network = load_network(save(tmp_path / "a.safetensors", made), models()["sd1", "ldm"])
    assert network.report.unused == ()
    kept = [names[number] for number in (4, 13, 130)]
    assert numbers_of(network, kept, index("sd1", "ldm", "unet")) == [4, 13, 130]


DEEP = "[" * 100_000
"""JSON that no reader gets to the bottom of."""


def reasons(network: Network) -> Iterator[tuple[str, str, int]]:
    """Reason, the detail of one of its keys, and how many keys."""
    details = {one.key: one.detail for one in network.report.unused}
    for reason, keys in network.report.reasons().items():
        yield reason, details[keys[0]], len(keys)


@pytest.mark.parametrize(
    ("metadata", "tree", "change", "reason", "detail"),
    [
        (
            header("unet", ["Transformer2DModel"]),
            "sd1",
            {},
            "numbered among modules of a class not known here",
            'classes ["Transformer2DModel"]',
        ),
        ({"unet": "4"}, "sd1", {}, "numbered among modules of a class not known here", "classes 4"),
        ({"unet": DEEP}, "sd1", {}, "numbered among modules of a class not known here", f"classes {DEEP}"),
        (
            {},
            "sd2",
            {},
            "numbered as the layers of this model are not",
            "unet: layer 6 is down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k of (320, 1024), "
            "in the file of (320, 768)",
        ),
        (
            {},
            "sd1",
            {"unet:300:up": torch.zeros(320, 1), "unet:300:down": torch.zeros(1, 320)},
            "numbered as the layers of this model are not",
            "unet: there is no layer 300",
        ),
    ],
)
def test_numbers_that_cannot_be_trusted_are_not_used(tmp_path, metadata, tree, change, reason, detail):
    """Not even for the layers that do fit: another order may have the same shape there."""
    trained = unet("sd1", early=True)
    made = tensors_of(trained, counted(trained, ATTENTION, (nn.Linear,))) | change
    network = load_network(save(tmp_path / "a.safetensors", made, metadata), models()[tree, "diffusers"])
    assert (network.bindings, list(reasons(network))) == ((), [(reason, detail, len(made))])


def test_a_number_that_may_be_either_of_two_layers_is_not_used(tmp_path):
    """Number 6 is attn2.to_k, or to_v where the feed-forward comes last, and their shapes are the same."""
    made = {"unet:6:up": torch.ones(320, 1), "unet:6:down": torch.ones(1, 768)}
    path = save(tmp_path / "a.safetensors", made)
    network = load_network(path, models()["sd1", "diffusers"])
    assert network.bindings == ()
    assert list(reasons(network)) == [("numbered in a way that means more than one layer", "unet", 2)]


def test_one_component_does_not_speak_for_the_other(tmp_path):
    trained = models()["sd1", "diffusers"]["text_encoder"]
    made = tensors_of(trained, counted(trained, OF_TEXT, (nn.Linear,)), "text_encoder")
    made |= {"unet:0:up": torch.ones(5, 1), "unet:0:down": torch.ones(1, 5)}
    network = load_network(save(tmp_path / "a.safetensors", made), models()["sd1", "diffusers"])
    assert {component: len(own) for component, own in adapters_of(network).items()} == {"text_encoder": 48}
    assert {one.key for one in network.report.unused} == {"unet:0:up", "unet:0:down"}


def test_an_embedding_is_what_the_header_says_is_one(tmp_path):
    made = {"unet:0:up": torch.ones(320, 1), "unet:0:down": torch.ones(1, 320)}
    made |= {"<s1>": torch.arange(768.0), "<s2>": torch.ones(2, 768), "<s3>": torch.ones(768)}
    path = save(tmp_path / "a.safetensors", made, {"<s1>": "<embed>", "<s2>": "<embed>", "<s3>": "other"})
    network = load_network(path, models()["sd1", "diffusers"])
    assert {name: part["string_to_param.*"].shape for name, part in network.embeddings.items()} == {
        "<s1>": (1, 768),
        "<s2>": (2, 768),
    }
    assert [one.key for one in network.report.unused] == ["<s3>"]


def test_every_step_of_every_counted_name_has_a_place():
    """Two steps without one would be in the order of the model, which is another in each tree."""
    for tree in ("diffusers", "ldm"):
        names = {name for one in ("unet", "text_encoder") for name in index("sd1", tree, one).dotted}
        for numbering in _NUMBERINGS:
            found = numbered(names, *numbering)
            assert len(found) == len(set(found)) >= 144 + 48
