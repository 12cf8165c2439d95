"""Copies among the LoRA files: each file's sketch is made once, in the background, and kept in the index."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from lib_lora import LoraError

from .index import Index, Row
from .plain import read_json
from .walk import CatalogFile

if TYPE_CHECKING:
    from lib_lora.inspection.figures import Standing
    from lib_lora.inspection.sketches import Alike, Likeness, Sketch

logger = logging.getLogger(__name__)

_LOOK = 0.5  # seconds between two looks at whether a picture is still made
_LONGEST_REST = 600.0  # seconds for one picture: a host may not tell that it ended
_SAVE_EVERY = 10.0  # seconds, after which the sketches are stored, and compared
_LEAST_SHARE = 10.0  # times as long as a comparison took, until the next one
_PATIENCE = 10.0  # seconds that the thread has to stop
_LOWEST = 19  # priority of a thread, on Linux


class Files(Protocol):
    """The files of a catalog."""

    @property
    def index(self) -> Index:
        """Return the index, which keeps the sketches."""

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until all headers are read; tell whether they are."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of a group of copies."""

    file: CatalogFile
    precisions: tuple[str, ...]
    """Of its tensors, such as `float16`."""
    other: CatalogFile | None = None
    """The file of the group that it is compared with; None of the first."""
    alike: Alike | None = None
    cosine: float = 1.0
    factor: float = 1.0
    """It is about this times the other file."""
    steps: int | None = None
    """Of its training until it was saved; None if its header does not tell."""


@dataclass(frozen=True, slots=True)
class MergeOfTwo:
    """A file that is the sum of two others."""

    file: CatalogFile
    parents: tuple[CatalogFile, CatalogFile]
    strengths: tuple[float, float]
    left: float
    """The share of its energy that the parents do not explain."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What files have in common, as far as they are compared."""

    groups: tuple[tuple[Copy, ...], ...] = ()
    """The largest first; the first of a group is the one to keep."""
    merges: tuple[MergeOfTwo, ...] = ()
    superseded: tuple[CatalogFile, ...] = ()
    """Files whose training wrote a later one of these."""


@dataclass(frozen=True, slots=True)
class Sketched:
    """How far the sketches are."""

    running: bool
    done: int
    total: int
    left_out: Mapping[CatalogFile, str]
    """Why files cannot be compared, as one sentence each."""


class _SearchEnded(Exception):  # noqa: N818  # a way out, not an error
    """The thread is to end before the file does."""


