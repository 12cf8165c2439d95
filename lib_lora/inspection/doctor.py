"""The report of `python -m lib_lora doctor`: files by themselves, on one model together, and as a set."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import LoraError
from ..files.sources import name_of, path_of
from .figures import Standing, standings_in
from .layers import FileLayers, layers_of
from .measures import FileMeasures, measure
from .skeleton import mapped_model
from .sketches import Likeness, Merge, compare, sketch
from .stacked import PairMeasures, StackMeasures, measure_stack
from .training import trained
from .verdicts import verdicts

_BAR = 40  # characters
_ALIKE = {
    "same": "has the same change, up to rounding, as",
    "precision": "is, in another precision,",
    "rank": "has the same change, with other factors, as",
    "scaled": "is a multiple of",
    "resized": "is, resized or converted,",
    "near": "is close to, as another epoch of one training,",
    "epoch": "is of the same training, after another number of steps, as",
}


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    command.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="a LoRA: a safetensors file, or the folder of one"
    )
    text = "a diffusers folder, the folder of a component, or a checkpoint: compare norms with its weights"
    command.add_argument("--model", type=Path, metavar="PATH", help=text)
    text = "a folder of LoRA: tell where the file stands among those for the same model; measures all of them"
    command.add_argument("--library", type=Path, metavar="FOLDER", help=text)
    text = "the strength of each file in a stack; 1 if not given"
    command.add_argument("--strengths", type=float, nargs="+", metavar="NUMBER", default=[], help=text)
    text = "tell the strengths at which the sum of the files has this norm, not that of the strongest file"
    command.add_argument("--norm", type=float, metavar="NUMBER", help=text)
    command.add_argument("--json", action="store_true", help="print JSON, with all measures of all layers")
    text = "write a table with a line for each layer"
    command.add_argument("--csv", type=_ending(".csv"), metavar="TABLE.csv", help=text)
    text = "draw blocks, spectrum and pairs; needs the package Pillow"
    command.add_argument("--png", type=_ending(".png"), metavar="PICTURE.png", help=text)


def _ending(suffix: str) -> Callable[[str], Path]:
    """Return what reads the path of a file to write: by its ending, no LoRA file is overwritten."""

    def read(text: str) -> Path:
        if not text.lower().endswith(suffix):
            raise argparse.ArgumentTypeError(f"the name of the file to write must end in {suffix}: {text}")
        return Path(text)

    return read


def report(options: argparse.Namespace) -> str:
    """Return what the command prints.

    Raises:
        LoraError: a file or the model cannot be used, the number of strengths is not that of the files, or a number
            is not finite.
        OSError: the table or the picture cannot be written.
    """
    write_picture = None if options.png is None else _drawing()
    files = [path_of(path, parts=True) for path in options.files]
    strengths = options.strengths or [1.0] * len(files)
    if len(strengths) != len(files):
        raise LoraError(f"{len(strengths)} strengths for {len(files)} files")
    if options.norm is not None and not (math.isfinite(options.norm) and options.norm >= 0):
        raise LoraError(f"--norm must be a number from 0 up, not {options.norm:g}")
    model = None if options.model is None else mapped_model(options.model)
    opened = [layers_of(path, model) for path in files]
    measured = [measure(one) for one in opened]
    places = _places(options.library, opened if model is None else [layers_of(path) for path in files])
    stack, alike, merged = None, list[Likeness](), list[Merge]()
    if len(files) > 1:
        stack = measure_stack(opened).at(strengths)
        alike, merged = compare([sketch(one) for one in opened], files)
    names = [name_of(path) for path in files]
    if options.csv is not None:
        _write_table(options.csv, measured)
    if write_picture is not None:
        write_picture(options.png, list(zip(names, measured, strict=True)), stack)
    if options.json:
        told = None if stack is None else _stack_json(stack, strengths, options.norm)
        return _json(measured, places, told, alike, merged)
    parts = [_file_text(one, own, options.library) for one, own in zip(measured, places, strict=True)]
    parts += [_stack_text(names, stack, strengths, options.norm)] if stack is not None else []
    parts += [_set_text(names, alike, merged)] if stack is not None else []
    return "\n\n".join(parts)


def _places(folder: Path | None, files: Sequence[FileLayers]) -> list[dict[str, Standing]]:
    """Compare the figures of files with the files of a folder; return nothing without a folder.

    Raises:
        LoraError: there is no such folder, or a file changed on disk.
    """
    if folder is None:
        return [{} for _ in files]
    if not folder.is_dir():
        raise LoraError(f"--library takes a folder of LoRA files, and {folder} is none")
    return standings_in(folder, files)


def _drawing() -> Callable[[Path, Sequence[tuple[str, FileMeasures]], StackMeasures | None], None]:
    """Return what draws the measures.

    Raises:
        LoraError: Pillow is not installed.
    """
    try:
        from .drawing import write_picture
    except ModuleNotFoundError as error:
        raise LoraError("--png needs the package Pillow. Install it with `pip install Pillow`") from error
    return write_picture


def _write_table(path: Path, measured: Sequence[FileMeasures]) -> None:
    """Write a line for each layer of all files; a program for tables reads the singular values as one text."""
    found = [(str(one.file.report.path), layer) for one in measured for layer in one.layers]
    values = [" ".join(map(str, layer.largest)) for _, layer in found]
    rows = [
        {"file": file, **layer.to_json(), "singular_values": text}
        for (file, layer), text in zip(found, values, strict=True)
    ]
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]) if rows else ["file"])
        table.writeheader()
        table.writerows(rows)


def _json(
    measured: Sequence[FileMeasures],
    places: Sequence[Mapping[str, Standing]],
    stack: dict[str, object] | None,
    alike: Sequence[Likeness],
    merged: Sequence[Merge],
) -> str:
    files = [{**one.to_json(), "verdicts": [verdict.to_json() for verdict in verdicts(one)]} for one in measured]
    for file, own in zip(files, places, strict=True):
        file["standings"] = {name: place._asdict() for name, place in own.items()}
    data: dict[str, object] = {"files": files}
    if stack is not None:
        data["stack"] = stack
        data["alike"], data["merged"] = [asdict(one) for one in alike], [asdict(one) for one in merged]
    return json.dumps(data, indent=2, ensure_ascii=False)


def _stack_json(stack: StackMeasures, strengths: Sequence[float], norm: float | None) -> dict[str, object]:
    return {
        "strengths": list(strengths),
        "norm": stack.norm,
        "alone": stack.alone,
        "left": stack.left,
        "factor": stack.factor(norm),
        "alive": stack.alive(),
        "pairs": [pair.to_json() for pair in stack.pairs],
    }


def _file_text(one: FileMeasures, places: Mapping[str, Standing], library: Path | None) -> str:
    found = one.file.report
    relative = "" if one.relative is None else f", {one.relative:.1%} of the base weights'"
    components, said = one.by_component(), trained(found.metadata, found.path.stem)
    to_base = [(name, part.relative) for name, part in components.items()]
    alone = library is not None and not any(place.others for place in places.values())
    rows = [
        ("file", str(found.path)),
        ("kinds", ", ".join(f"{kind} x {count}" for kind, count in found.kinds.items())),
        ("layers", f"{found.hit} of {found.layers} fit the model" if found.resolved else str(found.layers)),
        ("made from", found.base_model or ""),
        ("trained", ", ".join(f"{name} {value}" for name, value in said.items()) or "unknown"),
        ("norm", f"{one.norm:.4g}{relative}{_place_text(places.get('norm'))}"),
        ("energy", ", ".join(f"{name} {one.share(part):.1%}" for name, part in components.items())),
        ("spectral", ", ".join(f"{name} {part.spectral:.4g}" for name, part in components.items())),
        ("of base", ", ".join(f"{name} {value:.1%}" for name, value in to_base if value is not None)),
        ("scale", ", ".join(f"{scale:.4g}" for scale in one.scales) or "none"),
        ("kept", ", ".join(f"rank {rank}: {share:.1%}" for rank, share in one.kept().items())),
        ("library", "no other file is known to be for this model, or the figures of this one are not known" * alone),
        *[("unmeasured", f"{count} x {kind}: give --model") for kind, count in one.unmeasured.items()],
    ]
    lines = [f"WARNING: {found.warning}"] if found.warning else []
    lines += [f"{name:<11} {value}" for name, value in rows if value]
    lines += _blocks_text(one)
    judged = [f"{verdict}{_place_text(places.get(verdict.figure))}" for verdict in verdicts(one)]
    judged = judged or ["nothing is wrong by these measures"]
    return "\n".join([*lines, *[f"verdict     {text}" for text in judged]])


def _place_text(place: Standing | None) -> str:
    return "" if place is None or not place.others else f" ({place})"


def _blocks_text(one: FileMeasures) -> list[str]:
    """Return a line for each block: energy, spectral norm, norm against the base weights where known, and a bar."""
    blocks = one.by_block()
    longest = max([part.energy for part in blocks.values()], default=1.0) or 1.0
    base = "" if one.relative is None else "  of base"
    lines = [f"  {'block':<16} energy spectral{base}"] if blocks else []
    for name, part in blocks.items():
        relative = "" if one.relative is None else f" {'' if part.relative is None else f'{part.relative:.1%}':>8}"
        bar = "#" * round(_BAR * part.energy / longest)
        lines.append(f"  {name:<16} {one.share(part):>6.1%} {part.spectral:>8.4g}{relative} {bar}")
    return lines


def _stack_text(names: Sequence[str], stack: StackMeasures, strengths: Sequence[float], norm: float | None) -> str:
    given = ", ".join(f"{name} {strength:g}" for name, strength in zip(names, strengths, strict=True))
    wanted = "the norm of the strongest file alone" if norm is None else f"the norm {norm:g}"
    lines = [
        f"together    {given}: norm {stack.norm:.4g}",
        f"            times {stack.factor(norm):.3g}, the sum has {wanted}",
    ]
    measured = [one for one in zip(names, stack.alone, stack.left, strict=True) if one[1]]
    lines += [f"  {name}: norm {alone:.4g}, {left:.0%} of it left in the sum" for name, alone, left in measured]
    lines += _alive_text(names, stack, strengths)
    pairs, cancelling = stack.pairs, stack.cancelling
    for files in dict.fromkeys([pair.files for pair in pairs]):
        bands = [pair for pair in pairs if pair.files == files]
        cosines = sorted([pair.cosine for pair in bands])
        relations = sorted({pair.relation for pair in bands})
        text = f"{' and '.join(relations)}, cosine {cosines[0]:+.3f} to {cosines[-1]:+.3f}"
        lines.append(f"pair        {' + '.join(names[i] for i in files)}: {text}")
        lines += [_band_text(pair) for pair in bands if pair.relation != "independent"]
        if files in cancelling:
            lines.append(f"  use {names[files[0]]} or {names[files[1]]} alone: each may undo the other")
    return "\n".join(lines if pairs else [*lines, "            no two files change the same layer"])


def _alive_text(names: Sequence[str], stack: StackMeasures, strengths: Sequence[float]) -> list[str]:
    """Return the strengths at which the sum leaves half of each file, if it does not yet."""
    factors = stack.alive()
    if factors is None:
        return ["  no strengths leave half of each file: use fewer of them"]
    if min(factors) == 1:
        return []
    offered = [f"{name} {one * factor:.2g}" for name, one, factor in zip(names, strengths, factors, strict=True)]
    return [f"  half of each file is left at {', '.join(offered)}"]


def _band_text(pair: PairMeasures) -> str:
    where = pair.band if pair.band == pair.component else f"{pair.component} {pair.band}"
    (outputs, by_chance, _), (inputs, also, _) = pair.overlap(0), pair.overlap(1)
    shared = f"shared outputs {outputs:.0%} ({by_chance:.0%} by chance), inputs {inputs:.0%} ({also:.0%} by chance)"
    return (
        f"  {where}: {pair.relation}; cosine {pair.cosine:+.3f} (±{pair.cosine_by_chance:.3f} by chance), "
        f"mean of the layers {pair.mean_cosine:+.3f}; {shared}"
    )


def _set_text(names: Sequence[str], alike: Sequence[Likeness], merged: Sequence[Merge]) -> str:
    lines = []
    for one in alike:
        first, second = (names[i] for i in one.files)
        factor = f", times {one.factor:.3g}" if one.alike == "scaled" else ""
        lines.append(f"alike       {second} {_ALIKE[one.alike]} {first} (cosine {one.cosine:.4f}{factor})")
    for merge in merged:
        parts = [f"{strength:.2g} x {names[i]}" for i, strength in zip(merge.parents, merge.strengths, strict=True)]
        lines.append(f"merged      {names[merge.file]} is {' + '.join(parts)}, but for {merge.left:.1%} of its energy")
    return "\n".join(lines or ["alike       no two files are the same change"])
