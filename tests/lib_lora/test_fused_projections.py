"""Projections that diffusers fused (`fuse_qkv_projections`, an option of SD.Next): a LoRA acts as it did before."""

from __future__ import annotations

import pytest
import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, load_network
from tests.fakes.files import save

FP32 = 2e-5


def flux() -> tuple[nn.Module, dict[str, object]]:
    model = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        pooled_projection_dim=6,
        axes_dims_rope=(2, 2, 4),
    )
    inputs: dict[str, object] = {
        "hidden_states": torch.randn(1, 9, 4),
        "encoder_hidden_states": torch.randn(1, 5, 12),
        "pooled_projections": torch.randn(1, 6),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(9, 3),
        "txt_ids": torch.zeros(5, 3),
        "return_dict": False,
    }
    return model, inputs


def unet() -> tuple[nn.Module, dict[str, object]]:
    model = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    inputs: dict[str, object] = {
        "sample": torch.randn(1, 4, 8, 8),
        "timestep": 5,
        "encoder_hidden_states": torch.randn(1, 7, 24),
        "return_dict": False,
    }
    return model, inputs


MODELS = {"transformer": (flux, "to_qkv"), "unet": (unet, "to_kv")}


@pytest.mark.parametrize("component", MODELS)
def test_the_same_before_and_after_they_are_fused(component, tmp_path):
    torch.manual_seed(0)
    build, joint = MODELS[component]
    model, inputs = build()
    names = [path for path, layer in model.named_modules() if isinstance(layer, nn.Linear) and "attn" in path]
    path = save(tmp_path / "a.safetensors", lora(component, model, names))
    engine = Engine({component: model})

    def run(stack: Stack) -> Tensor:
        engine.activate(stack)
        with torch.no_grad():
            return model(**inputs)[0]

    base, expected = run(Stack()), run(Stack([Entry(path, 0.7)]))
    assert (expected - base).abs().max() > 0.01 * base.abs().max()
    model.fuse_qkv_projections()
    with torch.no_grad():  # while the stack is in force
        assert (model(**inputs)[0] - expected).abs().max() <= FP32 * expected.abs().max()
    assert any(name.endswith(joint) for name, _ in model.named_modules())
    report = engine.activate(Stack([Entry(path, 0.7)])).entries[0]
    assert (report.hit, report.unused) == (len(names), ())
    assert (run(Stack([Entry(path, 0.7)])) - expected).abs().max() <= FP32 * expected.abs().max()
    assert (run(Stack()) - base).abs().max() <= FP32 * base.abs().max()
    engine.activate(Stack([Entry(path, 0.7)]))
    model.unfuse_qkv_projections()
    with torch.no_grad():
        assert torch.equal(model(**inputs)[0], expected)
    assert torch.equal(run(Stack([Entry(path, 0.7)])), expected)
    engine.close()


def lora(component: str, model: nn.Module, names: list[str]) -> dict[str, Tensor]:
    tensors = {}
    for name in names:
        out, inside = model.get_submodule(name).weight.shape
        tensors[f"{component}.{name}.lora_A.weight"] = torch.randn(3, inside) * inside**-0.5
        tensors[f"{component}.{name}.lora_B.weight"] = torch.randn(out, 3) * 0.3
    return tensors


@pytest.mark.parametrize("fuse", [False, True])
def test_a_lora_that_was_trained_on_fused_projections(fuse, tmp_path):
    """On a model that is not fused, and on one that is."""
    model, _ = flux()
    if fuse:
        model.fuse_qkv_projections()
    tensors, names = {}, ("transformer_blocks.0.attn", "single_transformer_blocks.0.attn")
    for name in [f"{one}.to_qkv" for one in names] + ["transformer_blocks.0.attn.to_added_qkv"]:
        tensors[f"transformer.{name}.lora_A.weight"] = torch.randn(3, 16)
        tensors[f"transformer.{name}.lora_B.weight"] = torch.randn(48, 3)
    network = load_network(save(tmp_path / "a.safetensors", tensors), {"transformer": model})
    assert (network.report.hit, network.report.unused) == (3, ())
    whole = network.delta_weight("transformer", "transformer_blocks.0.attn.to_k")
    key = "transformer.transformer_blocks.0.attn.to_qkv.lora"
    expected = tensors[f"{key}_B.weight"][16:32] @ tensors[f"{key}_A.weight"]
    assert (whole - expected).abs().max() <= FP32 * expected.abs().max()


class Joined(nn.Module):
    """nunchaku's attention of SDXL: made with one layer for queries, keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(16, 3 * width)
        self.to_out = nn.ModuleList([nn.Linear(width, 16), nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out[0](sum(self.to_qkv(x).chunk(3, -1)))


def test_a_projection_that_was_made_fused_takes_a_lora_of_its_parts(tmp_path):
    torch.manual_seed(0)
    model, x = nn.ModuleDict({"attn1": Joined(8)}), torch.randn(2, 16)
    attention, pair = model["attn1"], (torch.randn(3, 16), torch.randn(8, 3))
    tensors = {"unet.attn1.to_k.lora_A.weight": pair[0], "unet.attn1.to_k.lora_B.weight": pair[1]}
    file = save(tmp_path / "a.safetensors", tensors)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file, 0.5)]))
    changed, whole = attention(x), attention.to_qkv(x)
    engine.deactivate()
    delta = whole - attention.to_qkv(x)
    assert delta[:, :8].abs().max() == delta[:, 16:].abs().max() == 0
    assert (delta[:, 8:16] - 0.5 * x @ pair[0].t() @ pair[1].t()).abs().max() <= FP32 * delta.abs().max()
    assert not torch.equal(changed, attention(x))
    attention.to_out[0] = nn.Linear(12, 16)  # a layer of other sizes than those of three equal parts
    assert load_network(file, {"unet": model}).report.hit == 0
