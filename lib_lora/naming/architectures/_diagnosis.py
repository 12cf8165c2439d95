"""Why a layer of a file does not fit the model: what the file was made for, by its shapes and names, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...files.components import DENOISER, role
from ...report import Family
from .base import Variant, architecture_of

BROKEN = "of a layer whose tensors do not fit each other; download the file again, or train it again"
_ANOTHER_SIZE = "made for a layer of another size; load the model that the file was made for"
_ENCODERS = {
    768: "CLIP-L",
    1024: "OpenCLIP H",
    1280: "OpenCLIP bigG",
    2304: "Gemma 2 2B",
    2560: "Qwen3 4B",
    3584: "Qwen2.5-VL 7B",
    4096: "T5-XXL, Llama 3 8B or Qwen3 8B",
}
"""How wide text encoders are -> which ones."""
_NUMBER = re.compile(r"\d+")


class Unlike(NamedTuple):
    """A layer of a file that has another shape than the model's layer of that name."""

    component: str
    name: str
    own: tuple[int, ...] | None
    """The shape that the file's layer was made for; None where its tensors do not tell."""
    shape: tuple[int, ...]
    takes_latents: bool

    @property
    def is_broken(self) -> bool:
        """Return whether it has the right shape, or none at all: then its tensors do not fit each other."""
        if self.own is None or len(self.own) < 2 or len(self.shape) < 2 or self.own == self.shape:
            return True
        return len(self.own) != len(self.shape) and self.own[:2] == self.shape[:2]

    @property
    def detail(self) -> str:
        """Return both shapes, for people."""
        own, shape = (" x ".join(map(str, one)) for one in (self.own or (), self.shape))
        return f"{self.component}.{self.name} is {shape} in the model, {own} in the file"


def diagnoses(layers: Sequence[Unlike], made_for: Family | None, model: Family | None) -> list[str]:
    """Return of each layer, in one sentence, what the file was made for and what to do."""
    if made_for is not None and _differ(made_for, model):
        other = f"of a layer that {made_for.titles} has in another size; load a model of that family"
        return [BROKEN if one.is_broken else other for one in layers]
    known = variants_of(model or made_for)
    texts = {of_text: _another_width(layers, known, of_text=of_text) for of_text in (False, True)}
    found = []
    for one in layers:
        if one.is_broken or one.own is None:
            found.append(BROKEN)
        elif one.takes_latents and one.own[0] == one.shape[0]:
            found.append(_other_inputs(one, one.own, known))
        else:
            found.append(texts[role(one.component) != DENOISER])
    return found


def missing(name: str, made_for: Family | None, model: Family | None, generic: Collection[str]) -> str:
    """Return why a model has no layer of a name, what the file was made for, and what to do; empty if nothing tells.

    Args:
        name: of the layer in the file, in any spelling.
        made_for: the file's family.
        model: the model's family.
        generic: the names of the model's layers as `without_block` returns them.
    """
    if _differ(made_for, model):
        return ""
    for one in variants_of(model):
        if one.layers and re.search(one.layers, name):
            return f"of a layer that only {one.title} has; load {one.title}, or use a file for the loaded model"
    if without_block(name) in generic:
        return "of a block that the loaded model does not have; the file was made for a model with more blocks"
    return ""


def _differ(made_for: Family | None, model: Family | None) -> bool:
    return made_for is not None and model is not None and made_for.differs(model, hints=True)


def without_block(name: str) -> str:
    """Return a name in which `#` stands for the first number, which is the block's, and an underscore for each dot."""
    return _NUMBER.sub("#", name.replace(".", "_"), count=1)


def variants_of(family: Family | None) -> tuple[Variant, ...]:
    """Return the known variants of a family."""
    own = architecture_of(family)
    return () if own is None else own.variants


def _other_inputs(one: Unlike, own: tuple[int, ...], known: Sequence[Variant]) -> str:
    titles = {variant.inputs: variant.title for variant in known if variant.inputs}
    title = titles.get(own[1])
    load = title or "the model it was made for, such as one for inpainting or control"
    made_for = f"made for {title or 'another model'}, which has {own[1]} inputs in {one.name}"
    return f"{made_for} where the loaded model has {one.shape[1]}; load {load}"


def _another_width(layers: Sequence[Unlike], known: Sequence[Variant], *, of_text: bool) -> str:
    """Return for which width a file was made: the one that differs in most of its layers."""
    titles = _ENCODERS if of_text else {variant.width: variant.title for variant in known if variant.width}
    widths = Counter(
        (mine, its)
        for one in layers
        if one.own is not None and len(one.own) == len(one.shape) and (role(one.component) != DENOISER) == of_text
        for mine, its in zip(one.own[:2], one.shape[:2], strict=True)
        if mine != its
    )
    if not widths:
        return _ANOTHER_SIZE
    (mine, its), _ = max(widths.items(), key=lambda one: (one[0][0] in titles, one[0][1] in titles, one[1]))
    what = "text encoder" if of_text else "model"
    here, there = (f"{titles[width]}, {width} wide" if width in titles else f"{width} wide" for width in (its, mine))
    if mine not in titles and its not in titles:
        there, here = f"a layer of {mine} inputs or outputs", f"{its}"
        return f"made for {there}, where the loaded {what} has {here}; load the {what} that the file was made for"
    return f"made for a {what} that is {there}; the loaded one is {here}: load the former, or use a file for the latter"
