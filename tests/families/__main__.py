"""Print the table of families in docs/files.md: `python -m tests.families`.

Each writer's file is for a model with few blocks, made as `tests/lib_lora/test_families.py` makes it, and resolved on
that model. The layers of the whole model are counted on meta.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from lib_lora import load_network
from lib_lora.naming.architectures.base import known_architectures
from tests.lib_lora.test_families import FAMILIES, components, layers_in, write

HEADER = ("| family | layers | writers | layers in their files | acted on | keys unused |", "|---|---|---|---|---|---|")


def table(names: Collection[str] = FAMILIES) -> Iterator[str]:
    """Yield the lines of the table, as Markdown, of the families of these names."""
    yield from HEADER
    titles = {one.name: one.title for one in known_architectures()}
    for name, family in sorted(FAMILIES.items(), key=lambda one: (titles[one[1].known_as], one[0])):
        if name not in names:
            continue
        reports = []
        for how in family.writers.values():
            with tempfile.TemporaryDirectory() as folder:
                reports.append(load_network(write(family, how, Path(folder)), components(name)).report)
        layers, hit, unused = (
            sum(found) for found in zip(*[(one.layers, one.hit, len(one.unused)) for one in reports], strict=True)
        )
        title = titles[family.known_as] + ("" if family.known_as == name else f", {name.replace('_', ' ')}")
        whole = len(layers_in(family.build(True)))
        yield f"| {title} | {whole:,} | {len(reports)} | {layers:,} | {hit:,} | {unused} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join([*table(), ""]))
