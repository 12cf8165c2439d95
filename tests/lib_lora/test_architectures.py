"""Every layer of every family is found under every name, in both module trees, with the right shape."""

from __future__ import annotations

import json
import re

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_open_clip_checkpoint
from diffusers.models.normalization import RMSNorm as DiffusersRMSNorm
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from lib_lora import Engine, Entry, Stack, load_network
from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.index import LayerIndex
from tests.fakes.families import models
from tests.fakes.files import pair, save
from tests.fakes.ldm import UNETS, OpenClipText, hf_names, open_clip_shapes, unet_shapes

FAMILIES = list(UNETS)


def index(component: str, module: nn.Module) -> LayerIndex:
    return LayerIndex(component, module)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_two_unet_trees_have_the_same_layers(family):
    ldm = index("unet", models()[family, "ldm"]["unet"])
    diffusers = index("unet", models()[family, "diffusers"]["unet"])
    assert len(ldm.targets) == len(diffusers.targets) > 250
    for one, other in ((ldm, diffusers), (diffusers, ldm)):
        met = set()
        for target in one.targets:
            found = other.find(target.name)
            assert found is not None, target.name
            assert found.shape == target.shape, target.name
            flat = other.find(target.name.replace(".", "_"), flattened=True)
            assert flat == found
            met.add(found.name)
        assert len(met) == len(one.targets), "two layers share a name"


@pytest.mark.parametrize(
    ("family", "component", "layers"), [("sd2", "text_encoder", 24), ("sdxl", "text_encoder_2", 32)]
)
def test_open_clip_rows_are_those_of_diffusers_converter(family, component, layers):
    """Each row has a number of its own, and one column stands for all."""
    clip = models()[family, "diffusers"][component]
    shapes = open_clip_shapes(clip.config.hidden_size, layers)
    given, starts = {}, {}
    for start, (key, shape) in enumerate(shapes.items()):
        starts[key.replace(".in_proj_weight", ".in_proj").removesuffix(".weight")] = start * 100_000
        given[f"p.{key}"] = torch.arange(start * 100_000, start * 100_000 + shape[0]).unsqueeze(1)
    ldm, met = index(component, models()[family, "ldm"][component]), 0
    for key, rows in convert_open_clip_checkpoint(clip, given, prefix="p.").items():
        name = key.removesuffix(".weight")
        if name == key:
            continue
        place = ldm.find(name)
        assert place is not None, key
        ((target, _),) = place.pieces
        fused = target.param == "in_proj_weight"
        layer = f"{target.path}.in_proj" if fused else target.name
        first = starts[layer.removeprefix("model.")] + (target.rows or (0, 0))[0]
        assert rows.flatten().tolist() == list(range(first, first + place.shape[0])), key
        met += 1
    assert met >= 8 * layers


@pytest.mark.parametrize(("family", "component"), [("sd2", "text_encoder"), ("sdxl", "text_encoder_2")])
def test_text_encoder_trees_have_the_same_layers(family, component):
    diffusers = index(component, models()[family, "diffusers"][component])
    ldm = index(component, models()[family, "ldm"][component])
    for target in diffusers.targets:
        if "encoder.layers" in target.name:
            found = ldm.find(target.name)
            assert found is not None, target.name
            assert found.shape == target.shape
    assert {t.kind for t in ldm.targets} == {"linear", "attention", "norm", "embedding"}


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_clip_is_found_nested_flattened_and_wrapped(family):
    nested = "text_model.encoder.layers.11.self_attn.q_proj"
    for tree in ("diffusers", "ldm"):
        clip = index("text_encoder", models()[family, tree]["text_encoder"])
        for name in (nested, nested.removeprefix("text_model."), f"transformer.{nested}"):
            assert clip.find(name) is not None, name
            assert clip.find(name.replace(".", "_"), flattened=True) is not None, name


@pytest.mark.parametrize(
    ("family", "name"), list(zip(FAMILIES, ["v1-SD", "v2-SD", "XL-SD", "XL-Refiner"], strict=True))
)
def test_our_ldm_unets_are_the_real_ones(real_keys, family, name):
    real = json.loads((real_keys / f"toolkit_base_UNET-{name}.json").read_text())
    assert {key: tuple(shape) for key, shape in real.items()} == unet_shapes(UNETS[family])


