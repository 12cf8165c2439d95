"""What a file says of a layer is obeyed as a whole, or that layer is refused with one reason."""

from __future__ import annotations

import json

import diffusers
import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, inspect_file, load_network, register, unregister
from lib_lora.adapters.base import Params
from lib_lora.adapters.lora import LoRA
from lib_lora.errors import UnknownAdapterError
from lib_lora.files.formats.base import KeyFormat
from tests.fakes.files import adapters_of, hollow, pair, save
from tests.fakes.layers import Model


def peft(prefix: str, out: int, inside: int, rank: int = 2) -> dict[str, Tensor]:
    down, up = pair("x", (out, inside), rank).values()
    return {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}


def sizes(prefix: str, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    out, inside = shape
    return {f"{prefix}.lora_down.weight": ((1, inside), "F32"), f"{prefix}.lora_up.weight": ((out, 1), "F32")}


@pytest.mark.parametrize("start", ["base_model.model.layer", "unet.layer", "diffusion_model.layer", "layer"])
@pytest.mark.parametrize("extra", ["lora_route.weight", "lora_C", "magnitudes.default", "gate.bias"])
def test_an_unknown_parameter_refuses_its_layer_in_every_spelling(tmp_path, start, extra):
    tensors = {**peft(start, 12, 8), f"{start}.{extra}": torch.ones(2, 2)}
    tensors |= peft(f"{start.removesuffix('layer')}other", 12, 8)
    model = nn.ModuleDict({"layer": nn.Linear(8, 12), "other": nn.Linear(8, 12)})
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"unet": model}).report
    assert report.hit == 1
    assert {one.cause for one in report.unused} == {"unknown_parameters"}
    assert {one.key for one in report.unused} == {key for key in tensors if key.startswith(f"{start}.")}


def rank_0(kind: str) -> dict[str, Tensor]:
    def zeros(start: str, **sizes: tuple[int, ...]) -> dict[str, Tensor]:
        return {f"{start}.{name.replace('_weight', '.weight')}": torch.zeros(size) for name, size in sizes.items()}

    return {
        "LoRA": pair("lora_unet_layer", (12, 8), 0),
        "LoRA with alpha": pair("lora_unet_layer", (12, 8), 0, alpha=1),
        "LoRA on a convolution": pair("lora_unet_layer", (12, 8, 3, 3), 0),
        "LoRA by PEFT": peft("base_model.model.layer", 12, 8, 0),
        "LoRA by diffusers": peft("unet.layer", 12, 8, 0),
        "LoHa": zeros("lora_unet_layer", hada_w1_a=(12, 0), hada_w1_b=(0, 8), hada_w2_a=(12, 0), hada_w2_b=(0, 8)),
        "LoHa by PEFT": zeros(
            "base_model.model.layer", hada_w1_a=(12, 0), hada_w1_b=(0, 8), hada_w2_a=(12, 0), hada_w2_b=(0, 8)
        ),
        "LoKr": zeros("lora_unet_layer", lokr_w1=(4, 2), lokr_w2_a=(3, 0), lokr_w2_b=(0, 4)),
        "LoKr of two products": zeros(
            "lora_unet_layer", lokr_w1_a=(4, 0), lokr_w1_b=(0, 2), lokr_w2_a=(3, 0), lokr_w2_b=(0, 4)
        ),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("LoRA", "LoRA with alpha", "LoRA on a convolution", "LoRA by PEFT", "LoRA by diffusers"),
        *("LoHa", "LoHa by PEFT", "LoKr", "LoKr of two products"),
    ],
)
def test_rank_0_has_one_reason(tmp_path, kind):
    layer = nn.Conv2d(8, 12, 3) if "convolution" in kind else nn.Linear(8, 12)
    network = load_network(save(tmp_path / "a.safetensors", rank_0(kind)), {"unet": Model(layer)})
    assert list(network.report.reasons()) == ["of rank 0, which changes nothing"]


@pytest.mark.parametrize("key", ["lora_unet_layer", "base_model.model.layer"])
@pytest.mark.parametrize("make", [lambda: nn.ConvTranspose2d(8, 12, 2), lambda: nn.Bilinear(8, 3, 12)])
def test_a_layer_of_another_class_is_there_and_named(tmp_path, key, make):
    layer = make()
    tensors = pair(key, (12, 8), 2)
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"unet": Model(layer)}).report
    assert list(report.reasons()) == ["of a layer of a class that no adapter kind is defined for"]
    assert report.unused[0].detail == f"unet.layer: {type(layer).__name__}"


@pytest.mark.parametrize("alpha", [None, 4.0])
@pytest.mark.parametrize("name", ["proj_out", "proj_in", "attn.to_out.0", "ff.net.2"])
def test_an_underscore_behind_a_name_is_none_of_the_name(tmp_path, name, alpha):
    model = nn.ModuleDict({"blocks": nn.ModuleList([tree(name)])})
    for start in (f"transformer.blocks.0.{name}_", f"lora_unet_blocks_0_{name.replace('.', '_')}_"):
        tensors = pair(start, (12, 8), 2, alpha=alpha)
        network = load_network(save(tmp_path / "a.safetensors", tensors), {"transformer": model})
        assert (network.report.hit, network.report.unused) == (1, ())
        down, up, *_ = tensors.values()
        delta = network.delta_weight("transformer", f"blocks.0.{name}")
        assert torch.allclose(delta, up @ down * ((alpha or 2) / 2), atol=1e-6)


