"""Entries of a stack from the inputs of a node or the tags of a prompt; no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import torch
from torch import Tensor

from lib_lora import BlockNames, BlockWeights, Element, Entry, Halves, LoraError, Multiplier, PerImage, Region, Strength

from ..text.known import Known
from ..text.prompt import PromptError, parse, parse_arguments
from ..text.regions import Mask
from ..text.similar import did_you_mean, similar
from ..text.tag import EXPERTS, Tag

_LARGEST_SIDE = 1024
"""Of a region, in cells."""

_TEXT_ENCODERS = "BASE"
"""Their name in lists of block weights."""


class NodeError(LoraError, ValueError):
    """An input of a node cannot be used."""


@dataclass(frozen=True, slots=True, repr=False)
class RuledEntry(Entry):
    """An entry that is combined with the others of its rule."""

    tag: Tag = field(default_factory=lambda: Tag(""))


def region_of(mask: Tensor, name: str = "mask") -> Region:
    """Return a mask of ComfyUI, (batch, height, width) or (height, width), as a region; of a batch, the first.

    Args:
        mask: its numbers, from 0 to 1.
        name: of the input that it is connected to.

    Raises:
        NodeError: it is empty, or no mask.
    """
    if mask.ndim not in (2, 3) or not mask.numel():
        raise NodeError(f"{name}: a MASK has a batch, a height and a width, not the shape {tuple(mask.shape)}")
    first = mask.detach().to("cpu", torch.float32).reshape(-1, *mask.shape[-2:])[:1]
    height, width = (min(side, _LARGEST_SIDE) for side in first.shape[-2:])
    cells = torch.nn.functional.interpolate(first[None], (height, width), mode="area")[0, 0]
    if not cells.max() > 0:
        raise NodeError(f"{name}: it is empty, so the LoRA would act nowhere; paint something or disconnect it")
    return Region(width, height, bytes((cells * 255).round().clamp(0, 255).to(torch.uint8).flatten().tolist()))


class Masks(Mapping[str, Region]):
    """Inputs of a node for masks, as the regions that rows name; a mask is read where a row names its input."""

    def __init__(self, masks: Mapping[str, Tensor | None]) -> None:
        """Take the mask of each input; None where nothing is connected."""
        self._masks = masks

    def __getitem__(self, name: str) -> Region:
        mask = self._masks[name]
        if mask is None:
            raise NodeError(
                f"{name}: a row has mask={name}, so connect a MASK to this input, or take it out of the row"
            )
        return region_of(mask, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)


def entry_of(
    path: Path, model: float, clip: float, start: float, stop: float, blocks: str, mask: Tensor | None
) -> Entry:
    """Return the entry of one file.

    Args:
        path: the file.
        model: the strength of the denoiser.
        clip: the strength of the text encoders.
        start: the part of the steps after which it begins, from 0 to 1.
        stop: the part of the steps in which it acts.
        blocks: block weights, as `lbw=` in a tag takes them; empty for none.
        mask: the part of the picture in which it acts.

    Raises:
        NodeError: the schedule is empty, the block weights are none, or the mask cannot be used.
    """
    if start >= stop:
        raise NodeError(
            f"start_percent {start:g} is not before stop_percent {stop:g}, so the LoRA would act in no step"
        )
    fields = ["file", f"te={clip!r}", f"unet={model!r}"]
    fields += [f"start={start!r}"] if start > 0 else []
    fields += [f"stop={stop!r}"] if stop < 1 else []
    fields += [f"lbw={blocks.strip()}"] if blocks.strip() else []
    try:
        tag = parse_arguments(":".join(fields))
    except PromptError as error:  # its position is one in a text that the user has not written
        raise NodeError(f"blocks: {error.reason}") from error
    if mask is not None:
        tag = replace(tag, mask=Mask("mask", region=region_of(mask)))
    return entry_of_tag(path, tag)


def read_prompt(
    text: str, names: Iterable[str], path_of: Callable[[str], Path], regions: Mapping[str, Region] | None = None
) -> tuple[str, list[Entry]]:
    """Return a prompt without its LoRA tags, and their entries.

    Args:
        text: the prompt.
        names: the LoRA files, relative to their folders.
        path_of: from one of these names to its file.
        regions: that tags may name beside the ones that Remora ships.

    Raises:
        NodeError: no file has the name of a tag, or several have, or a setting has no meaning in ComfyUI.
        PromptError: a tag cannot be parsed.
    """
    parsed, files = parse(text, Known(regions=regions or {})), list(names)
    return parsed.text, [entry_of_tag(path_of(_file_named(tag.name, files)), tag) for tag in parsed.tags]


def read_rows(
    text: str, names: Iterable[str], path_of: Callable[[str], Path], regions: Mapping[str, Region] | None = None
) -> list[Entry]:
    """Return the entries of a text with tags in its lines; a line that begins with # is off.

    Args:
        text: the lines.
        names: as `read_prompt`.
        path_of: as `read_prompt`.
        regions: as `read_prompt`.

    Raises:
        NodeError: as `read_prompt`, or a line has more than tags, or a tag cannot be parsed.
    """
    entries, files = list[Entry](), list(names)
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        try:
            rest, found = read_prompt(line, files, path_of, regions)
        except PromptError as error:
            raise NodeError(f"line {number}: {error.text}: {error.reason}") from error
        if rest.strip():
            raise NodeError(f"line {number}: {rest.strip()!r} is no LoRA tag; write <lora:name:1>, or # before it")
        entries += found
    return entries


def check_constant(stack: Iterable[Entry]) -> None:
    """Refuse a stack that no file can say.

    Raises:
        NodeError: a strength differs between steps, prompts or parts of the picture.
    """
    for entry in stack:
        multiplier = entry.multiplier
        if isinstance(multiplier, PerImage):
            raise NodeError(f"{entry.name}: a file cannot say that a LoRA is for some images only; leave rows= out")
        if isinstance(multiplier, Halves):
            raise NodeError(f"{entry.name}: a file cannot say that a LoRA is for one prompt only; leave half= out")
        if isinstance(multiplier, Strength) and (multiplier.region, multiplier.part) != (None, None):
            raise NodeError(
                f"{entry.name}: a file cannot say that a LoRA acts in a part of the picture; take its mask off"
            )
        if isinstance(multiplier, Strength) and multiplier.varies:
            text = "a file cannot say in which steps a LoRA acts; set start_percent to 0 and stop_percent to 1"
            raise NodeError(f"{entry.name}: {text}")


def for_text_encoders(entry: Entry, names: Iterable[str], blocks: BlockNames) -> Entry:
    """Return an entry for text encoders alone, with the strengths that they have before the first step.

    An entry of some images of a batch does not act on them, as one text is encoded for all.

    Args:
        entry: of a whole model.
        names: of the text encoders.
        blocks: of the denoiser, by which a list of block weights is read.
    """
    multiplier = entry.multiplier
    if isinstance(multiplier, PerImage):
        multiplier = 0.0
    if isinstance(multiplier, Halves):
        multiplier = multiplier.positive  # as text encoders have it
    if not isinstance(multiplier, Strength):
        return replace(entry, multiplier=multiplier)
    weights, amounts = multiplier.blocks, {name: multiplier.at(name, None, None) for name in names}
    if weights is not None and weights.values is not None:
        values = weights.values
        listed = next((zip(one, values, strict=True) for one in blocks.lists() if len(one) == len(values)), ())
        rule = Element((_TEXT_ENCODERS,), (), dict(listed).get(_TEXT_ENCODERS, 1.0))
        weights = BlockWeights(None, (rule, *weights.elements))
    return replace(entry, multiplier=Strength(amounts, blocks=weights))


def _file_named(name: str, files: list[str]) -> str:
    stems = {file: PurePath(file.replace("\\", "/")).with_suffix("").as_posix() for file in files}
    wanted = name.replace("\\", "/")
    found = [file for file, stem in stems.items() if wanted in (stem, file.replace("\\", "/"))]
    found = found or [file for file, stem in stems.items() if stem.rpartition("/")[2] == wanted]
    if len(found) > 1:
        raise NodeError(f"{name}: {len(found)} files have this name; write one of {', '.join(found[:3])}")
    if not found:
        meant = did_you_mean(similar(name, stems.values())) or "put it into ComfyUI's folder of LoRA files"
        raise NodeError(f"{name}: there is no such LoRA file; {meant}")
    return found[0]


def entry_of_tag(path: Path, tag: Tag, name: str = "") -> Entry:
    """Return the entry of a tag, by the name of its file if no other one is given.

    Raises:
        NodeError: a setting has no meaning in ComfyUI.
    """
    if tag.noise or tag.module == EXPERTS["low"]:
        raise NodeError(
            f"{tag.name}: each expert is a MODEL of its own in ComfyUI; leave high, low and module= out, and"
            " apply the LoRA to the model of that expert"
        )
    multiplier: Multiplier | Halves | PerImage = tag.multiplier
    if tag.rows:  # and one image more, which stands for all others
        multiplier = PerImage(tuple(tag.multiplier_in(image=image) for image in range(max(tag.rows) + 1)))
    values = path, multiplier, tag.rank, tag.alpha, tag.scale, name
    return Entry(*values) if tag.rule is None else RuledEntry(*values, tag)
