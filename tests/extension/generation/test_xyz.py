"""Axes of X/Y/Z plots: what they make of a prompt, and how a plot gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from extension.generation.xyz import NONE, axes
from extension.hosts import Axis
from extension.hosts._axes import add_axes
from extension.kept.presets import PresetError
from extension.library.catalog import CatalogError
from extension.standalone.studio import Studio
from extension.text.prompt import PromptError

PROMPT = "a fox <lora:zorp:0.5> x <lora:stripes:1:0.8>"


@pytest.fixture
def by_label(studio: Studio) -> Iterator[dict[str, Axis]]:
    studio.session.presets.put("Mine", "<lora:night:0.4> moon\n<lora:neon:1>")
    yield {axis.label: axis for axis in axes(studio.session)}
    studio.session.presets.remove("Mine")


@pytest.mark.parametrize(
    ("label", "value", "wanted"),
    [
        ("LoRA", "night", "a fox <lora:night:0.5> x <lora:stripes:1:0.8>"),
        ("LoRA", NONE, "a fox x <lora:stripes:1:0.8>"),
        ("LoRA strength", 0.25, "a fox <lora:zorp:0.25> x <lora:stripes:1:0.8>"),
        ("Second LoRA's strength", 0.0, "a fox <lora:zorp:0.5> x <lora:stripes:0>"),
        ("Strength of all LoRA", 0.3, "a fox <lora:zorp:0.3> x <lora:stripes:0.3>"),
        ("LoRA block weights", "OUTALL", "a fox <lora:zorp:0.5:lbw=OUTALL> x <lora:stripes:1:0.8>"),
        ("LoRA block weights", "1,0,R", "a fox <lora:zorp:0.5:lbw=1,0,R> x <lora:stripes:1:0.8>"),
        ("LoRA block weights", NONE, PROMPT),
        ("LoRA schedule", "0@0;1@0.5", "a fox <lora:zorp:0.5:unet=0@0;1@0.5> x <lora:stripes:1:0.8>"),
        ("LoRA schedule", "stop=10", "a fox <lora:zorp:0.5:stop=10> x <lora:stripes:1:0.8>"),
        ("LoRA schedule", NONE, PROMPT),
        ("LoRA preset", "Mine", "a fox x <lora:night:0.4> moon <lora:neon:1>"),
        ("LoRA preset", NONE, "a fox x"),
    ],
)
def test_what_they_make_of_a_prompt(by_label: dict[str, Axis], label: str, value: Any, wanted: str) -> None:
    assert by_label[label].apply(PROMPT, value) == wanted


def test_of_a_prompt_without_lora(by_label: dict[str, Axis]) -> None:
    assert by_label["LoRA"].apply("a fox", "night") == "a fox <lora:night:1>"
    assert by_label["LoRA"].apply("a fox", NONE) == "a fox"
    with pytest.raises(RuntimeError, match="the prompt has no LoRA whose strength"):
        by_label["LoRA block weights"].apply("a fox", "OUTALL")
    with pytest.raises(RuntimeError, match="the prompt has 0 LoRA"):
        by_label["LoRA strength"].apply("a fox", 1.0)


def test_a_region_is_put_into_the_first_lora_and_taken_out_again(by_label: dict[str, Axis]) -> None:
    apply = by_label["LoRA region"].apply
    assert apply("a <lora:zorp:1> <lora:night:1>", "left") == "a <lora:zorp:1:mask=left> <lora:night:1>"
    assert apply("a <lora:zorp:1:mask=left:feather=0.1>", "0,0,1,0.5") == "a <lora:zorp:1:mask=0,0,1,0.5:feather=0.1>"
    assert apply("a <lora:zorp:1:mask=left:feather=0.1>", NONE) == "a <lora:zorp:1>"


def test_values_are_offered_and_checked(by_label: dict[str, Axis]) -> None:
    lora, preset = by_label["LoRA"], by_label["LoRA preset"]
    assert lora.choices is not None
    assert preset.choices is not None
    assert {NONE, "zorp", "night"} <= set(lora.choices())
    assert preset.choices() == [NONE, "Mine"]
    lora.check("zorp"), lora.check(NONE), preset.check("Mine")
    blocks, schedule = by_label["LoRA block weights"], by_label["LoRA schedule"]
    assert blocks.choices is not None
    assert {NONE, "OUTALL"} <= set(blocks.choices())
    for good in (NONE, "OUTALL", "1,0,1"):
        blocks.check(good)
    for good in (NONE, "0@0;1@0.5", "step=2-8"):
        schedule.check(good)
    with pytest.raises(PromptError, match="neither a number nor block weights"):
        blocks.check("OUTAL")
    for bad in ("0@0;x@1", "stop=x", "much", "stap=2"):
        with pytest.raises(PromptError):
            schedule.check(bad)
    region = by_label["LoRA region"]
    assert region.choices is not None
    assert {NONE, "left"} <= set(region.choices())
    for good in (NONE, "left", "!left+0,0,1,0.2"):
        region.check(good)
    with pytest.raises(PromptError, match="no region 'lft'"):
        region.check("lft")
    with pytest.raises(CatalogError, match="did you mean zorp"):
        lora.check("zorpp")
    with pytest.raises(PresetError, match="no preset 'Yours'"):
        preset.check("Yours")


class AxisOption:
    """As A1111's script has it; SD.Next calls the fourth argument otherwise."""

    def __init__(self, label: str, kind: type, apply: Callable[..., None], **more: Any) -> None:
        self.label, self.type, self.apply = label, kind, apply
        self.confirm, self.choices = more["confirm"], more["choices"]


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(AxisOption=AxisOption, axis_options=[SimpleNamespace(label="Seed")])
    scripts = ModuleType("modules.scripts")
    scripts.scripts_data = [SimpleNamespace(module=ModuleType("other")), SimpleNamespace(module=found)]  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "modules.scripts", scripts)
    return found


def test_a_plot_gets_them_once_and_loses_them_again(plot: SimpleNamespace, studio: Studio) -> None:
    options = plot.axis_options
    for _ in range(2):
        add_axes(axes(studio.session))
    assert plot.axis_options is options  # others hold the list itself
    labels = [option.label for option in options]
    assert labels[:2] == ["Seed", "[Remora] LoRA"]
    assert len(labels) == len(set(labels)) == 9
    p = SimpleNamespace(prompt=PROMPT)
    options[2].apply(p, 0.75, [0.75])
    assert p.prompt == "a fox <lora:zorp:0.75> x <lora:stripes:1:0.8>"
    with pytest.raises(CatalogError):
        options[1].confirm(p, ["zorp", "nowhere"])
    add_axes(())
    assert [option.label for option in plot.axis_options] == ["Seed"]


def test_sdnexts_plot_is_found_by_its_module(monkeypatch: pytest.MonkeyPatch, studio: Studio, tmp_path: Path) -> None:
    found = SimpleNamespace(AxisOption=AxisOption, axis_options=[])
    monkeypatch.setitem(__import__("sys").modules, "scripts.xyz.xyz_grid_classes", found)
    add_axes(axes(studio.session))
    assert len(found.axis_options) == 8
