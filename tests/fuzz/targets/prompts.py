"""Prompts, tags, and what stands in them."""

from __future__ import annotations

import math
import re

from extension.text.block_weights import BUILT_IN as BLOCKS
from extension.text.block_weights import (
    BlockWeightsError,
    checked_name,
    format_list,
    format_presets,
    read_list,
    read_presets,
    read_rules,
)
from extension.text.known import Known
from extension.text.prompt import PromptError, format_tag, parse, parse_arguments
from extension.text.prompt_edit import names_in, renamed, set_field, set_multipliers, with_field, with_strength, without
from extension.text.regions import NAMED, RegionTextError, parameters, read_mask, read_parameter
from extension.text.tag import PASSES, Tag
from lib_lora import BlockNames, BlockWeights, Curve, Moment, Region, StackError, Strength

from ..target import check_answer, demand, target, text_of, texts

OWN = {"face": Region.rectangle(0.2, 0.2, 0.6, 0.6), "my region (2)": Region(2, 2, b"\xff\x00\x80\x00")}
KNOWN = Known(BLOCKS, OWN)
NUMBERS = ("1", "0.5", "-1", ".5", "0", "1e-3", "1e308", "99999999", "007", "+2.")
FIELDS = (
    *("te=", "unet=", "dyn=", "hr=", "hrte=", "hrunet=", "in=", "mid=", "out=", "module=", "lbw=", "w=", "lbwe=", "x="),
    *("start=", "stop=", "step=", "sigma=", "by=", "curve=", "pass=", "half=", "rows=", "mask=", "feather=", "part="),
    *("outside=", "combine=", "density=", "seed="),
)
VALUES = (
    *(
        "high",
        "low",
        "0@0,1@0.5",
        "1@14,0~1",
        "2-12",
        "14-1",
        "sigma",
        "timestep",
        "cosine",
        "dare_ties",
        "base,hires",
        "pos",
        "1,3",
    ),
    *("left", "face", "!face+0,0.8,1,1", "OUTALL", "ATTNDEEPON", "1,0,R,U,X-0.2", "unet", "text_encoder_2", "16"),
)
TAGS = texts((*NUMBERS, *FIELDS, *VALUES, ":", ":", "=", ","), 16)


@target(
    texts(
        ("<lora:", "<lyco:", "<loractl:", "<LORA:", "a fox", ">", ">", " ", "\n", *NUMBERS, *FIELDS, *VALUES, ":"), 24
    ),
    refusals=(PromptError,),
)
def prompts(data: bytes) -> object:
    """Whole prompts: read, written, changed by the tab."""
    prompt = text_of(data)
    for name in names_in(prompt)[:2]:
        demand(with_strength(prompt, name, 0.5, 0.25), "the prompt is gone")
        renamed(prompt, name, "other")
        left = without(prompt, name)
        # what is left around a tag within another may be one
        demand(name not in names_in(left) or re.search("<[^<>]*<", prompt), f"{name!r} stays in the prompt")
        with_field(with_field(prompt, name, "stop", "5"), name, "stop", "")
    try:
        parsed = parse(prompt, KNOWN)
    except PromptError as error:
        demand(0 <= error.position < max(1, len(prompt)), f"the place {error.position} is not in the prompt")
        raise
    demand(len(parsed.text) <= len(prompt), "the text grew")
    return [meaning(tag) for tag in parsed.tags]


@target(TAGS, refusals=(PromptError,))
def tags(data: bytes) -> object:
    """Parse the text between `<lora:` and `>`."""
    arguments = f"x:{text_of(data)}"
    for key, value in (("te", "0.5"), ("stop", "7"), ("lbw", ""), ("step", ""), ("mask", "left")):
        set_field(arguments, key, value)
    tag = parse_arguments(arguments, names=KNOWN)
    changed = parse_arguments(set_multipliers(arguments, 0.25, 0.5), names=KNOWN)
    demand((changed.te, changed.unet) == (0.25, 0.5), f"the multipliers became {changed.te} and {changed.unet}")
    return meaning(tag)