class CopyFinder:
    """Finds files that are copies of others, on a thread of the lowest priority.

    It begins when somebody asks, and at a later start if somebody asked before. It works half of the time, rests while
    a picture is made, and has a few layers in memory.
    """

    def __init__(self, files: Files, busy: Callable[[], bool]) -> None:
        self._files = files
        self._busy = busy
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._running = False
        self._left_out: dict[CatalogFile, str] = {}
        self._compared = Compared()
        self._known: Mapping[CatalogFile, object] = {}
        """What the latest comparison was made from."""
        self._again = 0.0
        """When to store and compare again."""
        self._began = 0.0
        """When the work after the last rest began."""
        self._rests_until = 0.0
        """When a picture has been made for too long to wait for its end."""

    def resume(self) -> None:
        """Go on if an earlier process has begun."""
        if any(row.sketch for row in self._files.index.rows()):
            self.ask()

    def ask(self) -> None:
        """Make sketches of files that have none, and compare all, in the background."""
        with self._lock:
            if self._thread is None:
                self._closing.clear()
                self._running = True
                self._thread = threading.Thread(target=self._run, name="remora-copies", daemon=True)
                self._thread.start()
            elif self._unsketched() or _state(self._sketched()) != self._known:
                self._asked.set()

    @property
    def progress(self) -> Sketched:
        """Return how far the sketches are."""
        rows = self._usable()
        present = {row.file for row in rows}
        left_out = {file: why for file, why in dict(self._left_out).items() if file in present}
        done = sum(_is_read(row) for row in rows) + len(left_out)
        return Sketched(self._running or self._asked.is_set(), done, len(rows), left_out)

    @property
    def compared(self) -> Compared:
        """Return the latest comparison, without files that are gone or have changed since."""
        compared, index = self._compared, self._files.index
        groups = [tuple(one for one in group if index.get(one.file) is not None) for group in compared.groups]
        merges = [one for one in compared.merges if None not in map(index.get, (one.file, *one.parents))]
        superseded = [file for file in compared.superseded if index.get(file) is not None]
        return Compared(tuple(group for group in groups if len(group) > 1), tuple(merges), tuple(superseded))

    def standings(self, file: CatalogFile) -> Mapping[str, Standing]:
        """Compare each figure of a file with the other files of its family that have been read.

        Nothing without the file's own figures.
        """
        from lib_lora.inspection.figures import standings

        own = self._files.index.get(file)
        family = None if own is None else _family(own)
        if own is None or family is None:
            return {}
        others = [row for row in self._usable() if row.file != own.file and _family(row) == family]
        return standings(_figures(own), map(_figures, others))

    def same_as(self, sketch: bytes, preferred: CatalogFile | None = None) -> CatalogFile | None:
        """Return the file that is the same change as the file of a sketch, in any precision, rank or format; or None.

        Files without a sketch get one in the background.

        Args:
            sketch: as `sketch_of` returns it.
            preferred: is returned where several files are as near.
        """
        from lib_lora.inspection.sketches import Sketch, compare

        self.ask()
        wanted = Sketch.from_bytes(sketch)
        made = [(row.file, Sketch.from_bytes(row.sketch)) for row in self._sketched()]
        others = [(file, one) for file, one in made if one is not None]
        if wanted is None or not others:
            return None
        numbers = wanted.numbers

        def nearness(one: tuple[CatalogFile, Sketch]) -> tuple[float, bool]:
            size = float(one[1].numbers.norm() * numbers.norm()) or 1
            return round(float(one[1].numbers @ numbers) / size, 6), one[0] == preferred

        file, nearest = max(others, key=nearness)
        alike, _ = compare([wanted, nearest])
        return file if alike and alike[0].alike in ("same", "precision", "rank") else None

    def sketch_of(self, file: CatalogFile) -> bytes:
        """Return the sketch of a file, which is made now if there is none; empty if it cannot be compared."""
        from lib_lora.inspection.layers import layers_of
        from lib_lora.inspection.sketches import sketch

        row = self._files.index.get(file)
        if row is not None and row.sketch:
            return row.sketch
        try:
            made = sketch(layers_of(file.source)).to_bytes()
        except LoraError:  # `progress.left_out` says why, once the copies are looked for
            return b""
        self._files.index.keep_quietly(file, sketch=made)
        return made

    def close(self) -> None:
        """Stop the thread, in the middle of a file, too."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closing.set()
            self._asked.set()
        if thread is not None:
            thread.join(_PATIENCE)

    def _usable(self) -> list[Row]:
        rows = self._files.index.rows()
        return [row for row in rows if row.facts is not None and not row.facts.problem]

    def _unsketched(self) -> list[CatalogFile]:
        rows = [row for row in self._usable() if not _is_read(row) and row.file not in self._left_out]
        rows.sort(key=lambda row: (bool(row.sketch), row.file.size))  # copies first, then figures of an older index
        return [row.file for row in rows]

    def _sketched(self) -> list[Row]:
        return [row for row in self._usable() if row.sketch]

    def _run(self) -> None:
        _give_way()
        self._rests_until = time.monotonic() + _LONGEST_REST
        while not self._closing.is_set():
            try:
                self._sketch_all()
            except _SearchEnded:
                break
            except Exception:  # the next round may succeed
                logger.exception("remora: the LoRA files cannot be compared")
            self._running = self._asked.is_set()
            self._asked.wait()
        self._running = False

    def _sketch_all(self) -> None:
        """Make the sketches of all files that have none, then compare all."""
        self._running = True
        while not self._files.wait(_LOOK):  # for the headers
            if self._closing.is_set():
                raise _SearchEnded
        self._asked.clear()
        for file in self._unsketched():
            self._sketch(file)
            if time.monotonic() > self._again:
                self._compare()
        self._compare()

    def _sketch(self, file: CatalogFile) -> None:
        from lib_lora.inspection.figures import figures_by_factors
        from lib_lora.inspection.layers import layers_of
        from lib_lora.inspection.sketches import sketch

        self._began = time.monotonic()
        try:
            layers, row = layers_of(file.source), self._files.index.get(file)
            made = row.sketch if row is not None and row.sketch else sketch(layers, self._step).to_bytes()
            figures = f"{_beginning()}{json.dumps(figures_by_factors(layers, self._step))}"
        except LoraError as error:
            self._left_out[file] = str(error)
        except _SearchEnded:
            raise
        except Exception as error:
            logger.exception("remora: %s cannot be compared", file.source)
            self._left_out[file] = f"{file.source.name} cannot be compared: {error!r:.200}"
        else:
            if file.is_current():
                self._files.index.keep_quietly(file, sketch=made, figures=figures)

    def _step(self, done: int, layers: int) -> None:
        """Rest as long as the layer took, and while a picture is made."""
        self._closing.wait(time.monotonic() - self._began)
        if not self._busy():
            self._rests_until = time.monotonic() + _LONGEST_REST
        while self._busy() and time.monotonic() < self._rests_until and not self._closing.wait(_LOOK):
            pass
        if self._closing.is_set():
            raise _SearchEnded
        self._began = time.monotonic()

    def _compare(self) -> None:
        """Store the sketches, and compare all, unless they are the same as before."""
        from lib_lora.inspection.sketches import Sketch

        began = time.monotonic()
        self._files.index.save()
        rows = self._sketched()
        if _state(rows) != self._known:
            made = [(row, Sketch.from_bytes(row.sketch)) for row in rows]
            for row in [row for row, one in made if one is None]:  # of another version, or damaged
                self._files.index.keep_quietly(row.file, sketch=b"")
                self._asked.set()
            pairs = [(row, one) for row, one in made if one is not None]
            self._compared = compared([row for row, _ in pairs], [one for _, one in pairs])
            self._known = _state([row for row, _ in pairs])
        took = time.monotonic() - began
        self._again = time.monotonic() + max(_SAVE_EVERY, _LEAST_SHARE * took)


def _family(row: Row) -> str | None:
    """Return the name of the family of a file; None if it is not known."""
    family = None if row.facts is None else row.facts.structure.family
    return None if family is None or not family.known else family.name


def _is_read(row: Row) -> bool:
    """Return whether a file has a sketch, and figures of this version."""
    return bool(row.sketch) and row.figures.startswith(_beginning())


@cache
def _beginning() -> str:
    """Return how the stored figures of this version begin."""
    from lib_lora.inspection.figures import VERSION

    return f"{VERSION} "


def _figures(row: Row) -> dict[str, float]:
    """Return the figures of a file; nothing until they are made, or if they are damaged."""
    try:
        found = read_json(row.figures.partition(" ")[2]) if _is_read(row) else {}
        return {str(name): float(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _state(rows: Iterable[Row]) -> dict[CatalogFile, object]:
    """Return all that a comparison depends on."""
    return {row.file: (row.sketch, _worth(row)) for row in rows}


def compared(rows: Sequence[Row], sketches: Sequence[Sketch]) -> Compared:
    """Return the groups of copies among files, and the files that are sums of two others."""
    from lib_lora.inspection.sketches import compare, later_epochs

    files, order = [row.file for row in rows], sorted(range(len(rows)), key=lambda at: _worth(rows[at]), reverse=True)
    paths = [file.path for file in files]
    alike, merges = compare(sketches, paths)
    groups = [
        tuple(_copy(files, sketches[at], at, likeness) for at, likeness in group) for group in groups_of(alike, order)
    ]
    sums = [
        MergeOfTwo(files[one.file], (files[one.parents[0]], files[one.parents[1]]), one.strengths, one.left)
        for one in merges
    ]
    superseded = [files[at] for at in later_epochs(sketches, paths)]
    return Compared(tuple(sorted(groups, key=len, reverse=True)), tuple(sums), tuple(superseded))


def _copy(files: Sequence[CatalogFile], sketch: Sketch, at: int, likeness: Likeness | None) -> Copy:
    precisions = tuple(sorted(name.removeprefix("torch.") for name in sketch.dtypes))
    steps = None if sketch.training is None else sketch.training.steps
    if likeness is None:
        return Copy(files[at], precisions, steps=steps)
    first, second = likeness.files
    factor = likeness.factor if at == second else 1 / likeness.factor
    other = files[first if at == second else second]
    return Copy(files[at], precisions, other, likeness.alike, likeness.cosine, factor, steps)


def groups_of(alike: Iterable[Likeness], order: Sequence[int]) -> list[list[tuple[int, Likeness | None]]]:
    """Return files that are alike, directly or by others, in groups.

    Each file has its likeness to the first of its group; where there is none, to the file that it is most like. The
    first has none.

    Args:
        alike: the pairs, the most alike first.
        order: all files, the one to keep first.
    """
    pairs: defaultdict[int, dict[int, Likeness]] = defaultdict(dict)
    for one in alike:
        first, second = one.files
        pairs[first][second] = pairs[second][first] = one
    places, seen = {at: place for place, at in enumerate(order)}, set[int]()
    groups: list[list[tuple[int, Likeness | None]]] = []
    for first in order:
        if first in seen or first not in pairs:
            continue
        members, waiting = {first}, [first]
        while waiting:
            new = pairs[waiting.pop()].keys() - members
            members |= new
            waiting += new
        seen |= members
        others = sorted(members - {first}, key=places.__getitem__)
        found = [(at, pairs[at].get(first) or next(iter(pairs[at].values()))) for at in others]
        groups.append([(first, None), *found])
    return groups


def _worth(row: Row) -> tuple[bool, int, int, int, int]:
    """Return a key by which the file of a group that the user wants to keep is the largest."""
    notes = row.notes
    favourite, rating = (False, 0) if notes is None else (notes.favourite, notes.rating)
    return favourite, rating, row.uses, row.file.size, row.file.mtime_ns


def _give_way() -> None:
    """Let all other threads go first, where the system has priorities of threads; threads of torch inherit it."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
