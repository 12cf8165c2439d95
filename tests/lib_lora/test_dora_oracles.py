"""DoRA, full differences and norms against their trainers' own forward, and what was decided where these differ.

The numbers of the decisions are those of the project's reference on adapters, section B1.
"""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.layers import Model

LAYERS = {
    "linear": (lambda: nn.Linear(12, 20), (3, 12)),
    "conv": (lambda: nn.Conv2d(12, 20, 3, padding=1), (2, 12, 5, 5)),
    "square": (lambda: nn.Linear(16, 16), (3, 16)),
}
BOUND = 1e-5


def made(name: str) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    build, size = LAYERS[name]
    return Model(build().requires_grad_(False)), torch.randn(size)


def ours(model: nn.Module, path: Path, x: Tensor, multiplier: float = 1.0) -> Tensor:
    engine = Engine({"unet": model})
    report = engine.activate(Stack([Entry(path, multiplier)])).entries[0]
    assert (report.hit, report.unused) == (1, ())
    output: Tensor = model(x)
    return output.clone()


@torch.no_grad()
def randomized(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if "dora_scale" in name or "magnitude" in name:
            parameter.mul_(torch.rand_like(parameter) + 0.8)
        else:
            parameter.normal_(0, 0.3)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("algo", ["lora", "loha", "lokr"])
@pytest.mark.parametrize("on_out", [True, False])
def test_weight_decomposition_of_lycoris(tmp_path, layer, algo, on_out):
    """1: the axis is that of the magnitude's shape, and the norm that of W + dW."""
    modules = {"lora": ("locon", "LoConModule"), "loha": ("loha", "LohaModule"), "lokr": ("lokr", "LokrModule")}
    file, name = modules[algo]
    lycoris = pytest.importorskip(f"lycoris.modules.{file}")
    model, x = made(layer)
    trained = copy.deepcopy(model.layer)
    module = getattr(lycoris, name)(
        "layer", trained, 1.0, lora_dim=4, alpha=2, weight_decompose=True, wd_on_out=on_out, factor=4
    )
    randomized(module)
    with torch.no_grad():
        module.apply_to()
        want = trained(x)
    state = {f"lora_unet_layer.{key}": value.detach().clone() for key, value in module.state_dict().items()}
    path = save(tmp_path / "a.safetensors", state)
    assert worst(ours(model, path, x), want) < BOUND
    assert worst(want, model(x)) > 1e-2


@pytest.mark.parametrize("layer", LAYERS)
def test_dora_of_peft(tmp_path, layer):
    """1: PEFT's magnitudes are rows, on a square layer and on a convolution, where their shape is (1, out, 1, 1)."""
    peft = pytest.importorskip("peft")
    model, x = made(layer)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["layer"], use_dora=True, init_lora_weights=False)
    wrapped = peft.get_peft_model(copy.deepcopy(model), config)
    randomized(wrapped.base_model.model.layer.lora_magnitude_vector)
    with torch.no_grad():
        want = wrapped(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot find the model on a hub
        wrapped.save_pretrained(tmp_path)
    assert worst(ours(model, tmp_path / "adapter_model.safetensors", x), want) < BOUND


def test_dora_of_peft_on_an_embedding(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model, ids = Model(nn.Embedding(30, 12).requires_grad_(False)), torch.randint(0, 30, (2, 7))
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["layer"], use_dora=True, init_lora_weights=False)
    wrapped = peft.get_peft_model(copy.deepcopy(model), config)
    randomized(wrapped.base_model.model.layer.lora_magnitude_vector)
    with torch.no_grad():
        want = wrapped(ids)
    state = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    path = save(tmp_path / "adapter_model.safetensors", {key: value.detach().clone() for key, value in state.items()})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 6}))
    assert worst(ours(model, path, ids), want) < BOUND


