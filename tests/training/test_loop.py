"""The training loop: the same weights however often it was interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from training.loop import Loss, Plan, Trainer, write_losses

PLAN = Plan("plan", steps=12, rate=1e-2, matrix_rate=1e-2, warmup=3, average=0.9, seed=4)


class PowerCutError(Exception):
    """The machine goes off in the middle of a step."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3))


def loss_of(module: nn.Module, stop_at: int | None = None) -> Loss:
    calls = 0

    def loss(generator: Generator) -> Tensor:
        nonlocal calls
        if calls == stop_at:
            raise PowerCutError
        calls += 1
        seen: Tensor = module(torch.randn(4, 2, 5, 5, generator=generator))
        return (seen - 1).square().mean()

    return loss


def trained(folder: Path, plan: Plan = PLAN) -> dict[str, Tensor]:
    module = model()
    Trainer(plan, [module], folder).run(loss_of(module))
    return module.state_dict()


@pytest.mark.parametrize("plan", [PLAN, Plan("plan", steps=12, rate=1e-2, warmup=3)], ids=["muon", "adam"])
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole", plan)
    monkeypatch.setattr("training.loop._KEEP_EVERY", 0.0)
    module = model()
    with pytest.raises(PowerCutError):
        Trainer(plan, [module], tmp_path / "parts").run(loss_of(module, stop_at=7))
    assert trained(tmp_path / "parts", plan).keys() == whole.keys()
    for key, value in trained(tmp_path / "parts", plan).items():
        assert torch.equal(value, whole[key]), key


def test_training_lowers_the_loss_and_what_remains_is_the_mean(tmp_path: Path) -> None:
    module = model()
    before = loss_of(module)(Generator().manual_seed(0)).item()
    trainer = Trainer(Plan("plan", steps=60, rate=1e-2, average=0.9), [module], tmp_path)
    trainer.run(loss_of(module))
    assert loss_of(module)(Generator().manual_seed(0)).item() < 0.5 * before
    state = torch.load(trainer.checkpoint, weights_only=True)
    for own, mean, last in zip(module.parameters(), state["means"], state["parameters"], strict=True):
        assert torch.equal(own, mean)
        assert not torch.equal(own, last)


def test_layers_are_themselves_again_in_the_end(tmp_path: Path) -> None:
    assert trained(tmp_path).keys() == model().state_dict().keys()


def test_what_is_seen_on_the_way_are_the_mean_weights(tmp_path: Path) -> None:
    module = model()
    trainer = Trainer(PLAN, [module], tmp_path)
    seen = []
    trainer.run(loss_of(module), lambda: seen.append([p.detach().clone() for p in module.parameters()]))
    assert len(seen) == 1
    kept = torch.load(trainer.checkpoint, weights_only=True)["means"]
    assert all(torch.equal(one, other) for one, other in zip(sorted_sizes(seen[0]), sorted_sizes(kept), strict=True))


def sorted_sizes(tensors: list[Tensor]) -> list[Tensor]:
    return sorted((tensor.flatten() for tensor in tensors), key=lambda tensor: (len(tensor), float(tensor[0])))


def test_a_loss_that_is_no_number_stops_it(tmp_path: Path) -> None:
    module = model()
    with pytest.raises(RuntimeError, match="plan: the loss is nan at step 0"):
        Trainer(PLAN, [module], tmp_path).run(lambda _: next(module.parameters()).sum() * float("nan"))


def test_losses_are_a_table(tmp_path: Path) -> None:
    write_losses([(0, 1.5), (10, 0.25)], tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "step,loss\n0,1.500000\n10,0.250000\n"
