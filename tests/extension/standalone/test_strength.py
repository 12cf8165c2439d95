"""What a tag says of steps, halves and images, in pictures of the embedded web UI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from extension.hosts.txt2img import Txt2Img
from extension.standalone.jobs import Runner

STEPS = 6
JOB = Txt2Img("", steps=STEPS, width=64, height=64, seed=7, sampler="Euler")
SAMPLERS = ("Euler a", "DPM++ 2M", "Heun", "DDIM", "DPM2")


def pictures(runner: Runner, tag: str, **more: object) -> list[np.ndarray]:
    job = replace(JOB, prompt=f"two red circles{tag}", **more)  # type: ignore[arg-type]
    return [np.asarray(one.image).astype(int) for one in runner.submit(job).result(120).pictures]


@contextmanager
def calls(runner: Runner) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record the UNet's inputs and outputs, call by call."""
    found: list[tuple[Tensor, Tensor]] = []
    unet = runner.studio.model.pipeline.unet
    hook = unet.register_forward_hook(
        lambda module, args, kwargs, output: found.append((args[0].clone(), output[0].clone())), with_kwargs=True
    )
    yield found
    hook.remove()


def outputs(runner: Runner, tag: str, **more: object) -> list[tuple[Tensor, Tensor]]:
    with calls(runner) as found:
        pictures(runner, tag, **more)
    return found


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_steps_outside_a_window_go_on_to_the_bit_as_without(runner: Runner, sampler: str) -> None:
    """`stop=2` is a LoRA that is taken off by hand after two steps, for samplers of one and of two calls for a step."""
    per_step = 2 if sampler in ("Heun", "DPM2") else 1
    engine = lambda: runner.studio.session.model.engine  # noqa: E731
    unet, made = runner.studio.model.pipeline.unet, 0

    def count(module: object, args: object) -> None:
        nonlocal made
        if made == 2 * per_step:
            engine().set_multiplier(0, 0.0)
        made += 1

    hook = unet.register_forward_pre_hook(count, prepend=True)
    (by_hand,) = pictures(runner, " <lora:stripes:1>", sampler=sampler)
    hook.remove()
    assert made > 2 * per_step
    (stopped,) = pictures(runner, " <lora:stripes:1:stop=2>", sampler=sampler)
    assert np.array_equal(stopped, by_hand)
    assert not np.array_equal(stopped, pictures(runner, " <lora:stripes:1>", sampler=sampler)[0])
    assert not np.array_equal(stopped, pictures(runner, "", sampler=sampler)[0])


def test_a_lora_for_one_prompt_alone_is_in_its_rows_alone(runner: Runner) -> None:
    """Of the first call, which has the same input whatever is in force: the negative row is first."""
    plain, strong, positive, negative = (
        outputs(runner, tag)[0]
        for tag in ("", *(f" <lora:stripes:1{half}>" for half in ("", ":half=pos", ":half=neg")))
    )
    assert plain[0].shape[0] == 2
    assert torch.equal(plain[0], positive[0])
    rows = {"negative": (0, negative[1], positive[1]), "positive": (1, positive[1], negative[1])}
    for row, own, other in rows.values():
        bound = 1e-5 * strong[1][row].abs().max()
        assert (own[row] - strong[1][row]).abs().max() < bound
        assert (other[row] - plain[1][row]).abs().max() < bound
        assert (strong[1][row] - plain[1][row]).abs().max() > 100 * bound


def test_without_guidance_all_rows_are_the_positive_prompts(runner: Runner) -> None:
    (whole,), (half,), (none,) = (
        pictures(runner, f" <lora:stripes:1{tag}>", cfg_scale=1.0) for tag in ("", ":half=pos", ":half=neg")
    )
    assert np.abs(whole - half).max() <= 1
    assert np.abs(none - pictures(runner, "", cfg_scale=1.0)[0]).max() <= 1


@pytest.mark.parametrize("clip_skip", [1, 2])
def test_images_of_a_batch_by_their_numbers(runner: Runner, clip_skip: int) -> None:
    """Text encoders included: zorp is in both parts."""
    more = {"batch_size": 3, "clip_skip": clip_skip}
    without, strong = pictures(runner, "", **more), pictures(runner, " <lora:zorp:1>", **more)
    chosen = pictures(runner, " <lora:zorp:1:rows=1,3>", **more)
    for image, want in enumerate((strong[0], without[1], strong[2])):
        assert np.abs(chosen[image] - want).max() <= 2, image
        assert np.abs(strong[image] - without[image]).max() > 30


def test_drawn_block_weights_are_the_seeds(runner: Runner) -> None:
    tag = f" <lora:stripes:1:lbw={','.join('U' * 17)}>"
    (first,), (again,) = pictures(runner, tag), pictures(runner, tag)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, pictures(runner, " <lora:stripes:1>")[0])
