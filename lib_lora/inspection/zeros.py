"""Whether a file changes nothing: trainers begin with a zero factor, and a run that failed leaves it so."""

from __future__ import annotations

from ..files.file import AdapterFile
from ..naming.parsed import ParsedFile


def changes_nothing(file: AdapterFile) -> bool:
    """Return whether a file has LoRA alone, in each of which `up` is zero. All tensors are read.

    Raises:
        FileError: the file changed on disk.
    """
    groups = ParsedFile(file).groups
    file.not_finite([key for group in groups for key in group.keys.values()])
    return bool(groups) and all(group.is_zero(file) for group in groups)
