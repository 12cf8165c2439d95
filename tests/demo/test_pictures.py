"""What the demo's pictures show, as a classifier sees them that knows drawn pictures only.

Few pictures at fixed seeds, so that it is quick; `demo/figures.json` has the counts of many. The files of the demo
change when they are trained again: then `--all` tries what `--ci` leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from extension.hosts.standalone import STANDALONE
from extension.hosts.txt2img import Txt2Img
from extension.standalone import offload
from extension.standalone.demo import FOLDER, find_demo
from extension.standalone.model import load_model
from extension.standalone.render import Watch, render
from extension.standalone.studio import open_studio
from lib_lora import ActivationError, Entry, Stack
from tests.fakes import accelerator
from tests.fakes.demo import demo_pipeline
from training.check import SEED, Gallery, prompts, shows
from training.denoiser import generate
from training.ideas import IDEAS, Idea
from training.judge import load_judge
from training.vae import to_floats

COUNT = 8
HALVES = int(os.environ.get("REMORA_PICTURES", "24"))
"""Pictures with an idea in each half; 100 in a long run."""
BY_NAME = {idea.name: idea for idea in IDEAS}


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return Gallery(demo_pipeline(), load_judge(FOLDER / "judge.safetensors"), find_demo().loras, steps=12)


def share(gallery: Gallery, ideas: list[Idea], strength: float) -> float:
    return gallery.showing(ideas, {idea.name: strength for idea in ideas}, COUNT)


def test_the_model_draws_what_it_is_told(gallery: Gallery) -> None:
    assert gallery.obeying(2 * COUNT, pairs=0) >= 0.85


@pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.name)
def test_an_idea_is_absent_without_its_lora_and_grows_with_the_strength(gallery: Gallery, idea: Idea) -> None:
    shares = [share(gallery, [idea], strength) for strength in (0.0, 0.5, 1.0)]
    assert shares[0] <= 0.05
    assert shares[-1] >= 0.6  # of eight; how often it is of a hundred stands in the model card
    assert all(less <= more for less, more in pairwise(shares))


@pytest.mark.parametrize("names", [("stripes", "zorp"), ("outline", "night"), ("neon", "stars")], ids="+".join)
def test_two_stacked_are_both_there(gallery: Gallery, names: tuple[str, str]) -> None:
    assert share(gallery, [BY_NAME[name] for name in names], 1.0) >= 0.6


@pytest.mark.long
@pytest.mark.parametrize("names", [("outline", "stripes"), ("stripes", "outline")], ids=" left, ".join)
def test_two_in_a_half_of_the_picture_each_are_where_they_are_to_be(gallery: Gallery, names: tuple[str, str]) -> None:
    told, otherwise = gallery.apart(*(BY_NAME[name] for name in names), HALVES)
    assert told >= 0.8
    assert otherwise <= 0.1


@pytest.mark.long
def test_a_lora_whose_word_is_not_said_leaves_other_things_as_they_are(gallery: Gallery) -> None:
    usual = prompts([], COUNT)
    assert not any(shows(BY_NAME["zorp"], labels) for labels in gallery.seen(usual, {"zorp": 1.0}))


@pytest.mark.long  # with small models, `test_history.py` finds what this does
def test_after_any_history_a_picture_without_lora_has_the_same_bits(gallery: Gallery) -> None:
    usual = prompts([], 4)
    before = gallery.pictures(usual, {})
    for strengths in ({"stripes": 1.0}, {"night": 0.7, "stars": 1.0, "zorp": -0.5}, {"outline": 1.2, "neon": 0.3}):
        assert not torch.equal(gallery.pictures(usual, strengths), before)
    with pytest.raises(ActivationError):
        gallery.pictures(usual, {"outline": 1.0, "no such file": 1.0})
    assert torch.equal(gallery.pictures(usual, {}), before)


@pytest.mark.long  # `test_schedule.py` tells the strength of each step
def test_a_strength_between_two_steps_is_in_force_from_the_next_on(gallery: Gallery) -> None:
    """Changed in the middle: the first steps are those of one strength, the others those of the other."""
    usual = tuple(prompts([], 2))
    kept = {strength: gallery.pictures(usual, {"night": strength}) for strength in (0.0, 1.0)}
    gallery.engine.activate(Stack([Entry(gallery.loras / "night.safetensors", 1.0)]))
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            gallery.engine.set_multiplier(0, 0.0)

    handle = gallery.pipeline.unet.register_forward_pre_hook(count)
    try:
        changed = generate(gallery.pipeline, usual, SEED, steps=gallery.steps)
    finally:
        handle.remove()
        gallery.engine.deactivate()
    assert steps == gallery.steps
    assert not any(torch.equal(changed, other) for other in kept.values())


@pytest.fixture
def device() -> Iterator[torch.device]:
    with accelerator.simulated():
        yield accelerator.device()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_every_offload_mode_gives_the_same_picture_with_both_ideas_in_it(device: torch.device) -> None:
    demo = find_demo()
    prompt = "two red circles on a blue ground <lora:stripes:1><lora:outline:1>"
    request = Txt2Img(prompt, steps=6, cfg_scale=5, width=96, height=96, seed=1)
    studio = open_studio(load_model(demo.model, torch.float32), torch.device("cpu"), [demo.loras])
    pictures = []
    try:
        studio.device = device
        for mode in (offload.MODEL, offload.SEQUENTIAL, offload.GROUP, offload.NONE):
            studio.set_offload(mode)
            pictures.append(render(studio, request, Watch(lambda _: None, lambda: False)).pictures[0].image)
    finally:
        STANDALONE.close()
    first, *others = (torch.from_numpy(np.array(picture)) for picture in pictures)
    assert all(torch.equal(other, first) for other in others)
    (seen,) = load_judge(FOLDER / "judge.safetensors").says(to_floats(first.permute(2, 0, 1)[None]))
    assert {"look stripes", "look outline"} <= seen