def tree(path: str) -> nn.Module:
    """Return a model of one layer at a path, whose numbers are places in lists."""
    first, _, rest = path.partition(".")
    inner = tree(rest) if rest else nn.Linear(8, 12)
    if first.isdecimal():
        return nn.ModuleList([*(nn.Identity() for _ in range(int(first))), inner])
    return nn.ModuleDict({first: inner})


def test_names_of_wan_for_the_second_animate_model(tmp_path):
    if not hasattr(diffusers, "WanAnimate2Transformer3DModel"):
        pytest.skip("this diffusers has no Wan-Animate-2")
    with torch.device("meta"):
        model = diffusers.WanAnimate2Transformer3DModel(dim=5120, ffn_dim=13824, num_heads=40, num_layers=1)
    layers = {path: tuple(one.weight.shape) for path, one in model.named_modules() if isinstance(one, nn.Linear)}
    own = {path: shape for path, shape in layers.items() if path.startswith("blocks.0.")}
    names = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "add_k_proj": "k_img", "add_v_proj": "v_img"}
    for block in ("blocks.0.", "blocks.0.block."):
        tensors: dict[str, tuple[tuple[int, ...], str]] = {}
        for path, shape in own.items():
            _, attention, layer = path.removeprefix("blocks.0.").partition("attn.")
            name = path.removeprefix("blocks.0.")
            name = name.removesuffix(layer) + names[layer] if attention else name
            tensors |= sizes(f"diffusion_model.{block}{name}", shape)
        report = load_network(hollow(tmp_path / "a.safetensors", tensors), {"transformer": model}).report
        assert report.hit == report.layers == len(own), report.why()


@pytest.mark.parametrize("heads", [16, 32])
def test_flux_of_another_width(tmp_path, heads):
    with torch.device("meta"):
        model = diffusers.FluxTransformer2DModel(
            num_layers=1, num_single_layers=1, attention_head_dim=64, num_attention_heads=heads
        )
    width = 64 * heads
    shapes = {
        "double_blocks_0_img_attn_qkv": (3 * width, width),
        "double_blocks_0_txt_mod_lin": (6 * width, width),
        "double_blocks_0_img_mlp_0": (4 * width, width),
        "single_blocks_0_linear1": (7 * width, width),
        "single_blocks_0_linear2": (width, 5 * width),
        "final_layer_adaLN_modulation_1": (2 * width, width),
    }
    tensors = {key: one for name, shape in shapes.items() for key, one in sizes(f"lora_unet_{name}", shape).items()}
    network = load_network(hollow(tmp_path / "a.safetensors", tensors), {"transformer": model})
    assert network.report.hit == len(shapes), network.report.why()
    assert network.report.model is None or not network.report.model.sure


class Coral(LoRA):
    """A kind with a layer of its own."""

    __slots__ = ()

    name = "coral_mix"
    params = Params(LoRA.params.required | {"reef_gain.weight"}, layers=frozenset({"reef_gain"}))


EBB = KeyFormat(
    name="ebb",
    before=("peft", "diffusers"),
    patterns=(r"model\.(?P<module>.+)\.(?P<param>ebb_[ab])",),
    example="model.layer.ebb_a",
    params={"ebb_a": "lora_down.weight", "ebb_b": "lora_up.weight"},
    transposed=frozenset({"lora_down.weight", "lora_up.weight"}),
    configured=True,
)


def test_a_plug_in_may_have_layers_transposed_tensors_and_a_configuration(tmp_path):
    tensors = {"model.layer.ebb_a": torch.rand(8, 2), "model.layer.ebb_b": torch.rand(2, 12)}
    (tmp_path / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 6}')
    model = {"unet": Model(nn.Linear(8, 12))}
    try:
        register(EBB, Coral)
        network = load_network(save(tmp_path / "adapter_model.safetensors", tensors), model)
        want = 3 * (tensors["model.layer.ebb_a"] @ tensors["model.layer.ebb_b"]).T
        assert torch.allclose(network.delta_weight("unet", "layer"), want, atol=1e-5)
        mixed = {**peft("base_model.model.layer", 12, 8), "base_model.model.layer.reef_gain.weight": torch.ones(1, 1)}
        (found,) = adapters_of(load_network(save(tmp_path / "b.safetensors", mixed), model))["unet"].values()
        assert isinstance(found, Coral)
    finally:
        unregister(EBB, Coral)


def mlx(name: str, out: int, inside: int) -> dict[str, torch.Tensor]:
    return {f"{name}.lora_a": torch.rand(inside, 2), f"{name}.lora_b": torch.rand(2, out)}


