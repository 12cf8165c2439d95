"""The command line of the library; docs/reference/command_line.md describes it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .errors import LoraError
from .files.file import AdapterFile
from .files.sources import component_files, path_of
from .inspection import doctor
from .inspection.key_list import key_list
from .inspection.renames import Rename, load_with_renames
from .inspection.skeleton import model_skeleton
from .inspection.zeros import changes_nothing
from .naming.architectures.base import known_architectures
from .naming.network import inspect_file, load_network, parsed_files
from .naming.parsed import ParsedFile
from .report import Family, NetworkReport
from .saving import command

_KEYS_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 1 if the file or model cannot be used, with the reason on stderr."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "families":
            print(_scores(path_of(options.file)))
        elif options.command == "doctor":
            print(doctor.report(options))
        elif options.command == "inspect":
            print(_inspected(options))
        else:
            print(command.run(options))
    except (LoraError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _inspected(options: argparse.Namespace) -> str:
    model = None if options.model is None else model_skeleton(options.model)
    path = path_of(options.file, parts=True)
    renames = list[Rename]()
    if component_files(path):  # PEFT writes the model's own names
        files = {f"{one.component}/": one.file for one in parsed_files(path)}
        report = inspect_file(path) if model is None else load_network(path, model).report
    else:
        files = {"": (file := AdapterFile.open(path))}
        report, renames = (ParsedFile(file).report(), []) if model is None else load_with_renames(file, model)
    zero = all(changes_nothing(file) for file in files.values())
    if options.report is not None:
        options.report.write_text(json.dumps(key_list(files, report, model), indent=1) + "\n")
    if not options.json:
        return _text(report, renames, zero)
    proposed = {} if model is None else {"renames": [asdict(rename) for rename in renames]}
    data = {**report.to_json(), "changes_nothing": zero, **proposed}
    return json.dumps(data, indent=2, ensure_ascii=False)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m lib_lora", description="Show what a LoRA file is, or write a new one."
    )
    commands = made.add_subparsers(required=True, dest="command", title="commands", metavar="COMMAND")
    texts = {
        "inspect": "show the kinds and layers of a LoRA file, and which of them fit a model",
        "families": "show the score of each model family for a LoRA file, and the signs that it has",
    }
    inspect, families = [commands.add_parser(name, help=text) for name, text in texts.items()]
    doctor.add_options(commands.add_parser("doctor", help="measure LoRA files, alone and together; give hints"))
    for one in (inspect, families):
        one.add_argument("file", type=Path, metavar="FILE", help="a LoRA: a safetensors file, or the folder of one")
    text = "a diffusers folder, the folder of a component, or a checkpoint: show which layers fit it"
    inspect.add_argument("--model", type=Path, metavar="PATH", help=text)
    inspect.add_argument("--json", action="store_true", help="print JSON")
    text = "write keys, shapes and the metadata that name the format, for an issue: no weights, no paths"
    inspect.add_argument("--report", type=Path, metavar="FILE.json", help=text)
    command.add_commands(commands)
    return made


def _text(report: NetworkReport, renames: Sequence[Rename], zero: bool) -> str:
    rows = [
        ("file", str(report.path)),
        ("format", report.format),
        ("architecture", _family(report.family)),
        *([("made from", report.base_model)] if report.base_model else []),
        *([("model", _family(report.model))] if report.resolved else []),
        ("kinds", ", ".join(f"{kind} x {count}" for kind, count in report.kinds.items())),
        ("rank", "none" if report.ranks is None else " to ".join(map(str, dict.fromkeys(report.ranks)))),
        ("layers", f"{report.hit} hit of {report.layers}" if report.resolved else str(report.layers)),
        *([("changes", f"{report.changed} layers of the model")] if report.resolved else []),
        ("size", f"{report.nbytes:,} bytes of tensors in use"),
        *([("effect", "none: `up` of every LoRA in it is zero")] if zero else []),
        ("unused keys", str(len(report.unused))),
    ]
    lines = [f"WARNING: {report.warning}", ""] if report.warning else []
    lines += [f"{name:<13} {value}" for name, value in rows]
    details = {item.key: item.detail for item in report.unused}
    for reason, keys in report.reasons().items():
        lines.append(f"  {len(keys)} {reason}:")
        lines += [f"    {key}{f' ({details[key]})' if details[key] else ''}" for key in keys[:_KEYS_SHOWN]]
        lines += [f"    and {len(keys) - _KEYS_SHOWN} more"] if len(keys) > _KEYS_SHOWN else []
    lines += [f"rename        {rename}" for rename in renames]
    lines += [f"metadata      {key} = {_readable(value)[:200]}" for key, value in sorted(report.metadata.items())]
    return "\n".join(lines)


def _readable(value: str) -> str:
    """Return a value of the metadata, or the type and size of a picture in it."""
    kind, _, data = value.partition(";base64,")
    return f"{kind}, {len(data) * 3 // 4:,} bytes" if data and kind.startswith("data:") else value


def _scores(file: Path) -> str:
    """List every family with its score on a file and the signs that are seen, the best first."""
    facts = ParsedFile(AdapterFile.open(file)).facts
    lines = []
    for family in sorted(known_architectures(), key=lambda family: -family.score(facts)):
        lines.append(f"{family.score(facts):>3} {family.name:<16} {family.title}")
        lines += [f"    {sign.weight:>3} {sign.pattern}" for sign in family.seen(facts)]
    return "\n".join(lines)


def _family(family: Family | None) -> str:
    return "unknown" if family is None else f"{family.name} ({family.likely})"


def _run() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails when it flushes at its end
        return 0
    return status


if __name__ == "__main__":
    sys.exit(_run())
