"""Multiplicative kinds do what their trainers' own forward does, on files that the trainers' own code writes.

LyCORIS' is the forward that is not its bypass, PEFT's the one of a model with the adapter on it. Where that is known to
be wrong (PEFT's OFT on a kernel adds up overlapping patches) it is PEFT's merged weight.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.fakes.contract import worst
from tests.fakes.files import save
from tests.fakes.layers import Model

BOUND = 2e-6
"""Largest difference over the largest value; both sides compute in fp32."""


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(24, 48), (3, 7, 24)),
    "linear, square": (lambda: nn.Linear(24, 24), (3, 7, 24)),
    "conv": (lambda: nn.Conv2d(8, 24, 3, padding=1, stride=2), (2, 8, 9, 7)),
    "conv, square": (lambda: nn.Conv2d(12, 12, 3, padding=1), (2, 12, 5, 7)),
    "conv 1x1": (lambda: nn.Conv2d(24, 48, 1), (2, 24, 5, 7)),
    "conv 1-d": (lambda: nn.Conv1d(8, 24, 5), (2, 8, 9)),
}


def make(name: str) -> tuple[Model, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        build, size = LAYERS[name]
        return Model(build()).requires_grad_(False), torch.randn(size)


def check(model: Model, x: Tensor, path: Any, want: Tensor, multiplier: float = 1.0) -> None:
    """Check that a file on a model gives the trainer's output, which differs from the base's."""
    with torch.no_grad():
        plain = model(x)
        served = Engine({"unet": model})
        report = served.activate(Stack([Entry(path, multiplier)])).entries[0]
        assert report.hit == 1, report
        assert not report.unused
        got = model(x)
    assert worst(got, want) < BOUND
    assert worst(got, plain) > 1e-2


# module of LyCORIS, its arguments
LYCORIS = {
    "diag-oft": ("DiagOFTModule", {"lora_dim": 6}),
    "diag-oft of other blocks": ("DiagOFTModule", {"lora_dim": 3}),
    "diag-oft bounded": ("DiagOFTModule", {"lora_dim": 4, "constraint": 0.02}),
    "diag-oft rescaled": ("DiagOFTModule", {"lora_dim": 6, "rescaled": True}),
    "boft": ("ButterflyOFTModule", {"lora_dim": 6}),
    "boft bounded": ("ButterflyOFTModule", {"lora_dim": 12, "constraint": 0.02}),
    "boft rescaled": ("ButterflyOFTModule", {"lora_dim": 6, "rescaled": True}),
    "ia3": ("IA3Module", {}),
    "ia3 on the input": ("IA3Module", {"train_on_input": True}),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("kind", "multiplier"),
    # a rescale LyCORIS leaves as it is at any multiplier: test_disagreements_rotations.py
    [
        (kind, m)
        for kind, (_, arguments) in LYCORIS.items()
        for m in (1.0, 0.6)
        if m == 1 or "rescaled" not in arguments
    ],
)
def test_t16_forward_of_lycoris(tmp_path, kind, layer, multiplier):
    lycoris = pytest.importorskip("lycoris")
    if kind.startswith("boft"):
        pytest.importorskip("lycoris.modules.tlora", reason="BOFT of LyCORIS before 4 fails")
    name, arguments = LYCORIS[kind]
    base, x = make(layer)
    trained = copy.deepcopy(base)
    made = getattr(lycoris.modules, name)("layer", trained.layer, multiplier=multiplier, **arguments)
    torch.manual_seed(2)
    for param, value in made.named_parameters():
        value.data.add_(torch.randn_like(value) * (0.3 if param in ("rescale", "weight") else 0.1))
    made.apply_to()
    with torch.no_grad():
        want = trained(x)
    state = {f"lora_unet_layer.{param}": value.detach().clone() for param, value in made.state_dict().items()}
    check(base, x, save(tmp_path / "a.safetensors", state), want, multiplier)


OFT = {"oft_block_size": 6, "r": 0}
# configuration of PEFT, its arguments, layers
PEFT = {
    "oft": ("OFTConfig", OFT, ("linear", "conv 1x1", "conv")),
    "oft, few terms": ("OFTConfig", OFT | {"num_cayley_neumann_terms": 3}, ("linear",)),
    "oft, two terms": ("OFTConfig", OFT | {"num_cayley_neumann_terms": 2}, ("linear",)),
    "oft, more terms": ("OFTConfig", OFT | {"num_cayley_neumann_terms": 7}, ("linear",)),
    "oft, exact": ("OFTConfig", OFT | {"use_cayley_neumann": False}, ("linear", "conv 1x1", "conv")),
    "oft, shared": ("OFTConfig", OFT | {"block_share": True}, ("linear", "conv 1x1", "conv")),
    "oft, constrained": ("OFTConfig", OFT | {"coft": True, "eps": 0.3}, ("linear", "conv")),
    "boft": ("BOFTConfig", {"boft_block_size": 4}, ("linear", "conv 1x1", "conv")),
    "boft of blocks": ("BOFTConfig", {"boft_block_size": 0, "boft_block_num": 3}, ("linear",)),
    "hra": ("HRAConfig", {"r": 4}, ("linear", "conv 1x1", "conv")),
    "hra, odd": ("HRAConfig", {"r": 5}, ("linear", "conv")),
    "hra, orthogonal": ("HRAConfig", {"r": 4, "apply_GS": True}, ("linear", "conv")),
    "ia3": ("IA3Config", {"feedforward_modules": []}, ("linear", "linear, square", "conv", "conv, square")),
    "ia3, feed-forward": (
        "IA3Config",
        {"feedforward_modules": ["layer"]},
        ("linear", "linear, square", "conv", "conv, square"),
    ),
}


def trained_with_peft(config: str, arguments: dict[str, Any], base: Model) -> Any:
    """Return a model with an adapter of PEFT whose parameters differ from their initial values."""
    peft = pytest.importorskip("peft", "0.21")  # earlier ones have other forwards
    begin = {"init_ia3_weights": False} if config == "IA3Config" else {"init_weights": False}
    torch.manual_seed(3)
    made = peft.get_peft_model(
        copy.deepcopy(base), getattr(peft, config)(target_modules=["layer"], **begin, **arguments)
    )
    return made.eval()


@pytest.mark.filterwarnings("ignore::UserWarning")  # each about training or speed
@pytest.mark.parametrize(("kind", "layer"), [(kind, layer) for kind, case in PEFT.items() for layer in case[2]])
def test_forward_of_peft(tmp_path, kind, layer):
    config, arguments, _ = PEFT[kind]
    base, x = make(layer)
    made = trained_with_peft(config, arguments, base)
    made.save_pretrained(tmp_path)
    with torch.no_grad():
        # the forward of OFT on a kernel is not even the layer's own where nothing rotates
        want = made.merge_and_unload()(x) if (config, layer) == ("OFTConfig", "conv") else made(x)
    check(base, x, tmp_path / "adapter_model.safetensors", want)


class _Blocks:
    """What PEFT has compiled for CUDA, without which it trains no second factor."""

    @staticmethod
    def forward(blocks: Tensor) -> list[Tensor]:
        return [torch.stack([torch.block_diag(*one) for one in blocks])]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("factors", [2, 3])
@pytest.mark.parametrize("layer", ["linear", "conv"])
def test_forward_of_peft_with_several_butterfly_factors(tmp_path, monkeypatch, factors, layer):
    pytest.importorskip("peft", "0.21")  # earlier ones have other forwards
    from peft.tuners.boft import layer as peft_boft

    monkeypatch.setattr(peft_boft, "get_fbd_cuda", lambda: _Blocks)
    base, x = make(layer)
    size = {"linear": 6, "conv": 18}[layer]
    made = trained_with_peft("BOFTConfig", {"boft_block_size": size, "boft_n_butterfly_factor": factors}, base)
    made.save_pretrained(tmp_path)
    with torch.no_grad():
        want = made(x)
    check(base, x, tmp_path / "adapter_model.safetensors", want)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize("name", ["linear", "conv 1x1", "conv"])
def test_a_rank_limit_leaves_a_chain_of_reflections_whole(tmp_path, name, mode):
    make, size = LAYERS[name]
    model, x = Model(make()), torch.randn(size)
    inside = model.layer.weight[0].numel()
    path = save(tmp_path / "a.safetensors", {"base_model.model.layer.hra_u": torch.randn(inside, 4)})
    outputs = []
    for rank in (None, 2):
        with Engine({"unet": model}) as engine:
            engine.activate(Stack([Entry(path, rank=rank)], mode=mode))
            outputs.append(model(x))
    assert torch.equal(*outputs)