@pytest.mark.parametrize(("name", "width", "layers"), [("v2", 1024, 24), ("XL", 1280, 32)])
def test_our_open_clip_is_the_real_one(real_keys, name, width, layers):
    real = json.loads((real_keys / f"toolkit_base_CLIP-{name}-SD.json").read_text())
    ours = open_clip_shapes(width, layers)
    assert ours.items() <= {key: tuple(shape) for key, shape in real.items()}.items()
    assert {key for key in real if "resblocks" in key} == {key for key in ours if "resblocks" in key}


@pytest.mark.parametrize("tree", ["diffusers", "ldm"])
@pytest.mark.parametrize(
    ("listed", "family", "layers"),
    [("invokeai_stripped_shinkai_makoto_offset", "sd1", 264), ("invokeai_sdxl_dramatic_lighting_slider", "sdxl", 280)],
)
def test_real_key_lists_resolve_wholly(real_keys, tmp_path, listed, family, layers, tree):
    keys = json.loads((real_keys / f"{listed}.json").read_text())
    components = models()[family, tree]
    diffusers = {name: index(name, module) for name, module in models()[family, "diffusers"].items()}
    tensors = {
        key: torch.zeros(_shape(key, diffusers) if shape is None else shape, dtype=torch.uint8)
        for key, shape in keys.items()
    }
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert (network.report.hit, network.report.layers) == (layers, layers)
    assert (network.report.unused, network.report.architecture) == ((), family)
    print(f"{listed} on {tree}: {len(keys)} keys, {network.report.hit} layers")  # noqa: T201  # the count is the result


def _shape(key: str, indexes: dict[str, LayerIndex]) -> tuple[int, ...]:
    """Shape of a key whose list has none, from the layer it is for."""
    module, _, param = key.removeprefix("lora_unet_").partition(".")
    target = indexes["unet"].find(module, flattened=True)
    assert target is not None
    return {"lora_down.weight": (4, target.shape[1]), "lora_up.weight": (target.shape[0], 4), "alpha": ()}[param]


@pytest.mark.parametrize("listed", ["UNET-v1-SD", "UNET-v1-Inpainting", "UNET-v2-SD", "UNET-XL-SD", "UNET-XL-Refiner"])
def test_real_base_lists_resolve_wholly(real_keys, listed):
    """A file with a LoRA for every layer of a real checkpoint, by its ldm names, fits diffusers' tree."""
    families = {"UNET-v1-SD": "sd1", "UNET-v2-SD": "sd2", "UNET-XL-SD": "sdxl", "UNET-XL-Refiner": "sdxl_refiner"}
    real = json.loads((real_keys / f"toolkit_base_{listed}.json").read_text())
    layers = {k.removesuffix(".weight"): tuple(s) for k, s in real.items() if k.endswith(".weight") and len(s) > 1}
    found = index("unet", models()[families.get(listed, "sd1"), "diffusers"]["unet"])
    unlike = [name for name, shape in layers.items() if (t := found.find(name)) is None or t.shape != shape]
    # an inpainting checkpoint has five more input channels
    assert unlike == (
        ["input_blocks.0.0"] if listed == "UNET-v1-Inpainting" and real["input_blocks.0.0.weight"][1] == 9 else []
    )
    assert len(layers) > 250
    print(f"{listed} on diffusers: {len(layers) - len(unlike)} layers")  # noqa: T201  # the count is the result


