"""`save`, `combine`, `convert`, `bake` and `extract` of the command line."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import get_args

from torch import nn

from ..errors import StackError, printed
from ..files.components import EXACT, TEXT_ENCODER, role
from ..files.sources import name_of, path_of
from ..naming.blocks import BlockWeights
from ..stack import Entry, Stack
from ..strengths.strength import Strength
from .again import save_again
from .baked import Rounding, bake_stack
from .combination import combine_files
from .conversion import TextEncoders, convert_file
from .extraction import extract_lora
from .merging import Combination, How
from .model_files import ModelFiles
from .new_file import DTYPES, FACTOR, Kind, SavedFile
from .provenance import constant_stack
from .spelling import Spelling
from .stack_file import SaveOptions, choices_of, save_constant

_UNITS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000, "T": 1_000_000_000_000}
_LORA = "a LoRA or its folder; :te=0.5, :dyn=16 and :lbw=1,0.5,... behind it are as in tags"
_FILE = re.compile(r"(.+?)(?:=([^=:]*))?((?::(?:te|dyn|lbw)=[^=:]*)*)")
"""A file, its strength, and what else is said of it."""
_COMPONENTS = (*sorted(EXACT), "decoder", "llm_adapter", "connectors")
_MODEL = "a checkpoint, the index of its shards, the folder of a component, or a diffusers folder"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `save`, `combine`, `convert`, `bake` and `extract` to the commands of a parser."""
    save = commands.add_parser("save", help="write several LoRA files as one")
    combine = commands.add_parser("combine", help="combine LoRA files to one by a rule, also without a model")
    for command in (save, combine):
        command.add_argument("out", type=Path, metavar="OUT", help="the file to write")
        command.add_argument("files", nargs="*", metavar="FILE[=STRENGTH]", help=_LORA)
    text = "a diffusers folder, the folder of a component, or a checkpoint: the model that the LoRA are for"
    save.add_argument("--model", type=Path, metavar="PATH", required=True, help=text)
    _add_combine_options(combine)
    convert = commands.add_parser("convert", aliases=["resize"], help="write one LoRA file in another form")
    convert.add_argument("file", type=Path, metavar="FILE", help="a LoRA: a safetensors file, or the folder of one")
    convert.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    convert.add_argument("--strength", type=float, default=1.0, metavar="X", help="fold a strength in")
    text = "keep the layers of text encoders, drop them, or keep no others"
    convert.add_argument("--text-encoders", choices=get_args(TextEncoders), default="keep", help=text)
    text = "keep these blocks alone, as IN04-OUT05; BASE is the text encoders"
    convert.add_argument("--blocks", nargs="+", default=(), metavar="BLOCK", help=text)
    text = "the model that the LoRA is for; DoRA and the like need it, and names with dots"
    convert.add_argument("--model", type=Path, metavar="PATH", help=text)
    bake, extract = _add_bake(commands), _add_extract(commands)
    text = "make a saved file again as its header says"
    extract.add_argument("--again", type=Path, metavar="SAVED", help=text)
    for command in (save, combine, bake):
        command.add_argument("--again", type=Path, metavar="SAVED", help=f"{text}; FILE are then the folders of LoRA")
    for command in (save, combine, convert, extract):
        _add_form_options(command)


def _add_rule(command: argparse.ArgumentParser, drawn: str) -> None:
    text = f"the rule, sum if none is given: {', '.join(get_args(How))}"
    command.add_argument("--how", choices=get_args(How), default="sum", metavar="RULE", help=text)
    text = "the share of the numbers that ties, dare and magnitude_prune keep, as 0.5"
    command.add_argument("--density", type=float, metavar="D", help=text)
    command.add_argument("--seed", type=int, default=0, metavar="N", help=f"of {drawn}")


def _add_combine_options(combine: argparse.ArgumentParser) -> None:
    _add_rule(combine, "the numbers that dare draws")
    text = "the model that the LoRA are for; DoRA and the like need it, and names that differ"
    combine.add_argument("--model", type=Path, metavar="PATH", help=text)


def _add_form_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rank", type=int, metavar="N", help="the largest rank of a layer")
    command.add_argument("--size", type=_bytes, metavar="SIZE", help="the largest size of the file, as 150M")
    share = command.add_mutually_exclusive_group()
    share.add_argument("--error", type=float, metavar="E", help="the largest error of all layers, as 0.05")
    share.add_argument("--energy", type=_error, dest="error", metavar="S", help="the same as the kept energy, as 0.99")
    text = "the kind of the layers; lokr is the nearest Kronecker product"
    command.add_argument("--kind", choices=get_args(Kind), default="lora", help=text)
    command.add_argument(
        "--factor", type=int, default=FACTOR, metavar="N", help="the size of the first matrix of a lokr"
    )
    text = "the rank to which lower ones are filled up with zeros, for compiled models"
    command.add_argument("--pad", type=int, metavar="N", help=text)
    command.add_argument("--dtype", choices=DTYPES, help="of the numbers in the file")
    command.add_argument(
        "--spelling", choices=get_args(Spelling), default="kohya", help="of the keys; peft writes a folder"
    )
    command.add_argument("--replace", action="store_true", help="replace a file of that name")
    command.add_argument("--layers", action="store_true", help="show the error of each layer")


