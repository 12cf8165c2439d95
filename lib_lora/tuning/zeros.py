"""Whether a file changes nothing: trainers begin with a zero factor, and a run that failed leaves it so."""

from __future__ import annotations

from ..files.file import AdapterFile
from ..naming.parsed import ParsedFile


def changes_nothing(file: AdapterFile) -> bool:
    """Return whether a file has LoRA alone, in each of which `up` is zero. All of these tensors are read.

    Raises:
        FileError: the file changed on disk.
    """
    parsed = ParsedFile(file)
    if set(parsed.report().kinds) != {"lora"}:
        return False
    ups = [key for group in parsed.groups for param, key in group.keys.items() if param == "lora_up.weight"]
    return bool(ups) and not any(file.tensor(key).any() for key in ups)
