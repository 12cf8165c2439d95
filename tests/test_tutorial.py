"""What the tutorial says of tags and of the demo is true."""

from __future__ import annotations

import re
from pathlib import Path

from extension.text.prompt import parse
from extension.text.tag import Tag
from lib_lora import Moment, Strength

ROOT = Path(__file__).parents[1]
TUTORIAL, SAVING = ((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("tutorial", "save_tutorial"))


def tag(text: str) -> Tag:
    assert f"`{text}`" in TUTORIAL
    (found,) = parse(text).tags
    return found


def strengths(text: str) -> list[float]:
    """Return the strength on the denoiser at each of 20 steps."""
    multiplier = tag(text).multiplier
    assert isinstance(multiplier, Strength)
    return [multiplier.at("unet", None, Moment(step=step, steps=20)) for step in range(20)]


def test_every_tag_is_read() -> None:
    tags = re.findall(r"<lora:[^>]*>", TUTORIAL + SAVING)
    assert len(tags) >= 6
    assert [one.name for text in tags for one in parse(text).tags] == [text.split(":")[1].rstrip(">") for text in tags]


def test_a_schedule_reaches_1_after_half_of_the_steps() -> None:
    values = strengths("<lora:night:0@0,1@0.5>")
    assert (values[0], values[10]) == (0, 1)
    assert values[:11] == sorted(values[:11])
    assert set(values[10:]) == {1}


def test_a_stop_leaves_the_first_ten_steps() -> None:
    assert strengths("<lora:night:1:stop=10>") == [1] * 10 + [0] * 10


def test_files_of_the_demo_are_the_ones_of_the_tutorial() -> None:
    names = {text.split(":")[1] for text in re.findall(r"<lora:[^>]*>", TUTORIAL)}
    assert names <= {path.stem for path in (ROOT / "demo").rglob("*.safetensors")}


def test_pictures_that_it_shows_are_there() -> None:
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TUTORIAL):
        assert (ROOT / "docs" / target).is_file(), target
