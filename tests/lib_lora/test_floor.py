"""The library calls nothing that torch 2.1 lacks, but where it asks first.

tests/data/since_torch_2_1.json has the names that torch 2.13 has and torch 2.1 lacks, by the name before the dot;
"Tensor" stands for anything. `index` of a tensor is left out, as lists have it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEWER = {
    place: set(names.split())
    for place, names in json.loads((ROOT / "tests" / "data" / "since_torch_2_1.json").read_text("utf-8")).items()
}
GUARDED = {("hooks.py", "nn.RMSNorm")}
"""They are behind `hasattr` in the same expression."""


def newer_names(source: str) -> Iterator[str]:
    """Yield what a module reads of torch that torch 2.1 lacks; a name in `getattr` or `hasattr` is no such reading."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            place = ast.unparse(node.value)
            if node.attr in NEWER["Tensor"] or node.attr in NEWER.get(place, ()):
                yield f"{place}.{node.attr}"


def test_the_library_calls_nothing_that_the_oldest_torch_lacks() -> None:
    found = {
        (file.name, name)
        for file in (ROOT / "lib_lora").rglob("*.py")
        for name in newer_names(file.read_text(encoding="utf-8"))
    }
    assert found == GUARDED


def test_a_newer_name_is_found() -> None:
    assert list(newer_names("base._use_count()\nnn.RMSNorm(4)\ngetattr(base, '_use_count', None)\nx.index(3)\n")) == [
        "base._use_count",
        "nn.RMSNorm",
    ]