@pytest.mark.parametrize("multiplier", [0.0, 0.5, -1.0, 2.0])
def test_the_multiplier_scales_the_complete_effect(tmp_path, multiplier):
    """2: W + m (W' - W), so that 0 is the base; not LyCORIS 3's (W + dW)(1 + m (s - 1)), nor PEFT's m in the norm."""
    model, x = made("linear")
    scale = torch.rand(20, 1) + 0.5
    path = save(
        tmp_path / "a.safetensors", pair("lora_unet_layer", (20, 12), 4) | {"lora_unet_layer.dora_scale": scale}
    )
    plain, full = model(x), ours(model, path, x)
    want = plain + multiplier * (full - plain)
    assert worst(ours(model, path, x, multiplier), want) < BOUND


def test_a_magnitude_of_one_dimension_is_rows_even_where_the_layer_is_square(tmp_path):
    """1: only PEFT and ai-toolkit write one dimension, and they mean the outputs."""
    model, x = made("square")
    lora = pair("lora_unet_layer", (16, 16), 4)
    scale = torch.rand(16) + 0.5
    flat = save(tmp_path / "a.safetensors", lora | {"lora_unet_layer.dora_scale": scale})
    rows = save(tmp_path / "b.safetensors", lora | {"lora_unet_layer.dora_scale": scale.reshape(16, 1)})
    columns = save(tmp_path / "c.safetensors", lora | {"lora_unet_layer.dora_scale": scale.reshape(1, 16)})
    assert torch.equal(ours(model, flat, x), ours(model, rows, x))
    assert worst(ours(model, columns, x), ours(model, rows, x)) > 1e-2


def test_a_magnitude_that_fits_no_axis_is_named(tmp_path):
    model, _ = made("linear")
    tensors = pair("lora_unet_layer", (20, 12), 4) | {"lora_unet_layer.dora_scale": torch.ones(7, 1)}
    tensors |= pair("lora_unet_other", (20, 12), 4)
    model.other = nn.Linear(12, 20)
    report = Engine({"unet": model}).activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))])).entries[0]
    details = {item.detail for item in report.unused}
    assert details == {"unet.layer: want a magnitude (20, 1, …) or (1, 12, …), got (7, 1)"}
    assert report.hit == 1


@pytest.mark.parametrize("layer", ["linear", "conv"])
def test_full_differences_of_lycoris(tmp_path, layer):
    lycoris = pytest.importorskip("lycoris.modules.full")
    model, x = made(layer)
    trained = copy.deepcopy(model.layer)
    module = lycoris.FullModule("layer", trained, 1.0)
    randomized(module)
    with torch.no_grad():
        module.apply_to()
        want = trained(x)
        state = module.state_dict()
        found = {"diff": state["weight"] - model.layer.weight} if "weight" in state else {"diff": state["diff"]}
        bias = state.get("bias", state.get("diff_b"))
        if bias is not None:
            found["diff_b"] = bias - model.layer.bias if "bias" in state else bias
    path = save(tmp_path / "a.safetensors", {f"lora_unet_layer.{key}": value.clone() for key, value in found.items()})
    assert worst(ours(model, path, x), want) < BOUND


@pytest.mark.parametrize("build", [lambda: nn.LayerNorm(12), lambda: nn.GroupNorm(3, 12)], ids=["layer", "group"])
def test_norms_of_lycoris(tmp_path, build):
    lycoris = pytest.importorskip("lycoris.modules.norms")
    torch.manual_seed(0)
    model, x = Model(build().requires_grad_(False)), torch.randn(2, 12, 12)
    trained = copy.deepcopy(model.layer)
    module = lycoris.NormModule("layer", trained, 1.0)
    randomized(module)
    with torch.no_grad():
        module.apply_to()
        want = trained(x)
    state = {f"lora_unet_layer.{key}": value.detach().clone() for key, value in module.state_dict().items()}
    assert set(state) == {"lora_unet_layer.w_norm", "lora_unet_layer.b_norm"}
    assert worst(ours(model, save(tmp_path / "a.safetensors", state), x), want) < BOUND


