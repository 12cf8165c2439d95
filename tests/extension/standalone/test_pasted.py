"""Parameters texts in the page's prompt ."""

from __future__ import annotations

from extension.hosts.txt2img import Txt2Img
from extension.standalone.pasted import applied, parameters_in

TEXT = (
    "a fox\nNegative prompt: x\nSteps: 3, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 2, Seed: 5, Size: 72x64"
)
SAMPLERS = ("Euler a", "DPM++ 2M", "DPM++ 2M Karras")


def test_a_prompt_is_no_parameters_text() -> None:
    assert parameters_in("a fox, Steps: 3, in snow") is None
    assert parameters_in("a fox\nred: 1, blue: 2, green: 3") is None
    assert parameters_in(TEXT) is not None


def test_settings_that_cannot_be_used_are_told_and_the_others_are_used() -> None:
    found = parameters_in(TEXT)
    assert found is not None
    asked, left = applied(Txt2Img("a fox"), found.settings, SAMPLERS)
    wanted = (3, "DPM++ 2M Karras", 2.0, 5, 72, 64)
    assert (asked.steps, asked.sampler, asked.cfg_scale, asked.seed, asked.width, asked.height) == wanted
    assert left == []
    bad = {"Steps": "9999", "Sampler": "Nope", "CFG scale": "nan", "Seed": "x", "Size": "72", "Model": "other"}
    kept, left = applied(asked, bad, SAMPLERS)
    assert kept == asked
    assert left == ["Steps: 9999", "Sampler: Nope", "CFG scale: nan", "Seed: x", "Size: 72"]
