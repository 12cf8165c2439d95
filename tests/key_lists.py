"""Key lists of users' files: `python -m tests.key_lists REPORT.json NAME` makes a case of a report of `inspect`.

`inspect FILE --model MODEL --report REPORT.json` writes the report. The case has the first and the last block of the
file and of the model, and what becomes of them today; change `becomes` to what should become of them, then mend the
code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lib_lora.inspection.skeleton import skeleton
from lib_lora.naming.network import inspect_file, load_network
from lib_lora.report import NetworkReport
from tests.fakes.files import hollow

FOLDER = Path(__file__).parent / "data" / "key_lists"
_NUMBER = re.compile(r"(?<=[._])\d+(?=[._])")
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8"}


def thinned(names: Iterable[str]) -> list[str]:
    """Return names without those that differ in numbers alone from two others, the first and the last ones."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_NUMBER.sub("{}", name), []).append(name)
    ordered = [sorted(own, key=lambda name: [int(n) for n in _NUMBER.findall(name)]) for own in alike.values()]
    return [name for own in ordered for name in dict.fromkeys((own[0], own[-1]))]


def case_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return a case of what `inspect --report` wrote, with what becomes of it today."""
    model = report["model"]
    case = {
        "keys": {key: report["keys"][key] for key in thinned(report["keys"])},
        "metadata": report["metadata"],
        "model": model and {part: {name: own[name] for name in thinned(own)} for part, own in model.items()},
    }
    return case | {"becomes": becomes(replay(case))}


def replay(case: dict[str, Any]) -> NetworkReport:
    """Resolve a file of zeros with the keys of a case against the layers of its model."""
    infos = {key: (shape, _DTYPES[dtype]) for key, (dtype, shape) in case["keys"].items()}
    with TemporaryDirectory() as folder:
        path = hollow(Path(folder) / "file.safetensors", infos, case["metadata"])
        if case["model"] is None:
            return inspect_file(path)
        model = {
            part: skeleton({f"{name}.weight": tuple(shape) for name, shape in own.items()})
            for part, own in case["model"].items()
        }
        return load_network(path, model).report


def becomes(report: NetworkReport) -> dict[str, Any]:
    """Return what a case asserts."""
    unused = {reason: len(keys) for reason, keys in report.reasons().items()}
    return {"format": report.format, "family": report.architecture, "layers": report.layers, "hit": report.hit} | {
        "unused": unused
    }


def main(source: str, name: str) -> None:
    """Write a case."""
    FOLDER.mkdir(exist_ok=True)
    case = case_of(json.loads(Path(source).read_text()))
    (FOLDER / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
