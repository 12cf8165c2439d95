"""Adapters of every kind for one layer, made by the library that trains them, and what it does with them itself."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
from lycoris import create_lycoris
from torch import Tensor, nn

logging.getLogger("LyCORIS").setLevel(logging.ERROR)  # it tells of every layer

BLOCK = 32
"""Of rotations, about: each library takes a divisor near it."""
NOISE = 0.2
"""Standard deviation of what is added to parameters that are initialised so that they change nothing."""


class OneLayer(nn.Module):
    """A model of one layer, called `layer`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's weight."""
        output: Tensor = self.layer(x)
        return output


@dataclass(frozen=True, slots=True)
class Peer:
    """What another library makes of an adapter that it trained."""

    name: str
    file: Path
    """The adapter, as the library saves it."""
    run: Callable[[Tensor], Tensor]
    """How it applies it beside the layer, if it can, else as it was trained."""
    trained: Callable[[Tensor], Tensor]
    """The forward that the adapter was trained with, which is what it means."""
    modules: tuple[nn.Module, ...]
    """All that it computes with."""


Maker = Callable[[OneLayer, int, Path], Peer]
"""Makes an adapter of a rank for a model of one layer, of which it may take possession, in a folder."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of adapter, in the form that is measured."""

    make: Maker
    faster: bool = False
    """Whether ours is meant to be faster than the peer."""
    layers: tuple[str, ...] = ("linear", "conv")
    """Those that the peer has it for."""


def twin(model: OneLayer, *, share: bool = True) -> OneLayer:
    """Return another model, over the same weights or over copies of them."""
    shared = {id(value): value for value in model.parameters()} if share else {}
    return copy.deepcopy(model, shared)


def _disturb(parameters: Mapping[str, nn.Parameter]) -> None:
    """Make adapters show that change nothing as they are initialised."""
    some = torch.Generator().manual_seed(2)
    for parameter in parameters.values():
        noise = torch.randn(parameter.shape, generator=some) * NOISE
        parameter.data.add_(noise.to(parameter))


def _lycoris(model: OneLayer, rank: int, folder: Path, *, bypass: bool = True, **arguments: object) -> Peer:
    dtype = next(model.parameters()).dtype
    settings = {"linear_dim": rank, "linear_alpha": rank / 2, "bypass_mode": bypass, **arguments}
    settings |= {"conv_dim": settings["linear_dim"], "conv_alpha": settings["linear_alpha"]}
    network = create_lycoris(model, 1.0, **settings)
    network.apply_to()
    network.to(dtype).eval().requires_grad_(False)
    _disturb(dict(network.named_parameters()))
    network.save_weights(str(folder / "lycoris.safetensors"), torch.float32, {})
    (adapter,) = network.loras

    def run(x: Tensor, *, bypass: bool) -> Tensor:
        adapter.bypass_mode = bypass
        with torch.no_grad():
            return model.forward(x)

    name = "LyCORIS" if bypass else "LyCORIS, weight"
    return Peer(
        name, folder / "lycoris.safetensors", partial(run, bypass=bypass), partial(run, bypass=False), (model, network)
    )


def _peft(model: OneLayer, folder: Path, *, config: str, **arguments: Any) -> Peer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # each about training
        made = peft.get_peft_model(model, getattr(peft, config)(target_modules=["layer"], **arguments))
    made.to(next(model.parameters()).dtype).eval()
    _disturb({name: value for name, value in made.named_parameters() if value.requires_grad})
    made.requires_grad_(False)
    made.save_pretrained(str(folder))

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model.forward(x)

    return Peer("PEFT", folder / "adapter_model.safetensors", run, run, (model,))


def lycoris(**arguments: object) -> Maker:
    """Train a kind of LyCORIS with these arguments of `create_lycoris`."""
    return partial(_lycoris, **arguments)  # type: ignore[arg-type]


def of_peft(config: str, rank: str | None = None, **arguments: object) -> Maker:
    """Train a kind of PEFT; `rank` names the field of its configuration that holds the rank."""

    def make(model: OneLayer, number: int, folder: Path) -> Peer:
        ranked = {} if rank is None else {rank: number}
        return _peft(model, folder, config=config, **ranked, **arguments)

    return make