@pytest.mark.parametrize("stem", ["adapters", "0000100_adapters"])
def test_adapters_of_mlx_have_the_scale_of_their_configuration(tmp_path, stem):
    """As ml-explore/mlx-lm mlx_lm/tuner/lora.py, `LoRALinear.fuse`."""
    tensors = mlx("model.layers.0.self_attn.q_proj", 12, 8)
    settings = {"rank": 2, "scale": 20.0, "dropout": 0.0}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"fine_tune_type": "lora", "lora_parameters": settings}))
    layer = nn.ModuleDict({"self_attn": nn.ModuleDict({"q_proj": nn.Linear(8, 12)})})
    encoder = nn.ModuleDict({"model": nn.ModuleDict({"layers": nn.ModuleList([layer])})})
    network = load_network(save(tmp_path / f"{stem}.safetensors", tensors), {"text_encoder": encoder})
    a, b = tensors.values()
    got = network.delta_weight("text_encoder", "model.layers.0.self_attn.q_proj")
    assert torch.allclose(got, (20.0 * b.T) @ a.T, atol=1e-4)
    assert network.report.format == "mlx"
    assert network.report.scales == ("file",)
    assert not network.report.notes


def test_a_neighbours_configuration_is_not_of_an_adapter_of_mlx(tmp_path):
    tensors = mlx("layer", 12, 8)
    (tmp_path / "adapter_config.json").write_text('{"lora_parameters": {"rank": 4, "scale": 20.0}}')
    network = load_network(save(tmp_path / "adapters.safetensors", tensors), {"unet": Model(nn.Linear(8, 12))})
    a, b = tensors.values()
    assert torch.allclose(network.delta_weight("unet", "layer"), (a @ b).T, atol=1e-5)
    assert any("it is for rank 4, and the file has 2" in note for note in network.report.notes)


def test_mlx_writes_lists_of_layers_in_flux_by_its_own_names(tmp_path):
    """As ml-explore/mlx-examples flux/dreambooth.py saves them; the model has the names of Flux' own code."""
    block = nn.ModuleDict({"img_mlp": nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))})
    model = nn.ModuleDict({"double_blocks": nn.ModuleList([block])})
    tensors = mlx("double_blocks.0.img_mlp.layers.2", 8, 16)
    path = save(tmp_path / "0000300_adapters.safetensors", tensors, {"lora_rank": "2", "lora_blocks": "-1"})
    network = load_network(path, {"transformer": model})
    a, b = tensors.values()
    assert torch.allclose(network.delta_weight("transformer", "double_blocks.0.img_mlp.2"), (a @ b).T, atol=1e-5)


def test_a_dora_of_mlx_is_refused(tmp_path):
    path = save(tmp_path / "adapters.safetensors", {**mlx("layer", 12, 8), "layer.m": torch.rand(12)})
    with pytest.raises(UnknownAdapterError, match=r"with the parameters lora_down.weight, lora_up.weight, m \("):
        load_network(path, {"unet": Model(nn.Linear(8, 12))})


def test_a_bias_in_fp8_takes_the_place_of_the_layers(tmp_path):
    layer = nn.Linear(2, 4)
    tensors = {"diffusion_model.layer.set_bias": torch.arange(4.0).to(torch.float8_e4m3fn)}
    path = save(tmp_path / "a.safetensors", tensors)
    model = Model(layer)
    plain = nn.functional.linear(torch.ones(1, 2), layer.weight)
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(path)], mode="merged"))
        assert (model.layer(torch.ones(1, 2)) - plain - torch.arange(4.0)).abs().max() < 1e-6


def test_a_bias_in_fp8_of_the_up_side_is_applied(tmp_path):
    bias = torch.arange(4.0).to(torch.float8_e4m3fn)
    tensors = {**pair("lora_unet_layer", (4, 2), 1), "lora_unet_layer.lora_up.bias": bias}
    path, model, x = save(tmp_path / "a.safetensors", tensors), Model(nn.Linear(2, 4)), torch.zeros(1, 2)
    inspect_file(path)
    plain = model(x)
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(path)]))
        assert (model(x) - plain - torch.arange(4.0)).abs().max() < 1e-6


@pytest.mark.parametrize("mode", ["live", "merged"])
def test_a_delora_that_was_not_trained_is_finite_in_half_precision(tmp_path, mode):
    """PEFT begins with zeros on one side, whose length it divides by."""
    key, model, x = "base_model.model.layer.delora_", Model(nn.Linear(32, 8).half()), torch.ones(1, 32).half()
    tensors = {
        f"{key}A": torch.randn(4, 32) * 0.01,
        f"{key}B": torch.zeros(8, 4),
        f"{key}w_norm": torch.full((32,), 30.0),
    }
    path = save(tmp_path / "adapter_model.safetensors", {**tensors, f"{key}lambda": torch.tensor([15.0])})
    plain = model(x)
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(path)], mode=mode))
        assert torch.equal(model(x), plain)
