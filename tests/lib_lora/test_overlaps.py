"""Files that have a layer as one and in parts, too: whatever the model is like, no row is changed twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lib_lora import load_network
from tests.fakes.files import save

pytestmark = pytest.mark.usefixtures("names_of_every_family")

WIDTH, RANK = 8, 2
FUSED = "transformer_blocks.0.attn.to_qkv"
PARTS = tuple(f"transformer_blocks.0.attn.to_{part}" for part in "qkv")


def model(fused: bool) -> nn.Module:
    """Return an attention of Krea 2 before or after `fuse_projections`, on meta; as many keys as queries."""
    names = {"to_qkv": 3 * WIDTH} if fused else dict.fromkeys(("to_q", "to_k", "to_v"), WIDTH)
    with torch.device("meta"):
        attention = nn.ModuleDict({name: nn.Linear(WIDTH, out) for name, out in names.items()})
        return nn.ModuleDict({"transformer_blocks": nn.ModuleList([nn.ModuleDict({"attn": attention})])})


def lora(layer: str, out: int, value: float) -> dict[str, Tensor]:
    return {
        f"diffusion_model.{layer}.lora_A.weight": torch.ones(RANK, WIDTH),
        f"diffusion_model.{layer}.lora_B.weight": torch.full((out, RANK), value),
    }


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_layer_comes_before_its_parts(fused, tmp_path):
    """SimpleTuner saves empty parts beside what it trained; by their names, some of them come first."""
    tensors = lora(FUSED, 3 * WIDTH, 1.0)
    for part in PARTS:
        tensors |= lora(part, WIDTH, 0.0)
    network = load_network(save(tmp_path / "both.safetensors", tensors), {"transformer": model(fused)})
    assert torch.equal(network.delta_weight("transformer", FUSED), torch.full((3 * WIDTH, WIDTH), float(RANK)))
    for part in PARTS:
        assert torch.equal(network.delta_weight("transformer", part), torch.full((WIDTH, WIDTH), float(RANK)))
    reasons = network.report.reasons()
    assert all(reason.startswith("a second adapter for transformer.transformer_blocks.0.attn.") for reason in reasons)
    assert sorted(key for keys in reasons.values() for key in keys) == sorted(
        key for part in PARTS for key in lora(part, WIDTH, 0.0)
    )


@pytest.mark.parametrize("fused", [True, False])
def test_parts_alone_are_all_used(fused, tmp_path):
    """Rows of one weight that do not meet are no second adapters."""
    tensors: dict[str, Tensor] = {}
    for number, part in enumerate(PARTS, 1):
        tensors |= lora(part, WIDTH, float(number))
    network = load_network(save(tmp_path / "parts.safetensors", tensors), {"transformer": model(fused)})
    assert network.report.unused == ()
    assert (network.report.hit, network.report.changed) == (3, 1 if fused else 3)
    whole = network.delta_weight("transformer", FUSED)
    assert whole[:, 0].tolist() == [float(RANK * number) for number in (1, 2, 3) for _ in range(WIDTH)]