KINDS = {
    "lora": Kind(lycoris(algo="lora")),
    "dora": Kind(of_peft("LoraConfig", "r", use_dora=True)),
    "dora columns": Kind(lycoris(algo="lora", dora_wd=True, wd_on_output=False, bypass=False)),
    "loha": Kind(lycoris(algo="loha")),
    "loha rank 4": Kind(lycoris(algo="loha", linear_dim=4, linear_alpha=2)),
    "lokr": Kind(lycoris(algo="lokr", factor=8), faster=True),
    "lokr full": Kind(lycoris(algo="lokr", factor=8, full_matrix=True), faster=True),
    "glora": Kind(lycoris(algo="glora")),
    "ia3": Kind(lycoris(algo="ia3")),
    "full": Kind(lycoris(algo="full", bypass=False)),
    "diag-oft": Kind(lycoris(algo="diag-oft", linear_dim=BLOCK), faster=True),
    "boft": Kind(lycoris(algo="boft", linear_dim=BLOCK), faster=True),
    "oft of PEFT": Kind(of_peft("OFTConfig", oft_block_size=BLOCK), layers=("linear",)),
    "boft of PEFT": Kind(of_peft("BOFTConfig", boft_block_size=BLOCK)),
    "hra": Kind(of_peft("HRAConfig", "r")),
    "vera": Kind(of_peft("VeraConfig", "r"), layers=("linear",)),
}

_LINEAR = ("linear",)
OF_PEFT = {
    "LORA": Kind(of_peft("LoraConfig", "r")),
    "ADALORA": Kind(of_peft("AdaLoraConfig", "init_r", total_step=10)),
    "LOHA": Kind(of_peft("LoHaConfig", "r")),
    "LOKR": Kind(of_peft("LoKrConfig", "r")),
    "IA3": Kind(of_peft("IA3Config", feedforward_modules=[])),
    "PVERA": Kind(of_peft("PveraConfig", "r"), layers=_LINEAR),
    "MISS": Kind(of_peft("MissConfig", "r"), layers=_LINEAR),
    "MISS with `bat`": Kind(of_peft("MissConfig", "r", init_weights="bat"), layers=_LINEAR),
    "FOURIERFT": Kind(of_peft("FourierFTConfig", n_frequency=1000), layers=_LINEAR),
    "HIRA": Kind(of_peft("HiraConfig", "r")),
    "C3A": Kind(of_peft("C3AConfig", block_size=BLOCK), layers=_LINEAR),
    "RANDLORA": Kind(of_peft("RandLoraConfig", "r"), layers=_LINEAR),
    "ROAD": Kind(of_peft("RoadConfig", variant="road_1", group_size=BLOCK), layers=_LINEAR),
    "SHIRA": Kind(of_peft("ShiraConfig", "r"), layers=_LINEAR),
    "SUPERTUNING": Kind(of_peft("SupertuningConfig", sparsity=0.9), layers=_LINEAR),
    "DELORA": Kind(of_peft("DeloraConfig", "r"), layers=_LINEAR),
    "GRALORA": Kind(of_peft("GraloraConfig", "r", gralora_k=2), layers=_LINEAR),
    "VBLORA": Kind(of_peft("VBLoRAConfig", "r", num_vectors=256, vector_length=BLOCK), layers=_LINEAR),
    "UNILORA": Kind(of_peft("UniLoraConfig", "r", theta_d_length=256, save_indices=True), layers=_LINEAR),
    "DEFT": Kind(of_peft("DeftConfig", "r"), layers=_LINEAR),
    "GLORA": Kind(of_peft("GloraConfig", "r"), layers=_LINEAR),
    "PEANUT": Kind(of_peft("PeanutConfig", "r"), layers=_LINEAR),
    "WAVEFT": Kind(of_peft("WaveFTConfig", n_frequency=1000), layers=_LINEAR),
    "BEFT": Kind(of_peft("BeftConfig"), layers=_LINEAR),
    "LN_TUNING": Kind(of_peft("LNTuningConfig")),
}
"""PEFT's other kinds, by their names in its registry; they are counted, and not timed."""