@pytest.mark.parametrize("tree", ["diffusers", "ldm"])
@pytest.mark.parametrize(
    ("listed", "family", "component", "layers"),
    [("v1", "sd1", "text_encoder", 72), ("v2", "sd2", "text_encoder", 138), ("XL", "sdxl", "text_encoder_2", 192)],
)
def test_real_text_encoder_lists_resolve_wholly(real_keys, listed, family, component, layers, tree):
    """Every block's weights of a real list fit a layer of that shape; a fused one its three parts."""
    real = json.loads((real_keys / f"toolkit_base_CLIP-{listed}-SD.json").read_text())
    found = index(component, models()[family, tree][component])
    hit = set()
    for key, shape in real.items():
        name, _, param = key.rpartition(".")
        if len(shape) < 2 or "embedding" in key or not re.search(r"(layers|resblocks)\.\d+\.", key):
            continue
        if re.search(r"resblocks\.23\.", key) and listed == "v2" and tree == "diffusers":
            continue  # the last block is never run, so diffusers has no such layer
        parts = [f"{name}.{part}_proj" for part in "qkv"] if param == "in_proj_weight" else [name]
        for part in parts:
            target = found.find(part)
            assert target is not None, part
            assert target.shape == (shape[0] // len(parts), shape[1]), part
            hit.add(target.name)
    assert len(hit) == layers + (6 if listed == "v2" and tree == "ldm" else 0)
    print(f"CLIP-{listed} on {tree}: {len(hit)} layers")  # noqa: T201  # the count is the result


def test_the_same_file_on_open_clip_and_on_transformers_gives_the_same_output(tmp_path):
    """OpenCLIP's fused attention under a kohya file against transformers' separate projections, numerically."""
    pytest.importorskip("transformers", "5")  # earlier ones cannot make the mask of attention in fp64
    torch.manual_seed(1)
    tower = OpenClipText().double().requires_grad_(False).eval()
    config = CLIPTextConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_act="gelu",
    )
    clip = CLIPTextModelWithProjection(config).double().requires_grad_(False).eval()
    clip.load_state_dict(_as_transformers(tower, clip.state_dict()))
    tensors: dict[str, torch.Tensor] = {}
    for i, (name, _, shape) in enumerate(hf_names(tower)):
        tensors |= pair("lora_te2_" + name.replace(".", "_"), shape, 4, alpha=2, seed=i)
    path = save(tmp_path / "a.safetensors", tensors)
    ids = torch.randint(0, 16, (2, 7))

    def run(model: nn.Module) -> torch.Tensor:
        if model is clip:
            return clip(ids).last_hidden_state
        return tower(clip.text_model.embeddings(ids))

    plain = run(tower)
    assert (run(clip) - plain).abs().max() < 1e-12
    outputs = []
    for model in (tower, clip):
        engine = Engine({"text_encoder_2": model})
        report = engine.activate(Stack([Entry(path, {"text_encoder": 0.8})]))
        assert report.entries[0].hit == 12
        outputs.append(run(model))
    assert (outputs[0] - outputs[1]).abs().max() < 1e-12
    assert (outputs[0] - plain).abs().max() > 1e-2


class RMSNorm(nn.Module):
    """That of Flux' own code, as in black-forest-labs/flux src/flux/modules/layers.py and in reForge."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


def test_the_norms_of_a_control_lora_act_in_both_trees(tmp_path):
    """BFL gives the scale itself: the output is that of a norm with it; at a strength, of the line between the two."""
    value = torch.rand(8, dtype=torch.float64) + 0.5
    name = "single_blocks.0.norm.query_norm"
    tensors = {f"{name}.scale": value} | pair("lora_unet_single_blocks_0_linear2", (8, 8), 2)
    path = save(tmp_path / "a.safetensors", tensors)
    native, diffusers = nn.Module(), nn.Module()
    native.add_module("single_blocks", _nested("0.norm.query_norm", RMSNorm(8).double()))
    diffusers.add_module("single_transformer_blocks", _nested("0.attn.norm_q", DiffusersRMSNorm(8, 1e-6).double()))
    x = torch.randn(3, 8, dtype=torch.float64)
    for model, own in ((native, name), (diffusers, "single_transformer_blocks.0.attn.norm_q")):
        norm = model.get_submodule(own).requires_grad_(False)
        plain = norm(x)
        engine = Engine({"transformer": model})
        for strength in (1.0, 0.5):
            assert engine.activate(Stack([Entry(path, strength)])).entries[0].hit == 1
            wanted = plain * (1 + strength * (value - 1))
            assert (norm(x) - wanted).abs().max() < 1e-14 * wanted.abs().max()
        engine.activate(Stack([]))
        assert torch.equal(norm(x), plain)


def _nested(path: str, layer: nn.Module) -> nn.Module:
    for step in reversed(path.split(".")):
        owner = nn.Module()
        owner.add_module(step, layer)
        layer = owner
    return layer


def test_omi_of_sdxl(tmp_path):
    """ldm's names below `unet.`, and the two CLIP models by their own."""
    layers = {
        "unet.input_blocks.4.1.transformer_blocks.0.attn2.to_k": (640, 2048),
        "unet.output_blocks.2.2.conv": (1280, 1280, 3, 3),
        "clip_l.text_model.encoder.layers.3.mlp.fc1": (3072, 768),
        "clip_g.text_model.encoder.layers.3.mlp.fc1": (5120, 1280),
    }
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in layers.items():
        tensors |= pair(name, shape, 1, alpha=1)
    path = save(tmp_path / "a.safetensors", tensors)
    network = load_network(path, models()["sdxl", "diffusers"])
    assert network.report.unused == ()
    assert (network.report.format, network.report.architecture) == ("diffusers", "sdxl")
    assert [(one.component, one.target.path.removeprefix("text_model.")) for one in network.bindings] == [
        ("text_encoder_2", "encoder.layers.3.mlp.fc1"),
        ("text_encoder", "encoder.layers.3.mlp.fc1"),
        ("unet", "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"),
        ("unet", "up_blocks.0.upsamplers.0.conv"),
    ]