def _add_bake(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    bake: argparse.ArgumentParser = commands.add_parser("bake", help="write a model again with LoRA in its weights")
    bake.add_argument("out", type=Path, metavar="OUT", help="the file to write; a folder, if MODEL is one or is parted")
    bake.add_argument("model", type=Path, metavar="MODEL", help=_MODEL)
    bake.add_argument("files", nargs="*", metavar="FILE[=STRENGTH]", help=_LORA)
    text = "of weights in float16 and bfloat16; stochastic keeps small changes on average"
    bake.add_argument("--rounding", choices=get_args(Rounding), default="nearest", help=text)
    _add_rule(bake, "the stochastic rounding, and of the numbers that dare draws")
    text = "the largest size of a file, as 5GB; a size above the model's makes one file of shards"
    bake.add_argument("--shard-size", type=_bytes, metavar="SIZE", help=text)
    bake.add_argument("--replace", action="store_true", help="replace a file of that name")
    bake.add_argument("--layers", action="store_true", help="show the error of each layer")
    return bake


def _add_extract(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    extract: argparse.ArgumentParser = commands.add_parser(
        "extract", help="write the difference of two models as a LoRA"
    )
    extract.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    extract.add_argument("base", type=Path, metavar="BASE", help=_MODEL)
    extract.add_argument("tuned", type=Path, metavar="TUNED", help="the model that is BASE with the LoRA, likewise")
    return extract


def run(options: argparse.Namespace) -> str:
    """Run one of the commands, and return what to show.

    Raises:
        LoraError: a file or the model cannot be used.
    """
    return _write(options).summary(layers=options.layers)


def _write(options: argparse.Namespace) -> SavedFile:
    if options.command == "bake":
        return _bake(options)
    choices = SaveOptions(spelling=options.spelling, rank=options.rank, size=options.size, error=options.error)
    choices |= SaveOptions(replace=options.replace, kind=options.kind, factor=options.factor, pad=options.pad)
    if options.dtype is not None:
        choices["dtype"] = DTYPES[options.dtype]
    if options.command == "extract" and options.again is not None:
        folders = [ModelFiles(path).path.parent for path in (options.base, options.tuned)]
        return save_again(options.again, options.out, None, folders, replace=options.replace)
    if options.command == "extract":
        return extract_lora(options.base, options.tuned, options.out, **choices)
    model = None if options.model is None else ModelFiles(options.model).components
    if options.command in ("save", "combine"):
        return _save(options, model, choices)
    return convert_file(
        path_of(options.file, parts=True),
        options.out,
        strength=options.strength,
        text_encoders=options.text_encoders,
        blocks=options.blocks,
        components=model,
        **choices,
    )


def _bake(options: argparse.Namespace) -> SavedFile:
    if options.again is not None:
        folders = [ModelFiles(options.model).path.parent, *options.files]
        return save_again(options.again, options.out, None, folders, replace=options.replace)
    stack = Stack([_entry(text) for text in options.files])
    combination = Combination(options.how, options.density, options.seed)
    drawn = {"combination": combination, "rounding": options.rounding, "seed": options.seed}
    more = {"shard_size": options.shard_size, "replace": options.replace}
    return bake_stack(stack, options.model, options.out, **drawn, **more)


def _save(options: argparse.Namespace, model: dict[str, nn.Module] | None, choices: SaveOptions) -> SavedFile:
    if options.again is not None:
        return save_again(options.again, options.out, model, options.files or ["."], replace=options.replace)
    entries = [_entry(text) for text in options.files]
    if options.command == "combine":
        how, density, seed = options.how, options.density, options.seed
        return combine_files(entries, options.out, how, density=density, seed=seed, components=model, **choices)
    assert model is not None  # the parser asks for it
    stack = constant_stack(Stack(entries), model, None, None, None)
    return save_constant(stack, model, options.out, choices_of(choices))


def _entry(text: str) -> Entry:
    found = None if Path(text).exists() else _FILE.fullmatch(text)
    path, written, more = (text, None, "") if found is None else found.groups()
    options = dict([one.split("=") for one in more.split(":")[1:]])
    try:
        strength = 1.0 if written is None else float(written)
        te, rank = float(options.get("te", strength)), int(options["dyn"]) if "dyn" in options else None
        values = tuple([float(one) for one in options["lbw"].split(",")]) if "lbw" in options else None
    except ValueError as error:
        example = "FILE=0.8, or FILE=0.8:te=0.5:dyn=16:lbw=1,0.5,0 with the list of its model"
        raise StackError(f"{printed(text)}: what is behind = is no number; write {example}") from error
    of = strength if te == strength else {one: te if role(one) == TEXT_ENCODER else strength for one in _COMPONENTS}
    blocks, file = None if values is None else BlockWeights(values), path_of(Path(path), parts=True)
    return Entry(file, Strength(of, blocks=blocks), rank, name=name_of(file))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([\d.]+)([KMGT]?)B?", text.upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 150M, or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2]])


def _error(text: str) -> float:
    """Return the error that is left where so much of the energy is kept, the sum of the squares of all numbers."""
    energy = float(text)
    if not 0 < energy < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return math.sqrt(1 - energy)
