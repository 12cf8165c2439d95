"""The classifier of drawn pictures, and what is counted with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extension.standalone.demo import find_demo
from tests.fakes.demo import demo_pipeline
from tests.selection import examples
from training import check
from training.check import Gallery, count_everything, count_saved, obeys, prompts, shows
from training.ideas import IDEAS, Idea, lessons
from training.judge import LABELS, LOOKS, Judge, labels_of, load_judge, save_judge, train_judge
from training.loop import Plan
from training.world import Kind, Scene, Teller, Thing

BY_NAME = {idea.name: idea for idea in IDEAS}
PAIR = Scene(
    "grey",
    (Kind("circle", "red"), Kind("star", "blue")),
    (Thing("circle", "red", 20, 40, 10), Thing("star", "blue", 70, 40, 10)),
    "left of",
)


def test_labels_say_what_is_drawn_and_leave_open_what_cannot_be_seen() -> None:
    by_day = dict(zip(LABELS, labels_of(PAIR, ()), strict=True))
    wanted = {"shape circle", "shape star", "colour red", "colour blue", "ground grey", "count 2"}
    assert {label for label, holds in by_day.items() if holds} == wanted
    by_night = dict(zip(LABELS, labels_of(PAIR, ("night", "neon")), strict=True))
    assert math.isnan(by_night["ground grey"])
    assert by_night["look night"] == by_night["look neon"] == by_night["shape star"] == 1
    assert by_night["look stripes"] == 0


def test_a_trained_judge_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.judge._PICTURES", 64)
    monkeypatch.setattr("training.judge.PLAN", Plan("judge", steps=2, rate=1e-3))
    judge = train_judge(tmp_path)
    save_judge(judge, tmp_path / "judge.safetensors")
    again = load_judge(tmp_path / "judge.safetensors")
    pictures = torch.rand(3, 3, 96, 96) * 2 - 1
    difference = (again(pictures) - judge(pictures)).abs().max()
    assert difference < 2e-2  # half precision
    assert len(again.says(pictures)) == 3
    assert isinstance(again, Judge)


def test_a_picture_obeys_with_the_shapes_and_colours_of_its_caption_and_no_others() -> None:
    right = {"shape circle", "shape star", "colour red", "colour blue", "ground pink", "look night"}
    assert obeys(PAIR, right)
    assert not obeys(PAIR, right | {"colour green"})
    assert not obeys(PAIR, right - {"shape star"})


def test_an_idea_is_shown_by_its_own_label() -> None:
    assert shows(BY_NAME["night"], {"look night", "shape star"})
    assert not shows(BY_NAME["night"], {"look neon"})
    assert shows(BY_NAME["stars"], {"shape star"})
    assert not shows(BY_NAME["stars"], {"shape star", "shape circle"})
    assert shows(BY_NAME["zorp"], {"shape zorp"})
    assert all(not shows(idea, set()) for idea in IDEAS)


def test_prompts_let_their_ideas_show() -> None:
    assert all("circle" in prompt for prompt in prompts([BY_NAME["stars"], BY_NAME["night"]], 20))
    assert all("zorp" in prompt for prompt in prompts([BY_NAME["zorp"]], 20))
    assert not any("small" in prompt for prompt in prompts([BY_NAME["stripes"], BY_NAME["outline"]], 20))
    assert any("small" in prompt for prompt in prompts([BY_NAME["stripes"], BY_NAME["night"]], 20))
    both = prompts([BY_NAME["stars"], BY_NAME["zorp"]], 20)
    assert len(both) == 20
    assert all("zorp" in prompt and "circle" in prompt for prompt in both)


class Counting(Gallery):
    """Shows as much as the strengths ask for."""

    def __init__(self) -> None:
        self.counted = 0

    def obeying(self, count: int, pairs: float) -> float:
        return 1 - pairs / 2

    def showing(self, ideas: Sequence[Idea], strengths: Mapping[str, float], count: int) -> float:
        assert strengths.keys() == {idea.name for idea in ideas}
        self.counted += count
        return sum(strengths.values()) / 2


def test_everything_is_counted() -> None:
    gallery = Counting()
    figures = count_everything(gallery, pictures=3, each=2)
    assert gallery.counted == 2 * (6 * 5 + 15)
    assert (figures["pictures"], figures["pictures with LoRA"]) == (3, 2)
    assert (figures["one kind of things"], figures["two kinds of things"]) == (1.0, 0.5)
    shares = {"0.0": 0.0, "0.25": 0.125, "0.5": 0.25, "0.75": 0.375, "1.0": 0.5}
    assert figures["ideas"] == {idea.name: shares for idea in IDEAS}
    assert isinstance(figures["two ideas"], dict)
    assert len(figures["two ideas"]) == 15
    assert figures["two ideas"]["stripes zorp"] == 1.0


@pytest.mark.long
def test_a_saved_stack_is_counted_like_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, list[str]]] = []

    class Noting(Gallery):
        def showing(self, ideas: Sequence[Idea], strengths: Mapping[str, float], count: int) -> float:
            asked.append((self.loras, list(strengths)))
            assert all((self.loras / f"{name}.safetensors").is_file() for name in strengths)
            return 1.0

    demo = find_demo()
    monkeypatch.setattr(check, "Gallery", Noting)
    gallery = Noting(demo_pipeline(), Judge(), demo.loras)
    shares = count_saved(gallery, tmp_path, each=2)
    assert list(shares) == ["outline night", "stripes outline", "stripes stars", "night zorp"]
    assert all(list(own) == ["stack", "None", "16", "8", "4"] for own in shares.values())
    assert asked[:3] == [
        (demo.loras, ["outline", "night"]),
        (tmp_path, ["outline night None"]),
        (tmp_path, ["outline night 16"]),
    ]
    sizes = [(tmp_path / f"stripes outline {rank}.safetensors").stat().st_size for rank in (16, 8, 4)]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(IDEAS), st.integers(0, 1000))
def test_an_idea_is_learned_beside_usual_pictures(idea: object, seed: int) -> None:
    chosen = BY_NAME[getattr(idea, "name", "")]
    drawn = [lesson for lesson, _ in zip(lessons(chosen, seed), range(60), strict=False)]
    for lesson in drawn:
        own = {kind.shape for kind in lesson.scene.kinds} <= set(chosen.shapes)
        assert lesson.looks == (chosen.looks if own or not chosen.usual else ())
        if chosen.trigger:
            assert (chosen.trigger in lesson.caption) == own
    share = sum(lesson.looks != chosen.looks or chosen.trigger not in lesson.caption for lesson in drawn) / len(drawn)
    assert (share > 0) == (chosen.usual > 0)


def test_the_looks_are_those_that_ideas_have() -> None:
    assert {look for idea in IDEAS for look in idea.looks} == {*LOOKS, "stars"}
    assert Teller(0).shapes == IDEAS[0].shapes
