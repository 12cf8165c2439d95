"""The training loop that everything here shares: seeded, resumable, with a progress bar and a table of the loss."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import parametrize
from tqdm import tqdm

_KEEP_EVERY = 120.0  # seconds between checkpoints
_LOG_EVERY = 10  # steps
Loss = Callable[[Generator], Tensor]
"""Computes the loss of one batch, drawn by the generator alone: a step's batch depends on seed and step, no more."""


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    name: str
    steps: int
    rate: float
    """Highest learning rate; it rises over `warmup` steps and falls to nothing along a cosine."""
    matrix_rate: float = 0.0
    """The same for weights of linear and convolutional layers, by Muon (Jordan et al. 2024); 0 is AdamW for all."""
    warmup: int = 100
    decay: float = 0.0
    """Of AdamW."""
    average: float = 0.0
    """Of the running mean of the weights, which is what remains in the end; 0 is none."""
    seed: int = 0


@dataclass
class Trainer:
    """Trains the parameters of `modules` that ask for gradients, and keeps what it did in `folder`."""

    plan: Plan
    modules: Sequence[nn.Module]
    folder: Path

    def __post_init__(self) -> None:
        self.flattened = _flatten(self.modules) if self.plan.matrix_rate else []
        self.parameters = [p for module in self.modules for p in module.parameters() if p.requires_grad]
        self.optimizers = self._optimizers()
        self.means = [p.detach().clone() for p in self.parameters] if self.plan.average else []
        self.step = 0
        self.losses: list[tuple[int, float]] = []
        self._resume()

    def _optimizers(self) -> list[tuple[float, torch.optim.Optimizer]]:
        """Return optimizers with their highest rates."""
        plan = self.plan
        matrices = [layer.get_parameter("parametrizations.weight.original") for layer in self.flattened]
        chosen = {id(matrix) for matrix in matrices}
        others = [p for p in self.parameters if id(p) not in chosen]
        adam = torch.optim.AdamW(others, plan.rate, weight_decay=plan.decay, fused=True)
        if not matrices:
            return [(plan.rate, adam)]
        muon = torch.optim.Muon(matrices, plan.matrix_rate, weight_decay=plan.decay, adjust_lr_fn="match_rms_adamw")
        return [(plan.rate, adam), (plan.matrix_rate, muon)]

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.plan.name}.ckpt"

    def run(self, loss: Loss, look: Callable[[], None] | None = None) -> None:
        """Train to the end of the plan; `look` is called at each checkpoint, with the mean weights in place."""
        if self.step < self.plan.steps:
            self._go_on(loss, look)
        self._swap()
        for layer in self.flattened:
            parametrize.remove_parametrizations(layer, "weight")

    def _go_on(self, loss: Loss, look: Callable[[], None] | None) -> None:
        kept, recent = time.monotonic(), 0.0
        steps = range(self.step, self.plan.steps)
        bar = tqdm(steps, total=self.plan.steps, initial=self.step, desc=self.plan.name, mininterval=2)
        for step in bar:
            value = self._update(step, loss)
            recent = value if not recent else 0.98 * recent + 0.02 * value
            self.step = step + 1
            if step % _LOG_EVERY == 0:
                self.losses.append((step, recent))
                bar.set_postfix(loss=f"{recent:.4f}", refresh=False)
            if time.monotonic() - kept > _KEEP_EVERY or self.step == self.plan.steps:
                self._keep()
                self._show(look)
                kept = time.monotonic()

    def _update(self, step: int, loss: Loss) -> float:
        value = loss(Generator().manual_seed(self.plan.seed * 1_000_003 + step))
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for rate, optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * _share(step, self.plan)
            optimizer.step()
        if self.means:
            weight = 1 - min(self.plan.average, (step + 1) / (step + 10))
            torch._foreach_lerp_(self.means, [p.detach() for p in self.parameters], weight)
        number = float(value.detach())
        if not math.isfinite(number):
            raise RuntimeError(f"{self.plan.name}: the loss is {number} at step {step}")
        return number

    def _show(self, look: Callable[[], None] | None) -> None:
        if look is None:
            return
        self._swap()
        with torch.no_grad():
            look()
        self._swap()

    def _swap(self) -> None:
        """Put the mean weights in place and the present ones aside, or the reverse."""
        for parameter, mean in zip(self.parameters, self.means, strict=bool(self.means)):
            parameter.data, mean.data = mean.data, parameter.data

    def _keep(self) -> None:
        state = {
            "step": self.step,
            "losses": self.losses,
            "parameters": [p.detach() for p in self.parameters],
            "means": self.means,
            "optimizers": [optimizer.state_dict() for _, optimizer in self.optimizers],
        }
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)
        write_losses(self.losses, self.folder / f"{self.plan.name}.csv")

    def _resume(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.checkpoint.is_file():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.step, self.losses = state["step"], [tuple(pair) for pair in state["losses"]]
        with torch.no_grad():
            for own, kept in zip((*self.parameters, *self.means), (*state["parameters"], *state["means"]), strict=True):
                own.copy_(kept)
        for (_, optimizer), own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)


class _Shaped(nn.Module):
    """Shows a matrix (outputs, inputs x kernel) as the weight of a layer: Muon takes matrices only."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix.view(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)


def _flatten(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Keep the weights of linear and convolutional layers as matrices; returns the layers."""
    kinds = (nn.Linear, nn.Conv2d)
    layers: list[nn.Module] = [layer for module in modules for layer in module.modules() if isinstance(layer, kinds)]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", _Shaped(layer.get_parameter("weight").shape))
    return layers


def _share(step: int, plan: Plan) -> float:
    """Return the learning rate of a step as a share of the highest."""
    if step < plan.warmup:
        return (step + 1) / plan.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - plan.warmup) / max(1, plan.steps - plan.warmup)))


def write_losses(losses: Sequence[tuple[int, float]], path: Path) -> None:
    """Write `step, loss` as a table."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("step", "loss"))
        writer.writerows((step, f"{loss:.6f}") for step, loss in losses)
