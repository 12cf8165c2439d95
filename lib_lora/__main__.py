"""The command line of the library.

`python -m lib_lora inspect FILE [--model PATH] [--json] [--report FILE.json]` shows what is in an adapter file, and
what of it would act; where layers act on nothing, it proposes other names; `--report` writes the keys without weights.
`python -m lib_lora families FILE` shows how well the file fits the signs of each model family.
"""

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
from .inspection.key_list import key_list
from .inspection.renames import Rename, load_with_renames
from .inspection.skeleton import model_skeleton
from .inspection.zeros import changes_nothing
from .naming.architectures.base import known_architectures
from .naming.parsed import ParsedFile
from .report import Family, NetworkReport

_KEYS_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 1 when the file or model cannot be used (the reason goes to stderr)."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "families":
            print(_scores(options.file))
            return 0
        model = None if options.model is None else model_skeleton(options.model)
        file = AdapterFile.open(options.file)
        report, renames = (ParsedFile(file).report(), []) if model is None else load_with_renames(file, model)
        zero = changes_nothing(file)
        if options.report is not None:
            options.report.write_text(json.dumps(key_list(file, report, model), indent=1) + "\n")
    except (LoraError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    proposed = {} if model is None else {"renames": [asdict(one) for one in renames]}
    found = {**report.to_json(), "changes_nothing": zero, **proposed}
    print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else _text(report, renames, zero))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib_lora")
    commands = parser.add_subparsers(required=True, dest="command")
    command = commands.add_parser("inspect", help="show what is in an adapter file")
    command.add_argument("file", type=Path, metavar="FILE", help="a .safetensors adapter")
    text = "a diffusers folder, one of its components, or a checkpoint: also show which layers would be hit"
    command.add_argument("--model", type=Path, metavar="PATH", help=text)
    command.add_argument("--json", action="store_true", help="print JSON")
    text = "write keys, shapes and what the metadata say of the format, for a report of a fault: no weights, no paths"
    command.add_argument("--report", type=Path, metavar="FILE.json", help=text)
    families = commands.add_parser("families", help="show the score of each model family and the signs that are seen")
    families.add_argument("file", type=Path, metavar="FILE", help="a .safetensors adapter")
    return parser


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
    lines += [f"rename        {one}" for one in renames]
    lines += [f"metadata      {key} = {_readable(value)[:200]}" for key, value in sorted(report.metadata.items())]
    return "\n".join(lines)


def _readable(value: str) -> str:
    """Return a value of the metadata; of a picture inside, its type and size alone."""
    kind, found, data = value.partition(";base64,")
    return f"{kind}, {len(data) * 3 // 4:,} bytes" if found and kind.startswith("data:") else value


def _scores(file: Path) -> str:
    """List every family with its score on a file and the signs that are seen, the best first."""
    facts = ParsedFile(AdapterFile.open(file)).facts
    scored = [(one.score(facts), one) for one in known_architectures()]
    lines = []
    for score, one in sorted(scored, key=lambda pair: -pair[0]):
        lines.append(f"{score:>3} {one.name:<16} {one.title}")
        lines += [f"    {sign.weight:>3} {sign.pattern}" for sign in one.seen(facts)]
    return "\n".join(lines)


def _family(family: Family | None) -> str:
    return "unknown" if family is None else f"{family.name} ({family.likely})"


def _run() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # what reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails at it when it ends
        return 0
    return status


if __name__ == "__main__":
    sys.exit(_run())
