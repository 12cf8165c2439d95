"""The trainers' own forward as the judge: what a file of theirs does here is what their module did.

LyCORIS is asked for its forward with the rebuilt weight: its merging and its bypass have had errors of their own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Reading, Stack
from tests.covering import some_of
from tests.fakes.contract import worst
from tests.fakes.files import save
from tests.fakes.layers import Model, make

BOUND = 1e-6
"""Largest error over the largest value, in fp64, of files in fp32."""
SINGULAR = 1e-5
"""The same where LyCORIS takes singular vectors of the weight in fp32."""


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def randomize(module: nn.Module) -> None:
    """Training, in a word; in numbers that fp32 holds, as the file will."""
    for parameter in module.parameters():
        parameter.data = (torch.randn(parameter.shape) * 0.4).to(parameter.dtype)


def served(model: Model, path: Path, x: Tensor, multiplier: float) -> Tensor:
    engine = Engine({"unet": model})
    report = engine.activate(Stack([Entry(path, multiplier)], reading=Reading(dylora_as_trained=True)))
    assert not report.entries[0].unused
    result = run(model, x)
    engine.deactivate()
    return result


# algorithm -> module of LyCORIS, arguments, kinds of layer
LYCORIS: dict[str, tuple[str, dict[str, object], str]] = {
    "lora": ("locon.LoConModule", {}, "linear conv"),
    "lora tucker": ("locon.LoConModule", {"use_tucker": True}, "conv"),
    "rs-lora": ("locon.LoConModule", {"rs_lora": True}, "linear"),
    "loha": ("loha.LohaModule", {}, "linear conv"),
    "loha, many ranks": ("loha.LohaModule", {"lora_dim": 9}, "linear conv"),
    "loha tucker": ("loha.LohaModule", {"use_tucker": True}, "conv"),
    "rs-loha": ("loha.LohaModule", {"rs_lora": True}, "linear"),
    "lokr": ("lokr.LokrModule", {"lora_dim": 2}, "linear conv"),
    "lokr both": ("lokr.LokrModule", {"lora_dim": 1, "decompose_both": True, "factor": 4}, "linear conv"),
    "lokr full": ("lokr.LokrModule", {"full_matrix": True}, "linear conv"),
    "lokr full w2": ("lokr.LokrModule", {"lora_dim": 7, "factor": 4}, "linear conv"),
    "lokr tucker": ("lokr.LokrModule", {"lora_dim": 2, "use_tucker": True, "factor": 2}, "conv"),
    "lokr unbalanced": ("lokr.LokrModule", {"lora_dim": 2, "unbalanced_factorization": True}, "linear conv"),
    "rs-lokr": ("lokr.LokrModule", {"lora_dim": 2, "rs_lora": True}, "linear"),
    "glora": ("glora.GLoRAModule", {}, "linear conv"),
    "rs-glora": ("glora.GLoRAModule", {"rs_lora": True}, "linear"),
    "dylora": ("dylora.DyLoraModule", {"block_size": 2}, "linear conv"),
    "tlora": ("tlora.TLoraModule", {}, "linear"),
    "tlora last": ("tlora.TLoraModule", {"sig_type": "last"}, "linear"),
}
LAYERS = {"linear": ["linear", "square linear, 4-d"], "conv": ["conv 3x3, stride", "conv 1x1", "conv 1-d"]}


@some_of(
    ("case", "layer", "multiplier"),
    [
        pytest.param(case, layer)
        for case, (_, _, kinds) in LYCORIS.items()
        for kind in kinds.split()
        for layer in LAYERS[kind]
    ],
    [1.0, 0.6],
    strength=1,
)
def test_t16_lycoris(tmp_path, monkeypatch, case, layer, multiplier):
    pytest.importorskip("lycoris")
    base, x = make(layer)
    name, arguments, _ = LYCORIS[case]
    module = lycoris_module(name, copy.deepcopy(base.layer), {"lora_dim": 4, "alpha": 3, **arguments}, multiplier)
    monkeypatch.setattr("random.randint", lambda low, high: high)  # DyLoRA: all blocks, none by chance
    want = run(module, x)
    path = saved(tmp_path, module.custom_state_dict(), arguments | {"algo": case.split()[0].removeprefix("rs-")})
    bound = SINGULAR if case.startswith("tlora") else BOUND
    assert worst(served(base, path, x, multiplier), want) < bound
    assert worst(run(base, x), want) > 1e-2, "the adapter must show"


def lycoris_module(name: str, layer: nn.Module, arguments: dict[str, object], multiplier: float) -> nn.Module:
    file, _, kind = name.partition(".")
    make_module: Callable[..., nn.Module] = getattr(pytest.importorskip(f"lycoris.modules.{file}"), kind)
    module = make_module("layer", layer, multiplier=multiplier, **arguments).double()
    randomize(module)
    return module.eval()


def saved(folder: Path, state: dict[str, Tensor], arguments: dict[str, object]) -> Path:
    tensors = {f"lycoris_layer.{key}": value.detach().float().clone() for key, value in state.items()}
    metadata = {"ss_network_module": "lycoris.kohya", "ss_network_args": json.dumps(arguments)}
    return save(folder / "a.safetensors", tensors, metadata)


# configuration of PEFT, its arguments, layers
PEFT: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "lora": ("LoraConfig", {"r": 4, "lora_alpha": 6}, ["linear", "conv 3x3, stride", "embedding"]),
    "rs-lora": ("LoraConfig", {"r": 4, "lora_alpha": 6, "use_rslora": True}, ["linear", "embedding"]),
    "adalora": (
        "AdaLoraConfig",
        {"init_r": 4, "target_r": 2, "lora_alpha": 6, "total_step": 10, "tinit": 1, "tfinal": 1},
        ["linear", "conv 3x3, stride"],
    ),
    "loha": ("LoHaConfig", {"r": 3, "alpha": 5}, ["linear", "conv 3x3, stride", "conv 1-d"]),
    "loha effective": (
        "LoHaConfig",
        {"r": 3, "alpha": 5, "use_effective_conv2d": True},
        ["conv 3x3, stride", "conv 1x1"],
    ),
    "lokr": ("LoKrConfig", {"r": 2, "alpha": 5}, ["linear", "conv 3x3, stride", "conv 1-d"]),
    "lokr both": (
        "LoKrConfig",
        {"r": 1, "alpha": 5, "decompose_both": True, "decompose_factor": 4},
        ["linear", "conv 3x3, stride"],
    ),
    "lokr full": ("LoKrConfig", {"r": 16, "alpha": 5}, ["linear", "conv 3x3, stride"]),
    "lokr effective": (
        "LoKrConfig",
        {"r": 2, "alpha": 5, "use_effective_conv2d": True},
        ["conv 3x3, stride"],
    ),
    "vera": ("VeraConfig", {"r": 4}, ["linear"]),
}


@pytest.mark.parametrize(
    ("case", "layer"), [(case, layer) for case, (_, _, layers) in PEFT.items() for layer in layers]
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # each about training
def test_peft(tmp_path, case, layer):
    peft = pytest.importorskip("peft", "0.21")  # earlier ones have other forwards
    base, x = make(layer)
    name, arguments, _ = PEFT[case]
    config = getattr(peft, name)(target_modules=["layer"], **arguments)
    trained = peft.get_peft_model(copy.deepcopy(base), config).double().eval()
    randomize_trained(trained)
    want = run(trained, x)
    trained.save_pretrained(tmp_path)
    assert worst(served(base, tmp_path / "adapter_model.safetensors", x, 1.0), want) < BOUND
    assert worst(run(base, x), want) > 1e-2, "the adapter must show"


def test_adalora_after_pruning(tmp_path):
    """PEFT divides by the rank that training began with, whatever is left of it."""
    peft = pytest.importorskip("peft", "0.21")  # earlier ones have other forwards
    base, x = make("linear")
    config = peft.AdaLoraConfig(
        init_r=4, target_r=2, lora_alpha=6, total_step=10, tinit=1, tfinal=1, target_modules=["layer"]
    )
    trained = peft.get_peft_model(copy.deepcopy(base), config).double().eval()
    randomize_trained(trained)
    kept = [True, False, True, False]
    trained.base_model.model.layer.lora_E["default"].data[~torch.tensor(kept)] = 0
    want = run(trained, x)
    trained.peft_config["default"].rank_pattern = {"layer.lora_E.default": kept}
    trained.save_pretrained(tmp_path)
    assert worst(served(base, tmp_path / "adapter_model.safetensors", x, 1.0), want) < BOUND


def randomize_trained(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if "base_layer" not in name and "ranknum" not in name:
            parameter.data = (torch.randn(parameter.shape) * 0.4).to(parameter.dtype)
