"""Kinds of PEFT do what PEFT's own forward does, on files that PEFT saved: live and merged, and two at once.

`docs/adapters.md` has the errors.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib_lora import Engine, Entry, Stack
from tests.fakes.contract import run, worst
from tests.fakes.layers import Model, make

BOUND = 1e-9
"""Largest difference over the largest value; both sides compute in fp64."""
SINGLE = 2e-6
"""The same where PEFT computes in fp32."""

# configuration of PEFT, its arguments, layers, bound
KINDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], float]] = {
    "miss": ("MissConfig", {"r": 4}, ("linear", "square linear, 4-d"), BOUND),
    "miss, r no divisor": ("MissConfig", {"r": 5}, ("linear",), BOUND),
    "miss, mini": ("MissConfig", {"r": 4, "init_weights": "mini", "mini_r": 8}, ("linear",), BOUND),
    "miss, bat": ("MissConfig", {"r": 4, "init_weights": "bat"}, ("linear", "square linear, 4-d"), BOUND),
    "fourierft": ("FourierFTConfig", {"n_frequency": 60}, ("linear",), SINGLE),
    "fourierft, other seed": (
        "FourierFTConfig",
        {"n_frequency": 60, "random_loc_seed": 5, "scaling": 90.0},
        ("linear",),
        SINGLE,
    ),
    "hira": ("HiraConfig", {"r": 4}, ("linear", "conv 3x3, stride", "conv 1x1", "conv 1-d", "embedding"), BOUND),
    "c3a": ("C3AConfig", {"block_size": 8}, ("linear", "linear, many tokens"), SINGLE),
    "randlora": ("RandLoraConfig", {"r": 5}, ("linear", "linear, many tokens", "square linear, 4-d"), BOUND),
    "randlora, sparse": ("RandLoraConfig", {"r": 4, "sparse": True}, ("linear",), BOUND),
    "road 1": ("RoadConfig", {"variant": "road_1", "group_size": 8}, ("linear",), BOUND),
    "road 2": ("RoadConfig", {"variant": "road_2", "group_size": 4}, ("linear", "square linear, 4-d"), BOUND),
    "road 4": ("RoadConfig", {"variant": "road_4", "group_size": 6}, ("linear", "linear, many tokens"), BOUND),
    "waveft": ("WaveFTConfig", {"n_frequency": 60}, ("linear",), BOUND),
    **{
        f"waveft, {name}": ("WaveFTConfig", {"n_frequency": 60, "wavelet_family": name}, ("linear",), BOUND)
        for name in ("db2", "db7", "sym4", "coif2")
    },
    "waveft, no wavelets": ("WaveFTConfig", {"n_frequency": 60, "use_idwt": False}, ("linear",), BOUND),
    "ln_tuning": ("LNTuningConfig", {}, ("layer norm", "rms norm", "linear"), BOUND),
    "trainable_tokens": ("TrainableTokensConfig", {"token_indices": [3, 1, 40]}, ("embedding",), BOUND),
    "shira": ("ShiraConfig", {"r": 2}, ("linear",), BOUND),
    "delora": ("DeloraConfig", {"r": 4}, ("linear",), BOUND),
    "gralora": ("GraloraConfig", {"r": 4, "gralora_k": 2}, ("linear",), BOUND),
    "gralora, hybrid": ("GraloraConfig", {"r": 8, "gralora_k": 4, "hybrid_r": 3, "alpha": 20}, ("linear",), BOUND),
    "vblora": ("VBLoRAConfig", {"r": 4, "num_vectors": 10, "vector_length": 4}, ("linear",), BOUND),
    "vblora, only the largest": (
        "VBLoRAConfig",
        {"r": 4, "num_vectors": 10, "vector_length": 4, "topk": 3, "save_only_topk_weights": True},
        ("linear",),
        BOUND,
    ),
}
CASES = [(kind, layer) for kind, case in KINDS.items() for layer in case[2]]


def trained(kind: str, base: Model, seed: int) -> Any:
    """A model of PEFT with an adapter that is not what it begins with."""
    peft = pytest.importorskip("peft", "0.21")  # earlier ones have other forwards
    name, arguments, _, _ = KINDS[kind]
    torch.manual_seed(seed)
    made = peft.get_peft_model(copy.deepcopy(base), getattr(peft, name)(target_modules=["layer"], **arguments))
    made = made.double().eval()
    for parameter in made.parameters():
        if parameter.requires_grad:
            size = 0.3 * max(parameter.detach().std().item(), 0.5) if parameter.numel() > 1 else 0.3
            parameter.data.add_(torch.randn_like(parameter) * size)
    return made


def saved(made: Any, folder: Path) -> Path:
    made.save_pretrained(folder)
    return folder / "adapter_model.safetensors"


def served(base: Model, x: Tensor, *entries: Entry, mode: str = "live") -> Tensor:
    """The output with files in force, none of whose keys is unused."""
    engine = Engine({"unet": base})
    report = engine.activate(Stack(list(entries), mode=mode))
    for one in report.entries:
        assert one.hit == 1, one
        assert not one.unused, one.unused
    got = run(base, x)
    engine.deactivate()
    return got


@pytest.mark.filterwarnings("ignore::UserWarning")  # each about training
@pytest.mark.parametrize(("kind", "layer"), CASES)
def test_forward_of_peft(tmp_path, kind, layer, record_property):
    base, x = make(layer)
    bound = KINDS[kind][3]
    plain = run(base, x)
    one, other = (trained(kind, base, seed) for seed in (1, 2))
    first, second = run(one, x) - plain, run(other, x) - plain
    paths = [saved(made, tmp_path / str(i)) for i, made in enumerate((one, other))]
    errors = {
        0.5: worst(served(base, x, Entry(paths[0], 0.5)), plain + 0.5 * first),
        1.0: worst(served(base, x, Entry(paths[0])), plain + first),
        "merged": worst(served(base, x, Entry(paths[0], 0.5), mode="merged"), plain + 0.5 * first),
        "two": worst(served(base, x, Entry(paths[0], 0.5), Entry(paths[1])), plain + 0.5 * first + second),
    }
    record_property("error", max(errors.values()))
    assert max(errors.values()) < bound, errors
    assert worst(plain + first, plain) > 1e-2, "the adapter must show"
    assert torch.equal(run(base, x), plain)
