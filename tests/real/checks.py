"""What a web UI with Remora must do, told by the pixels of its pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .client import WebUI, WebUIError

MISSING = "remora-trial-no-such-file"
_ROUNDING = 8
"""How far a picture of a batch may be from the one made alone, in 1/255: its products have other shapes."""
_CLOSER = 4
"""How many times closer it must be to that one than to any other."""
_LONG = 120  # steps


class FailedError(AssertionError):
    """A check that found something wrong."""


class AbsentError(Exception):
    """A check of what this web UI or this model does not have."""


class Trial:
    """What the checks share: the web UI, three LoRA, and the pictures to compare with.

    Args:
        ui: to ask.
        loras: three names.
        fields: of each request.
        words: of each prompt.
    """

    def __init__(
        self, ui: WebUI, loras: Sequence[str], fields: Mapping[str, object], words: str = "a red circle"
    ) -> None:
        self.ui = ui
        self.a, self.b, self.c = loras
        self.fields = dict(fields)
        self.words = words

    def picture(self, *tags: tuple[str, float], **fields: object) -> np.ndarray:
        """Make a picture with (LoRA, strength) in its prompt."""
        return self.ui.picture(self.prompt(*tags), self.fields | fields)

    def prompt(self, *tags: tuple[str, float]) -> str:
        """Write a prompt with these tags."""
        return " ".join([self.words, *(f"<lora:{name}:{strength:g}>" for name, strength in tags)])

    @cached_property
    def none(self) -> np.ndarray:
        """The picture without LoRA."""
        return self.picture()

    @cached_property
    def with_a(self) -> np.ndarray:
        """The picture with the first LoRA at 1."""
        return self.picture((self.a, 1))

    def none_again(self, after: str) -> None:
        """Check that nothing stayed."""
        same(self.picture(), self.none, f"a picture without LoRA {after}")


def apart(one: np.ndarray, other: np.ndarray) -> int:
    """Return the largest difference of two pictures, in 1/255."""
    return int(np.abs(one - other).max()) if one.shape == other.shape else 256


def same(one: np.ndarray, other: np.ndarray, what: str) -> None:
    """Check that two pictures have the same bits."""
    if apart(one, other):
        raise FailedError(f"{what} differs by {apart(one, other)}/255 in {int((one != other).any(-1).sum())} pixels")


def unlike(one: np.ndarray, other: np.ndarray, what: str) -> None:
    """Check that two pictures differ."""
    if not apart(one, other):
        raise FailedError(f"{what} is the same")


def repeats(trial: Trial) -> str:
    trial.none_again("made again")
    return ""


def changes(trial: Trial) -> str:
    made = [trial.with_a, trial.picture((trial.b, 1)), trial.picture((trial.c, 1))]
    for name, picture in zip((trial.a, trial.b, trial.c), made, strict=True):
        unlike(picture, trial.none, f"the picture with {name}")
    return f"by {', '.join(str(apart(picture, trial.none)) for picture in made)}/255"


def is_told(trial: Trial) -> str:
    trial.picture((trial.a, 1))
    loras = trial.ui.state()["loras"]
    told = [(lora["asked"], lora["state"], lora["hit"], lora["layers"], lora["reason"]) for lora in loras]
    if len(loras) != 1 or loras[0]["state"] != "applied" or loras[0]["hit"] != loras[0]["layers"]:
        raise FailedError(f"the state says {told}")
    return f"{loras[0]['hit']} of {loras[0]['layers']} layers"


def strengths(trial: Trial) -> str:
    more, less = trial.picture((trial.a, 1.1)), trial.picture((trial.a, 0.2))
    unlike(more, trial.with_a, "1.1 as 1.0: the picture")
    unlike(less, more, "0.2 after 1.1: the picture")
    unlike(less, trial.none, "0.2 as none: the picture")
    trial.none_again("after 0.2")
    same(trial.picture((trial.a, 0.2)), less, "0.2 again")
    same(trial.picture((trial.a, 1)), trial.with_a, "1.0 again")
    return ""


def order(trial: Trial) -> str:
    both = trial.picture((trial.a, 1), (trial.b, 0.5))
    unlike(both, trial.with_a, "two LoRA as the first alone: the picture")
    same(trial.picture((trial.b, 0.5), (trial.a, 1)), both, "the other order")
    trial.none_again("after two LoRA")
    return ""


def returns(trial: Trial) -> str:
    trial.picture((trial.c, 1))
    same(trial.picture((trial.a, 1)), trial.with_a, "the first LoRA after another one")
    return ""


def unknown(trial: Trial) -> str:
    try:
        _, info = trial.ui.pictures(trial.prompt((MISSING, 1)), trial.fields)
    except WebUIError as error:
        told = error.detail
    else:
        told = f"{info.get('infotexts')} {trial.ui.state()['loras']}"
    if MISSING not in told.replace(f"<lora:{MISSING}:1>", ""):
        raise FailedError(f"nothing tells that {MISSING} is not there: {told:.200}")
    trial.none_again("after an unknown name")
    return ""


def batch(trial: Trial) -> str:
    described = trial.ui.script("prompt matrix")
    if described is None:
        raise AbsentError("no prompt matrix, which makes a batch of unlike prompts")
    values = [one.get("value") for one in described]
    joined = ["space" if value == "comma" else value for value in values]  # commas would make prompts of unlike length
    script = {"script_name": "prompt matrix", "script_args": joined}
    fields = trial.fields | script | {"batch_size": 4}
    try:
        measured, wrong = compared(trial, "|".join([trial.words, f"<lora:{trial.a}:1>", f"<lora:{trial.b}:1>"]), fields)
    except WebUIError as error:
        if by_itself(trial, fields):
            raise AbsentError(f"the prompt matrix fails without LoRA, too: {error.detail:.80}") from None
        raise
    if wrong:
        if by_itself(trial, fields):
            raise AbsentError("a batch of unlike prompts is unlike single pictures without LoRA, too")
        raise FailedError(f"{wrong!r} in a batch is {measured}/255 from the one made alone")
    trial.none_again("after a batch")
    return f"within {measured}/255"


def compared(trial: Trial, prompt: str, fields: Mapping[str, object]) -> tuple[int, str]:
    """Compare the four pictures of a prompt matrix with those made alone.

    Returns:
        the largest difference, in 1/255, and the first prompt whose picture is another one, or nothing.
    """
    made, info = trial.ui.pictures(prompt, fields)
    prompts, made = info["all_prompts"][-4:], made[-4:]
    alone = [trial.ui.picture(one, trial.fields) for one in prompts]
    for i, picture in enumerate(made):
        own = apart(picture, alone[i])
        others = [float(np.abs(picture - other).mean()) for j, other in enumerate(alone) if j != i]
        if own > _ROUNDING or min(others) < _CLOSER * float(np.abs(picture - alone[i]).mean()):
            return own, prompts[i]
    return max(apart(*pair) for pair in zip(made, alone, strict=True)), ""


def by_itself(trial: Trial, fields: Mapping[str, object]) -> bool:
    """Tell whether the prompt matrix goes wrong with Remora off, and words in place of LoRA."""
    try:
        trial.ui.set(remora_enabled=False)
        return bool(compared(trial, f"{trial.words}|large|very old", fields)[1])
    except WebUIError:
        return True
    finally:
        trial.ui.set(remora_enabled=True)


def hires(trial: Trial) -> str:
    upscaled: dict[str, Any] = {"enable_hr": True, "hr_scale": 2, "denoising_strength": 0.7}
    upscaled |= {"hr_second_pass_steps": 2, "hr_force": True, "hr_upscaler": trial.ui.upscaler()}
    upscaled |= {"hr_additional_modules": ["Use same choices"], "hr_resize_mode": 1}  # of Forge and of SD.Next
    try:
        without = trial.picture(**upscaled)
    except WebUIError as error:
        raise AbsentError(f"no hires: {error.detail:.100}") from None
    if without.shape == trial.none.shape:
        raise AbsentError("no hires: the picture was not made larger")
    unlike(trial.picture((trial.a, 1), **upscaled), without, "hires with a LoRA: the picture")
    same(trial.picture(**upscaled), without, "hires without a LoRA again")
    trial.none_again("after hires")
    return ""


def interrupted(trial: Trial) -> str:
    step = trial.ui.interrupt(trial.prompt((trial.b, 1)), trial.fields | {"steps": _LONG})
    if not step:
        raise AbsentError(f"{_LONG} steps were done before the first could be seen")
    trial.none_again("after an interrupted one")
    same(trial.picture((trial.a, 1)), trial.with_a, "a LoRA after an interrupted picture")
    return f"at step {step} of {_LONG}"


def checkpoints(trial: Trial) -> str:
    current = trial.ui.ask("/sdapi/v1/options")["sd_model_checkpoint"]
    titles = [model["title"] for model in trial.ui.ask("/sdapi/v1/sd-models")]
    others = [title for title in titles if title.partition(" [")[0] != current.partition(" [")[0]]
    if not others:
        raise AbsentError("the web UI has one checkpoint")
    none, with_a = trial.none, trial.with_a  # made before another checkpoint is loaded
    try:
        if not _uses_another(trial, others, none):
            raise AbsentError("no other checkpoint makes another picture")
        trial.picture((trial.a, 1))
    finally:
        trial.ui.set(sd_model_checkpoint=current)
    trial.none_again("after another checkpoint")
    same(trial.picture((trial.a, 1)), with_a, "a LoRA after another checkpoint")
    return ""


def _uses_another(trial: Trial, titles: Sequence[str], none: np.ndarray) -> bool:
    """Load the first of these checkpoints that makes another picture; tell whether there is one."""
    for title in titles:
        trial.ui.set(sd_model_checkpoint=title)
        try:
            if apart(trial.picture(), none):
                return True
        except WebUIError:  # one that the web UI cannot load says nothing of LoRA
            continue
    return False


def given_back(trial: Trial) -> str:
    try:
        trial.ui.set(remora_enabled=False)
        if trial.ui.state()["enabled"]:
            raise FailedError("the setting remora_enabled has no effect")
        own = trial.picture((trial.a, 1))
        trial.picture((trial.a, 0.2))
    finally:
        trial.ui.set(remora_enabled=True)
    trial.none_again("after Remora was off")
    same(trial.picture((trial.a, 1)), trial.with_a, "a LoRA after Remora was off")
    if not apart(own, trial.none):
        return "the web UI has no LoRA of its own"
    return f"its own picture is {apart(own, trial.with_a)}/255 from Remora's"


def plot(trial: Trial) -> str:
    tags = [trial.prompt((trial.a, strength)).removeprefix(trial.words).strip() for strength in (1, 0.2)]
    alone = [trial.with_a, trial.picture((trial.a, 0.2))]
    cells = plotted(trial, trial.prompt((trial.a, 1)), tags)
    if not all(map(np.array_equal, cells, alone)):
        word = trial.words.split()[-1]
        plain = [trial.none, trial.ui.picture(trial.words.replace(word, "house"), trial.fields)]
        if not all(map(np.array_equal, plotted(trial, trial.words, [word, "house"]), plain)):
            raise AbsentError("the cells of the web UI's plot are unlike single pictures without LoRA, too")
    for cell, picture, tag in zip(cells, alone, tags, strict=True):
        same(cell, picture, f"the cell of {tag}")
    trial.none_again("after a plot")
    return ""


def plotted(trial: Trial, prompt: str, values: Sequence[str]) -> list[np.ndarray]:
    """Return the cells of an X/Y/Z plot that replaces the first value in the prompt by each."""
    fields = trial.ui.plot_fields(",".join(values))
    if fields is None:
        raise AbsentError("no X/Y/Z plot")
    made, _ = trial.ui.pictures(prompt, trial.fields | fields)
    cells = [cell for cell in made if cell.shape == trial.none.shape]
    if len(cells) != len(values):
        raise FailedError(f"the plot has {len(cells)} cells instead of {len(values)}")
    return cells


def brackets(trial: Trial) -> str:
    fields = trial.fields | {"steps": 5}
    negative = {"negative_prompt": f"a blue square <lora:{trial.a}:1>"}
    places = {
        "[<lora:{a}:1>::0.4]": "<lora:{a}:1:stop=0.4>",
        "[<lora:{a}:1>:2]": "<lora:{a}:1:start=2>",
        "[<lora:{a}:1>:<lora:{b}:1>:0.4]": "<lora:{a}:1:stop=0.4> <lora:{b}:1:start=0.4>",
        "(<lora:{a}:1>:0.5)": "<lora:{a}:0.5>",
        "(([<lora:{a}:1>:2]))": "<lora:{a}:1.21:start=2>",
    }
    options = trial.ui.ask("/sdapi/v1/options")
    usual = {"remora_grammar": False, "remora_merge": "never"}  # Forge Neo does not list the settings of extensions
    former = {name: options.get(name, value) for name, value in usual.items()}
    trial.ui.set(remora_grammar=True, remora_merge="never")  # a text that was encoded while merged is used again
    try:
        plain = trial.ui.picture(f"{trial.words} <lora:{trial.a}:1>", fields)
        for place, arguments in places.items():
            told, tags = (text.format(a=trial.a, b=trial.b) for text in (place, arguments))
            made = trial.ui.picture(f"{trial.words} {told}", fields)
            unlike(made, plain, f"{told} as the tag alone: the picture")
            same(made, trial.ui.picture(f"{trial.words} {tags}", fields), f"{told} beside {tags}")
        made = trial.ui.picture(trial.words, fields | negative)
        tag = f"<lora:{trial.a}:1:half=neg>"
        without = fields | {"negative_prompt": "a blue square"}
        unlike(made, trial.ui.picture(trial.words, without), "a tag in the negative prompt: the picture")
        same(made, trial.ui.picture(f"{trial.words} {tag}", without), f"a tag in the negative prompt beside {tag}")
    finally:
        trial.ui.set(**former)
    trial.none_again("after tags within brackets")
    return f"in {len(places) + 1} places"


CHECKS: Mapping[str, Callable[[Trial], str]] = {
    "No LoRA, twice: the same picture": repeats,
    "Each LoRA changes it": changes,
    "Remora's state says applied, and every layer": is_told,
    "1.0, 1.1, 0.2, none, 0.2, 1.0: all different, each the same again": strengths,
    "Two LoRA in any order: the same picture, unlike each alone": order,
    "A LoRA after another one: the same as before": returns,
    "A name without a file is told, and leaves nothing behind": unknown,
    "Four prompts of one batch, each with its own LoRA: as made alone": batch,
    "Hires with a LoRA: changed, and none is the same again": hires,
    "Interrupted: what follows is the same as before": interrupted,
    "Off, the web UI's own LoRA, on again: the same as before": given_back,
    "Another checkpoint and back: the same as before": checkpoints,
    "X/Y/Z plot: each cell as made alone": plot,
    "Tags within brackets: as the same written as arguments": brackets,
}
"""What is tried, as the table says it -> its check, which returns what it measured."""