def meaning(tag: Tag) -> object:
    """Tell what a tag means, after all that is done with one was done."""
    if not set("<>:") & set(tag.name):
        demand(parse(format_tag(tag), KNOWN).tags == (tag,), f"it is read back otherwise: {format_tag(tag)!r}")
    for at in PASSES:
        multiplier = tag.multiplier_in(at, seed=3, image=1)
        if isinstance(multiplier, Strength) and multiplier.region is not None:
            multiplier.region.weights(6, 9)
    if tag.curve is not None:
        moving(tag.curve)
    return [tag.name, tag.is_off, tag.without(["unet"]).is_off, format_tag(tag)]


def moving(curve: Curve) -> None:
    """Ask for the values of a curve over a pass."""
    for step in range(0, 20, 3):
        value = curve.at(Moment(step, 20, 14.6 - 0.7 * step, 999 - 50 * step))
        demand(math.isfinite(value), f"the curve is {value} in step {step}")


@target(
    texts(
        (*NUMBERS, "@", "@", "~", ",", ",", ";", " ", ":by=sigma", ":by=timestep", ":curve=step", ":curve=cosine"), 20
    ),
    refusals=(PromptError, StackError),
)
def curves(data: bytes) -> object:
    """Schedules: points, by what they go, and their shape."""
    tag = parse_arguments(f"x:{text_of(data)}")
    found = [one for one in (tag.te, tag.unet) if isinstance(one, Curve)]
    for curve in found:
        moving(curve)
    return [[list(map(list, curve.points)), curve.unit, curve.shape] for curve in found]


LAYERS = BlockNames(("text_encoder", "BASE", "IN01", "IN02", "M00", "OUT03", "OUT11"))


@target(
    texts(
        (
            *NUMBERS,
            *NUMBERS,
            ",",
            ",",
            ",",
            "R",
            "U",
            "X",
            "X+0.2",
            "NAME:",
            "\n",
            "\n\n",
            "#",
            "IN05-OUT05",
            "attn",
            "NOT ",
            ":",
            " ",
        ),
        40,
    ),
    refusals=(BlockWeightsError, StackError),
)
def block_weights(data: bytes) -> object:
    """Block weights: lists, names, and files of presets and of rules."""
    text = text_of(data)
    presets, rules = read_presets(text), read_rules(text)
    writable = {name: values for name, values in presets.items() if _is_name(name)}
    again = read_presets(format_presets(writable))
    demand(
        {name: _shown(values) for name, values in again.items()}
        == {name: _shown(one) for name, one in writable.items()},
        "presets are read back otherwise",
    )
    for elements in rules.values():
        for element in elements:
            element.suits("IN02", ("down_blocks.0.attentions.1.attn1.to_q",), LAYERS)
        BlockWeights(None, elements)
    values = read_list(text)
    demand(_shown(read_list(format_list(values))) == _shown(values), "a list is read back otherwise")
    parse_arguments(f"x:1:lbw={format_list(values)}") if len(values) > 1 else None
    return [list(values), sorted(presets), sorted(rules)]


def _is_name(name: str) -> bool:
    try:
        return checked_name(name) == name
    except BlockWeightsError:
        return False


def _shown(values: tuple[float | str, ...]) -> list[str]:
    return [one if isinstance(one, str) else f"{one:.12g}" for one in values]


@target(
    texts(
        (*NAMED, "face", "my region (2)", "+", "+", "!", ",", *NUMBERS, " ", "0,0,0.5,1", "4x4-", "eJz7/x8ABP4B_w"), 20
    ),
    refusals=(RegionTextError,),
)
def regions(data: bytes) -> object:
    """Regions: names, edges, masks, and what a parameters text says of them."""
    text = text_of(data)
    for name, region in read_parameter(text).items():
        said = parameters([read_mask(name, 0.0, {name: region})])["Remora regions"] if any(region.cells) else ""
        demand(not said or read_parameter(said) == {name: region}, "a region is read back otherwise")
    mask = read_mask(text, 0.1, OWN)
    assert mask.region is not None
    weights = mask.region.weights(7, 5)
    demand(bool(((weights >= 0) & (weights <= 1.0001)).all()), "a weight of a region is not from 0 to 1")
    check_answer(parameters([mask]))
    return [mask.written, mask.region.share, sorted(mask.own)]
