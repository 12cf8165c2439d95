"""A model that changes while a stack is on it: each picture is the right one, or it is said that it is not."""

from __future__ import annotations

import copy
import logging
import random
from contextlib import suppress
from pathlib import Path

import pytest
from torch import Tensor

from lib_lora import Engine, Entry, LoraError, Stack
from tests.fakes.changes import CHANGES, Pipeline, right_picture, write_files

TOLERANCE = 2e-3  # of the largest value: quantized layers round their output
AT_ONCE = 5  # changes of one model, one after the other


class History:
    """A pipeline with a stack in force, and its shadow."""

    def __init__(self, files: list[Path], some: random.Random, caplog: pytest.LogCaptureFixture) -> None:
        self.pipeline, self.some, self.caplog = Pipeline(7), some, caplog
        self.shadow = copy.deepcopy(self.pipeline)
        self.files = dict(zip(files, (0.7, 0.4), strict=True))
        self.engine = Engine.for_pipeline(self.pipeline)
        mode = some.choice(["live", "live", "merged"])
        self.engine.activate(Stack([Entry(path, strength) for path, strength in self.files.items()], mode=mode))
        self.pipeline.picture()
        self.text = f"mode {mode}"

    def step(self) -> str:
        """Make a change; return what is wrong though nothing was said, or nothing. An error ends the history."""
        change, seed = self.some.choice(CHANGES), self.some.randrange(1000)
        component, _, path = self.some.choice(change.layers).partition(".")
        self.text += f"; {change.name}: {component}.{path}"
        self.caplog.clear()
        try:
            change.make(self.shadow, component, path, seed)
            change.make(self.pipeline, component, path, seed)
        except (AttributeError, RuntimeError):  # after an earlier change there is nothing to change
            return "over"
        try:
            self._write_strength()
            picture = self.pipeline.picture()
        except (LoraError, RuntimeError, IndexError):  # which ends a picture, and is not silent
            return "over"
        return self._compare(picture)

    def _write_strength(self) -> None:
        if self.some.random() < 0.3:
            path = next(iter(self.files))
            self.files[path] = self.some.choice([0.3, 0.9])
            self.engine.set_multiplier(0, self.files[path])

    def _compare(self, picture: Tensor) -> str:
        right, lost = right_picture(self.shadow, self.files)
        report = self.engine.report
        said = bool(report.silence) or any(one.unused for one in report.entries)
        said |= any(record.levelno >= logging.WARNING for record in self.caplog.records)
        error = (picture.double() - right).abs().max() / right.abs().max()
        if said:
            return "over"
        return f"{self.text}: {error:.1e} off, {lost} lost" if error > TOLERANCE or lost else ""


def test_no_picture_is_wrong_in_silence(tmp_path, caplog):
    check_changes(60, tmp_path, caplog)


@pytest.mark.full
def test_no_picture_of_many_is_wrong_in_silence(tmp_path, caplog):
    check_changes(300, tmp_path, caplog)


def check_changes(changes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    some, files, wrong, made, right = random.Random(changes), write_files(tmp_path), list[str](), 0, 0
    while made < changes:
        history = History(files, some, caplog)
        for _ in range(AT_ONCE):
            made += 1
            text = history.step()
            right += not text
            if text and text != "over":
                wrong.append(text)
            if text:
                break
        with suppress(LoraError):  # a merged weight that was written to cannot be put back
            history.engine.close()
    assert len(wrong) == 0, "\n".join(wrong)
    assert right > 0.6 * made  # the others were said to be without some LoRA, or ended in an error