def _as_transformers(tower: OpenClipText, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    converted = dict(state)
    for i, block in enumerate(tower.transformer.resblocks):
        prefix = f"text_model.encoder.layers.{i}."
        for j, name in enumerate("qkv"):
            converted[f"{prefix}self_attn.{name}_proj.weight"] = block.attn.in_proj_weight.chunk(3)[j]
            converted[f"{prefix}self_attn.{name}_proj.bias"] = block.attn.in_proj_bias.chunk(3)[j]
        pairs = {"self_attn.out_proj": block.attn.out_proj, "layer_norm1": block.ln_1, "layer_norm2": block.ln_2}
        pairs |= {"mlp.fc1": block.mlp.c_fc, "mlp.fc2": block.mlp.c_proj}
        for name, module in pairs.items():
            converted[f"{prefix}{name}.weight"], converted[f"{prefix}{name}.bias"] = module.weight, module.bias
    converted["text_model.final_layer_norm.weight"] = tower.ln_final.weight
    converted["text_model.final_layer_norm.bias"] = tower.ln_final.bias
    return converted


def test_skeleton_of_a_checkpoint_has_every_adaptable_layer():
    for family in FAMILIES:
        shapes = unet_shapes(UNETS[family])
        tree = skeleton(shapes)
        for name, shape in shapes.items():
            if name.endswith(".weight") and len(shape) > 1:
                assert tuple(tree.get_submodule(name.removesuffix(".weight")).weight.shape) == shape


def test_t5_is_found_wherever_it_is(tmp_path):
    """sd-scripts calls it the third text encoder, OneTrainer by its number in the pipeline: here it is the second."""
    names = ["encoder.block.0.layer.0.SelfAttention.q", "encoder.block.0.layer.1.DenseReluDense.wi_0"]
    shapes = {f"{name}.weight": (8, 8) for name in names} | {"encoder.embed_tokens.weight": (16, 8)}
    t5 = skeleton(shapes)
    assert index("text_encoder_2", t5).find("shared") is not None
    clip = skeleton({"text_model.encoder.layers.0.mlp.fc1.weight": (8, 8)})
    for wrapped in (False, True):  # with or without the module that A1111, Forge and ComfyUI have around it
        model = _nested("transformer", t5) if wrapped else t5
        for start in ("lora_te3_", "lora_te2_", "t5.", "text_encoders.t5xxl.transformer."):
            flat = start.endswith("_")
            tensors: dict[str, torch.Tensor] = {}
            for name in names:
                tensors |= pair(start + (name.replace(".", "_") if flat else name), (8, 8), 2)
            path = save(tmp_path / "a.safetensors", tensors)
            report = load_network(path, {"text_encoder": clip, "text_encoder_2": model}).report
            assert (report.hit, report.unused, report.components) == (2, (), {"text_encoder_2"}), start
