"""The family that words name: what a header, or a page on the web, says that a file was made for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..files.file import AdapterFile
from ..files.reading import USUAL, with_sidecar
from ..naming.architectures.base import family_of
from ..naming.network import inspect_file
from ..naming.parsed import ParsedFile
from ..report import Family, NetworkReport


@lru_cache(maxsize=4096)
def family_named(*texts: str) -> Family | None:
    """Return the family that texts name, such as `sdxl_base_v1-0` or `SD 1.5`; None if they name none."""
    words = [text.strip().replace(" ", "_").replace("\n", "_") for text in texts]
    return family_of([f"meta:ss_base_model_version:{word}" for word in words])


def report_of(path: Path) -> tuple[NetworkReport, Family | None]:
    """Return what a file is, and the family that its header names, if its layers are of another.

    The path may be of a folder that PEFT saved component by component, whose headers name none.

    Raises:
        FileError: the file cannot be read.
    """
    if path.is_dir():
        return inspect_file(path), None
    parsed = ParsedFile(AdapterFile.open(path))
    named = family_of([fact for fact in parsed.facts if fact.startswith("meta:")])
    layers = family_of([fact for fact in parsed.facts if not fact.startswith("meta:")])
    is_misnamed = named is not None and layers is not None and named.differs(layers)
    return parsed.report(reading=with_sidecar(path, USUAL)), named if is_misnamed else None
