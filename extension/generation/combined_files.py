"""Files that a rule makes of the LoRA of a stack, and which of them stay."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from weakref import WeakKeyDictionary

from lib_lora import FileError, component_files

from ..library.walk import READABLE
from ..version import VERSION

if TYPE_CHECKING:
    from torch import nn

    from lib_lora import LoraError, Stack
    from lib_lora.saving import Combination, How

    from ..text.tag import Rule

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""Takes the number of layers that are done, and of all; what it raises ends the work."""
_HOW = re.compile(r"how='(\w+)'")
"""The rule in an error of the library. An error on a tag says it as the tag does: write combine=ties."""
_MOST_FILES = 16
_MOST_BYTES = 4 << 30


class CombinedFiles:
    """One file for each stack and rule. The files that were used last stay."""

    def __init__(self) -> None:
        self._notes: dict[Path, Sequence[str]] = {}
        """Of the files that were made in this session."""
        self._loaded: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        """A name for each model: a file may depend on its weights, which no file on disk need have."""

    def path_of(self, folder: Path, rule: Rule, stack: Stack, model: Mapping[str, nn.Module]) -> Path:
        """Return the path of the file of a stack, which may be there. Without a model, its files tell their layers.

        Raises:
            OSError: a file of the stack cannot be found.
        """
        loaded = [(name, self._loaded.setdefault(part, secrets.token_hex(8))) for name, part in model.items()]
        files = [tuple(component_files(one.path).values()) or (Path(one.path),) for one in stack]
        sources = [_state(path) for own in files for path in own]
        key = repr((VERSION, rule, loaded, sources, asdict(stack)))
        return folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}{READABLE}"

    def make(
        self, path: Path, rule: Rule, stack: Stack, model: Mapping[str, nn.Module], progress: Progress | None
    ) -> None:
        """Make the file of a stack. If it fails or is interrupted, nothing is there.

        Raises:
            LoraError: the LoRA cannot be combined by the rule.
        """
        from lib_lora.saving import choices_of, save_files

        began = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        choices = choices_of({"replace": True, "progress": progress}, combination_of(rule))
        self._notes[path] = save_files(stack, path, choices, model or None).notes
        logger.info("remora: %d LoRA combined by %s in %.1f s", len(stack), rule.how, time.monotonic() - began)

    def notes(self, path: Path) -> Sequence[str]:
        """Return a sentence for each thing about a file that the user should know."""
        return self._notes.get(path, ())


def combination_of(rule: Rule | None) -> Combination:
    """Return the combination that a rule names; without one, the sum."""
    from lib_lora.saving import Combination

    return Combination() if rule is None else Combination(cast("How", rule.how), rule.density, rule.seed)


def why_not(error: LoraError | OSError, folder: Path) -> str:
    """Return why LoRA cannot be combined, in the words of tags; nothing of a file in the folder, which nobody knows."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join([str(part) for part in (error.filename, error.strerror) if part])
    why = error.reason if isinstance(error, FileError) and folder in error.path.parents else str(error)
    return _HOW.sub(r"combine=\1", why)


def note_use(path: Path) -> os.stat_result:
    """Note that a file is used now; return its state."""
    stat = path.stat()
    os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
    return stat


def drop_old(folder: Path, used: Collection[Path]) -> None:
    """Delete what was not used for the longest time, beyond the limits; also what was left unfinished."""
    with suppress(OSError):  # another program deletes files, too
        found = [(path, path.stat()) for path in folder.iterdir() if path not in used]
        count, size = len(used), sum(path.stat().st_size for path in used)
        for path, stat in sorted(found, key=lambda one: one[1].st_atime_ns, reverse=True):
            count, size = count + 1, size + stat.st_size
            if count > _MOST_FILES or size > _MOST_BYTES:
                with suppress(OSError):  # another program reads it
                    path.unlink()


def _state(path: Path) -> tuple[object, ...]:
    """Return what tells whether a file or what is written beside it has changed."""
    stat = path.stat()
    return path, stat.st_size, stat.st_mtime_ns, _stamp(path.with_suffix(".json"))


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
