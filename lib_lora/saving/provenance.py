"""How a saved file was made, as its header says it: sources, strengths and choices, enough to make it again.

Strengths are the constant ones of the moment and the image that were saved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import NoneType

import torch

from ..errors import FileError, MomentError, StackError, check_count, check_type, printed
from ..files.components import is_denoiser
from ..files.file import AdapterFile
from ..files.formats import base_model
from ..files.reading import open_regular, with_sidecar
from ..files.sources import component_files
from ..stack import Entry, Stack
from ..strengths.regions import ALL_PLACES
from ..strengths.strength import Moment, Strength, strengths_by_image

HEADER = "remora_recipe"
"""The name under which a header has it."""
_TRIGGERS = ("modelspec.trigger_phrase", "trigger_words", "trigger_word", "ss_trigger_words")
_LICENCES = ("modelspec.license", "license", "licence")
_KEPT = re.compile(r"ss_(?!network_|lora_|rs_|use_rslora|scaling_|output_name).*|modelspec\.(?!hash).*")
"""What a file of one source has of its header: nothing that tells how to read the former tensors."""
_SAME = ("ss_base_model_version", "ss_sd_model_name", "ss_base_model", "modelspec.architecture")
"""What a file has of its sources where all say the same."""


def constant_stack(
    stack: Stack, components: Iterable[str], moment: Moment | None, image: int | None, negative: bool | None
) -> Stack:
    """Return a stack with the constant strengths that another one has at a moment, for an image and a prompt.

    Raises:
        ArgumentError: an argument is of another type.
        StackError: a strength depends on something that is not given, or on the place in the picture.
        MomentError: the moment lacks what a strength depends on.
    """
    check_type(moment, (Moment, NoneType), "moment", "a Moment, as Moment(step=0, steps=20), or None")
    check_type(negative, (bool, NoneType), "negative", "True, False or None")
    if image is not None:
        check_count(image, "image")
    if not stack.entries:
        raise StackError("no LoRA is in force, so that there is nothing to save")
    if stack.images > 1 and image is None:
        raise StackError(f"the {stack.images} images of the stack have strengths of their own; give one, as image=0")
    if image is not None and image >= max(stack.images, 1):
        raise StackError(f"there is no image {image}; the stack has {stack.images}")
    if stack.halved and negative is None:
        raise StackError("positive and negative prompts have strengths of their own; give negative=True or False")
    names, entries = list(components), list[Entry]()
    for entry in stack:
        halves = strengths_by_image(entry.multiplier)
        own = halves[(image or 0) % len(halves)]
        strength = _constant(entry, own[bool(negative) % len(own)], names, moment)
        reading = with_sidecar(Path(entry.path), entry.reading(stack.reading))
        entries.append(replace(entry, multiplier=strength, alpha=reading.alpha, scale=reading.scale))
    return Stack(entries, in_order=stack.in_order, reading=stack.reading)


def _constant(entry: Entry, strength: Strength, components: Iterable[str], moment: Moment | None) -> Strength:
    name = printed(entry.name)
    if (strength.region, strength.part) != ALL_PLACES:
        raise StackError(f"{name} acts in a part of the picture only, which no file can say; take its region off")
    if strength.varies and moment is None:
        text = "its strength differs from step to step; give the moment, as moment=Moment(step=0, steps=20)"
        raise StackError(f"{name}: {text}")
    try:
        of = {one: strength.at(one, None, moment if is_denoiser(one) else None) for one in components}
        sides = {side: strength.at("unet", side, moment) for side in strength.sides}
    except MomentError as error:
        raise MomentError(f"{name}: {error}") from error
    return Strength(of, sides=sides, blocks=strength.blocks)


def recipe_of(stack: Stack, moment: Moment | None, choices: Mapping[str, object]) -> str:
    """Return by which sources, strengths and choices a file is made, for its header; see `save_again`."""
    entries = []
    for entry in stack:
        assert isinstance(entry.multiplier, Strength)
        strength, blocks = entry.multiplier, entry.multiplier.blocks
        entries.append(
            {
                "file": Path(entry.path).name,
                "sha256": digest(Path(entry.path)),
                "name": entry.name,
                "of": dict(strength.of) if isinstance(strength.of, Mapping) else strength.of,
                "sides": dict(strength.sides),
                "blocks": None if blocks is None else asdict(blocks),
                "rank": entry.rank,
                "alpha": entry.alpha,
                "scale": entry.scale,
            }
        )
    made = {"version": 1, "torch": torch.__version__, "entries": entries, "in_order": stack.in_order, **choices}
    made |= {"reading": asdict(stack.reading), "moment": None if moment is None else asdict(moment)}
    return json.dumps(made, sort_keys=True, ensure_ascii=False)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file; of a folder of several components, that of all its files in their order."""
    found = hashlib.sha256()
    for one in component_files(path).values() or [path]:
        try:
            with open_regular(one) as stream:
                while block := stream.read(1 << 20):
                    found.update(block)
        except OSError as error:
            raise FileError(path, f"it cannot be read: {error.strerror or error}") from error
    return found.hexdigest()


def carried(sources: Sequence[AdapterFile], name: str) -> dict[str, str]:
    """Return the metadata that a file has of its sources: trigger words, the model, the licences, and their names."""
    headers = [source.metadata for source in sources]
    found = {key: value for key, value in headers[0].items() if len(sources) == 1 and _KEPT.fullmatch(key)}
    found |= {"ss_output_name": name, "modelspec.title": name}
    found["modelspec.merged_from"] = ", ".join(source.path.name for source in sources)
    triggers = [header[key] for header in headers for key in _TRIGGERS if header.get(key)]
    if triggers:
        found["modelspec.trigger_phrase"] = ", ".join(dict.fromkeys(triggers))
    said = [(one.path.name, one.metadata[key]) for one in sources for key in _LICENCES if key in one.metadata]
    if said:
        found["modelspec.license"] = said[0][1] if len(sources) == 1 else "; ".join(map(": ".join, said))
    for key in _SAME:
        values = {header.get(key, "") for header in headers}
        if len(values) == 1 and (value := values.pop()):
            found[key] = value
    models = dict.fromkeys(filter(None, map(base_model, headers)))
    if len(models) > 1:
        found["remora_base_models"] = "; ".join(models)
    return found | _tags(sources)


def _tags(sources: Sequence[AdapterFile]) -> dict[str, str]:
    """Return how often each tag was in the pictures of the sources, by source and folder, as kohya says it."""
    found: dict[str, object] = {}
    for source in sources if len(sources) > 1 else ():
        with suppress(ValueError, RecursionError, AttributeError):  # what is no object says nothing
            counts = json.loads(source.metadata.get("ss_tag_frequency", "")).items()
            found |= {f"{source.path.stem}: {folder}": tags for folder, tags in counts}
    return {"ss_tag_frequency": json.dumps(found, ensure_ascii=False)} if found else {}
