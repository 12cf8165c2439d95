"""Tags inside the prompt's grammar, in pictures of the embedded web UI: to the bit the same schedule as fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extension.generation.options import GRAMMAR
from extension.hosts.txt2img import Result, Txt2Img
from extension.standalone.jobs import Runner

JOB = Txt2Img("", steps=4, width=64, height=64, seed=7, sampler="Euler")
ON = {GRAMMAR: True}
TURNS = "1@0,0@1,1@2,0@3:curve=step"


def made(runner: Runner, tags: str, negative: str = "", **more: Any) -> Result:
    job = replace(JOB, prompt=f"two red circles {tags}", negative_prompt=negative, **more)
    return runner.submit(job).result(120)


def picture(result: Result) -> np.ndarray:
    return np.asarray(result.pictures[0].image)


@pytest.mark.parametrize(
    ("place", "written"),
    [
        ("[<lora:stripes:1>:<lora:zorp:0.8>:3]", "<lora:stripes:1:stop=3><lora:zorp:0.8:start=3>"),
        ("([[<lora:zorp:0.5>::0.8]:0.2]:1.6)", "<lora:zorp:0.8:start=0.2:stop=0.8>"),
        ("[<lora:stripes:1>|]", f"<lora:stripes:1:{TURNS}>"),
    ],
)
def test_a_place_makes_the_picture_that_the_same_fields_make(runner: Runner, place: str, written: str) -> None:
    found, want = made(runner, place, settings=ON), made(runner, written)
    assert np.array_equal(picture(found), picture(want))
    text = found.pictures[0].infotext
    assert text.startswith(f"two red circles {place}")
    assert "Remora grammar: on" in text
    assert "Remora limits: " in text
    assert "Remora warnings" not in text


def test_a_tag_of_the_negative_prompt_is_its_half(runner: Runner) -> None:
    want = made(runner, "<lora:stripes:1:half=neg>", "blue ")
    found = made(runner, "", "blue <lora:stripes:1>", settings=ON)
    assert np.array_equal(picture(found), picture(want))
    assert found.pictures[0].infotext.partition("Negative prompt: ")[2].startswith("blue <lora:stripes:1>")
    off = made(runner, "", "blue <lora:stripes:1>")
    assert not np.array_equal(picture(off), picture(want))
    assert any("stands in the negative prompt" in text for text in off.warnings)


def test_while_it_is_off_brackets_are_words_and_the_picture_says_what_they_do_not_do(runner: Runner) -> None:
    found = made(runner, "[<lora:stripes:1>::0.4]")
    assert np.array_equal(picture(found), picture(made(runner, "[::0.4]<lora:stripes:1>")))
    assert "stripes acts in all steps: its place in the prompt (until 40 %)" in found.pictures[0].infotext
    one = made(runner, "[<lora:stripes:1:grammar=1>::0.4]")
    assert np.array_equal(picture(one), picture(made(runner, "<lora:stripes:1:stop=0.4>")))
