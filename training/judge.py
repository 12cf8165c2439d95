"""A small classifier of drawn pictures, which never sees a generated one: it tells what a picture shows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn
from torch.nn import functional
from tqdm import trange

from .draw import draw
from .loop import Plan, Trainer
from .vae import stacked, to_floats
from .world import COLOURS, GROUNDS, SHAPES, Scene, Teller

PLAN = Plan("judge", steps=2400, rate=2e-3, decay=1e-2, average=0.99, seed=3)
LOOKS = ("stripes", "outline", "neon", "night")
LABELS = (
    *(f"shape {name}" for name in (*SHAPES, "zorp")),
    *(f"colour {name}" for name in COLOURS),
    *(f"ground {name}" for name in GROUNDS),
    *(f"count {number}" for number in (1, 2, 3, 4)),
    *(f"look {name}" for name in LOOKS),
)
_PICTURES = 12_000
_SETTLED = 2000  # pictures for the statistics of batch norm
_BATCH = 64
_PLAIN = 0.35  # share of pictures without an idea
_EACH = 0.35  # chance of each idea in the others


class Judge(nn.Module):
    """Tells which of LABELS a picture shows."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 96)
        layers: list[nn.Module] = []
        for wide_in, wide_out in pairwise(widths):
            layers += [nn.Conv2d(wide_in, wide_out, 3, stride=2, padding=1), nn.BatchNorm2d(wide_out), nn.ReLU()]
            layers += [nn.Conv2d(wide_out, wide_out, 3, padding=1), nn.BatchNorm2d(wide_out), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(2 * widths[-1], len(LABELS))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return logits (n, labels) of pictures (n, 3, SIDE, SIDE) in -1 to 1."""
        seen = self.body(pictures)
        logits: Tensor = self.head(torch.cat([seen.mean((2, 3)), seen.amax((2, 3))], 1))
        return logits

    @torch.no_grad()
    def says(self, pictures: Tensor) -> list[set[str]]:
        """Return the labels of each picture, by name."""
        shown = self(pictures) > 0
        return [{LABELS[index] for index in row.nonzero().flatten().tolist()} for row in shown]


def labels_of(scene: Scene, looks: tuple[str, ...]) -> list[float]:
    """Return what holds of a drawn scene, as LABELS; NaN where it cannot be seen."""
    holds = {f"shape {thing.shape}" for thing in scene.things} | {f"colour {thing.colour}" for thing in scene.things}
    holds |= {f"ground {scene.ground}", f"count {len(scene.things)}", *(f"look {look}" for look in looks)}
    hidden = "night" in looks  # the ground's colour is gone
    return [float("nan") if hidden and label.startswith("ground") else float(label in holds) for label in LABELS]


def train_judge(folder: Path) -> Judge:
    """Train the classifier, or go on where it stopped."""
    torch.manual_seed(PLAN.seed)
    judge = Judge()
    trainer = Trainer(PLAN, [judge], folder)
    pictures, labels = drawn_examples(_PICTURES, PLAN.seed)

    def loss(generator: Generator) -> Tensor:
        chosen = torch.randint(len(pictures), (_BATCH,), generator=generator)
        wanted = labels[chosen]
        seen = judge(_worn(to_floats(pictures[chosen]), generator))
        errors = functional.binary_cross_entropy_with_logits(seen, wanted.nan_to_num(0), reduction="none")
        return (errors * ~wanted.isnan()).mean()

    trainer.run(loss)
    _settle(judge, pictures)
    return judge.eval().requires_grad_(False)


def drawn_examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return drawn pictures (count, 3, SIDE, SIDE) in bytes and their labels (count, labels)."""
    teller, rng = Teller(seed, (*SHAPES, "zorp")), np.random.default_rng(seed)
    pictures, labels = [], []
    for _ in trange(count, desc="drawing", mininterval=2):
        plain = rng.random() < _PLAIN
        looks = () if plain else tuple(look for look in LOOKS if rng.random() < _EACH)
        scene = teller.scene()
        pictures.append(draw(scene, looks))
        labels.append(labels_of(scene, looks))
    return stacked(pictures), torch.tensor(labels)


def save_judge(judge: Judge, path: Path) -> None:
    """Write the weights in half precision."""
    save_file({k: v.half() if v.is_floating_point() else v for k, v in judge.state_dict().items()}, path)


def load_judge(path: Path) -> Judge:
    """Read what `save_judge` wrote."""
    judge = Judge()
    judge.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(path).items()})
    return judge.eval().requires_grad_(False)


def _worn(pictures: Tensor, generator: Generator) -> Tensor:
    """Make drawn pictures a little soft, noisy, shifted and off in colour, as coded ones are."""
    soft = functional.avg_pool2d(functional.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    share = torch.rand(len(pictures), 1, 1, 1, generator=generator)
    tint = 1 + 0.08 * torch.randn(len(pictures), 3, 1, 1, generator=generator)
    noise = 0.06 * torch.rand(len(pictures), 1, 1, 1, generator=generator)
    worn = (pictures.lerp(soft, share) * tint).clamp(-1, 1)
    worn = worn + noise * torch.randn(pictures.shape, generator=generator)
    right, down = torch.randint(-3, 4, (2,), generator=generator).tolist()
    return worn.roll((down, right), (2, 3))


def _settle(judge: Judge, pictures: Tensor) -> None:
    """Take the running statistics of batch norm anew, for the mean weights."""
    judge.train()
    for module in judge.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a plain mean
    generator = Generator().manual_seed(0)
    with torch.no_grad():
        for part in torch.split(pictures[:_SETTLED], _BATCH):
            judge(_worn(to_floats(part), generator))
