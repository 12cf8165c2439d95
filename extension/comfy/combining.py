"""Stacks in which tags have a rule: one file stands for their LoRA. ComfyUI deletes these files when it ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import folder_paths

from lib_lora import Entry, LoraError, Stack, is_off

from ..generation.combined import common_limits
from ..generation.combined_files import CombinedFiles, drop_old, note_use, why_not
from .applied import applied_files
from .entries import NodeError, RuledEntry, entry_of_tag

if TYPE_CHECKING:
    from torch import nn

    from ..generation.combined_files import Progress
    from ..text.tag import Rule

logger = logging.getLogger(__name__)

_files = CombinedFiles()


def combined(entries: Sequence[Entry], components: Mapping[str, nn.Module]) -> tuple[Entry, ...]:
    """Return a stack in which one entry stands for all of a rule; an interruption leaves nothing.

    Args:
        entries: the stack.
        components: of the model, by diffusers' names.

    Raises:
        NodeError: the LoRA of a rule cannot be combined.
    """
    found = [entry for entry in entries if not isinstance(entry, RuledEntry)]
    rules: dict[Rule, list[RuledEntry]] = {}
    for entry in entries:
        if isinstance(entry, RuledEntry) and entry.tag.rule is not None:
            rules.setdefault(entry.tag.rule, []).append(entry)
    folder = Path(folder_paths.get_temp_directory(), "remora")
    for rule, own in rules.items():
        name = " + ".join(entry.name for entry in own)
        try:
            found += _of_rule(rule, own, name, folder, components)
        except (LoraError, OSError) as error:
            raise NodeError(f"{name}: combine={rule.how} is not possible: {why_not(error, folder)}") from error
    if rules:
        needed = {Path(entry.path) for entry in found} | applied_files()
        drop_old(folder, {path for path in needed if folder in path.parents})
    return tuple(found)


def _of_rule(
    rule: Rule, own: Sequence[RuledEntry], name: str, folder: Path, components: Mapping[str, nn.Module]
) -> list[Entry]:
    """Return the entry of the file that a rule makes; what is off takes no part in it, as without a rule."""
    limits = common_limits([entry.tag for entry in own])
    acting = [entry for entry in own if not is_off(entry.multiplier)]
    if len(acting) < 2:
        return [*acting]
    alone = [replace(entry.tag.alone, rule=None) for entry in acting]
    stack = Stack([entry_of_tag(Path(one.path), tag, one.name) for one, tag in zip(acting, alone, strict=True)])
    path = _files.path_of(folder, rule, stack, components)
    if not path.exists():
        _files.make(path, rule, stack, components, _progress())
        for note in _files.notes(path):
            logger.info("remora: %s: %s", name, note)
    note_use(path)
    return [entry_of_tag(path, limits, f"{name} ({rule.how})")]


def _progress() -> Progress:
    """Return what moves ComfyUI's bar, and ends the work where the user interrupts it."""
    from comfy.model_management import throw_exception_if_processing_interrupted
    from comfy.utils import ProgressBar

    bar = ProgressBar(1)

    def tell(done: int, layers: int) -> None:
        throw_exception_if_processing_interrupted()
        bar.update_absolute(done, max(layers, 1))

    return tell