def test_a_sparse_residual_changes_the_weight_and_takes_the_scale(tmp_path):
    """17: as AUTOMATIC1111 reads it; not a change of the layer's bias, whatever its name."""
    model, x = made("linear")
    tensors = pair("lora_unet_layer", (20, 12), 4, alpha=2)
    tensors |= {
        "lora_unet_layer.bias_indices": torch.tensor([[3, 3, 19], [0, 11, 5]]),
        "lora_unet_layer.bias_values": torch.tensor([2.0, -1.0, 4.0]),
        "lora_unet_layer.bias_size": torch.tensor([20, 12]),
    }
    residual = torch.zeros(20, 12)
    residual[3, 0], residual[3, 11], residual[19, 5] = 2.0, -1.0, 4.0
    delta = tensors["lora_unet_layer.lora_up.weight"] @ tensors["lora_unet_layer.lora_down.weight"] + residual
    want = nn.functional.linear(x, model.layer.weight + 0.5 * delta, model.layer.bias)
    assert worst(ours(model, save(tmp_path / "a.safetensors", tensors), x), want) < BOUND


def test_a_sparse_residual_of_what_has_no_rank_takes_no_scale(tmp_path):
    """As AUTOMATIC1111's `calc_scale`, whatever alpha there is."""
    model, x = made("linear")
    diff = torch.randn(20, 12, generator=torch.Generator().manual_seed(5))
    tensors = {
        "lora_unet_layer.diff": diff,
        "lora_unet_layer.alpha": torch.tensor(2.0),
        "lora_unet_layer.bias_indices": torch.tensor([[3, 19], [11, 5]]),
        "lora_unet_layer.bias_values": torch.tensor([-1.0, 4.0]),
        "lora_unet_layer.bias_size": torch.tensor([20, 12]),
    }
    changed = copy.deepcopy(model)
    changed.layer.weight += diff
    changed.layer.weight[3, 11] -= 1.0
    changed.layer.weight[19, 5] += 4.0
    assert worst(ours(model, save(tmp_path / "a.safetensors", tensors), x), changed(x)) < BOUND


def test_a_sparse_residual_may_have_the_indices_of_a_kernel(tmp_path):
    """As `to_sparse` of a convolution's weight gives them, (4, n); `bias_size` has its four lengths then."""
    model, x = made("conv")
    shape = tuple(model.layer.weight.shape)
    residual = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    residual[residual.abs() < 1.5] = 0.0
    sparse = residual.to_sparse()
    tensors = {
        **pair("lora_unet_layer", shape, 4, alpha=2),
        "lora_unet_layer.bias_indices": sparse.indices().to(torch.int16),
        "lora_unet_layer.bias_values": sparse.values(),
        "lora_unet_layer.bias_size": torch.tensor(shape, dtype=torch.int16),
    }
    up, down = (tensors[f"lora_unet_layer.lora_{name}.weight"].flatten(1) for name in ("up", "down"))
    changed = copy.deepcopy(model)
    changed.layer.weight += 0.5 * ((up @ down).view(shape) + residual)
    assert worst(ours(model, save(tmp_path / "a.safetensors", tensors), x), changed(x)) < BOUND


def test_the_bias_of_peft_takes_the_scale(tmp_path):
    """22: PEFT's forward scales lora_B's bias by alpha / r; its merge into quantized layers does not."""
    peft = pytest.importorskip("peft")
    model, x = made("linear")
    config = peft.LoraConfig(r=4, lora_alpha=2, target_modules=["layer"], lora_bias=True, init_lora_weights=False)
    wrapped = peft.get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        wrapped.base_model.model.layer.lora_B["default"].bias.normal_()
        want = wrapped(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped.save_pretrained(tmp_path)
    assert worst(ours(model, tmp_path / "adapter_model.safetensors", x), want) < BOUND
