"""The engine that a pipeline keeps, and its LoRA by their names."""

from __future__ import annotations

import logging
import shutil
import threading
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from torch import nn

from ..compiler import uncompiled
from ..engine import Engine
from ..errors import ActivationError, ArgumentError, ComponentError, FileError, StackError, check_type, shown
from ..files.sources import Source, name_of, path_of
from ..report import ActivationReport, NetworkReport
from ..stack import Entry, Stack
from .wishes import Wish, multiplier_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..engine import EngineOptions
    from ..saving import SavedFile, SaveOptions
    from ..strengths.strength import Moment

logger = logging.getLogger(__name__)
_LOAD = "write engine.load('style.safetensors', name='style')"


class PipelineEngine(Engine):
    """An engine whose LoRA have names. `attach` makes one for a pipeline.

    Its stack has the LoRA in force. Others rest: they are loaded, and act again after `use`. All calls are all or
    nothing: after an error the same LoRA are in force as before. A LoRA whose file can no longer be read rests from the
    next call on that has to read it, with a warning in the log; other LoRA are not affected. A name, component, block
    or strength that there is not raises StackError; the text has the nearest name. For `components` and options see
    `Engine`.
    """

    def __init__(self, components: Mapping[str, nn.Module], **options: Unpack[EngineOptions]) -> None:
        super().__init__(components, **options)
        self._resting: dict[str, Entry] = {}
        self._reports: dict[str, NetworkReport] = {}
        self._own_files: dict[Path, weakref.finalize[..., PipelineEngine]] = {}
        """The file of each LoRA that came as tensors -> what deletes its folder, at the latest with the engine."""
        self.disabled: tuple[str, ...] | None = None
        """The LoRA that were in force before `disable_lora`, see `calls.py`; None while they are enabled."""
        self.fused: dict[str, Entry] = {}
        """The name of each LoRA that `fuse_lora` fused -> its entry before."""

    def __repr__(self) -> str:
        in_force = ", ".join([shown(entry.name) for entry in self.stack]) or "no LoRA"
        resting = f", at rest {', '.join(map(shown, self._resting))}" if self._resting else ""
        return f"<{type(self).__name__} of {', '.join(self.components)}: in force {in_force}{resting}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all LoRA, first of the ones in force, in order."""
        return (*[entry.name for entry in self.stack], *self._resting)

    @property
    def loaded(self) -> dict[str, NetworkReport]:
        """Return the name of each LoRA -> the latest report on its file."""
        return {name: self._reports[name] for name in self.names if name in self._reports}

    def load(
        self,
        source: Source,
        *,
        name: str | None = None,
        strength: Wish = 1.0,
        weight_name: str | None = None,
        rank: int | None = None,
        alpha: float | None = None,
        scale: float | None = None,
        replace: bool = False,
    ) -> NetworkReport:
        """Put one more LoRA in force, and return what became of its file.

        Args:
            source: the path of a safetensors file, of a folder that PEFT or diffusers wrote, or of a repository in the
                local cache of the hub, also by its id; a state dict; or a file that is open for reading bytes.
            name: what to call it; the file's name, where none is given.
            strength: see `set`.
            weight_name: which file of a folder.
            rank: see `Entry`, as `alpha` and `scale`.
            alpha: of a state dict, which has no header.
            scale: alpha / rank.
            replace: whether it takes the place of the LoRA of that name.

        Raises:
            FileError: the file cannot be read, or fits no layer of the model; also its subclasses.
            ArgumentError: an argument is of another type.
            StackError: another LoRA has that name, or the strength is no strength.
        """
        check_type(replace, bool, "replace", "True or False")
        check_type(name, (str, type(None)), "name", "a text")
        with self._lock:
            try:
                path = path_of(source, weight_name, partial(self._own_file, name or "lora"), parts=True)
                name = name or name_of(path)
                if name in self.names and not replace:
                    text = f"a LoRA {shown(name)} is loaded already; give another name, or write replace=True"
                    raise StackError(text)
                return self._put(Entry(path, multiplier_of(strength, self.components), rank, alpha, scale, name))
            finally:
                self._delete_own_files()

    def _put(self, entry: Entry) -> NetworkReport:
        """Put an entry in force, in the place of the one of its name, if there is any."""
        entries, name = list(self.stack), entry.name
        at = next((i for i, other in enumerate(entries) if other.name == name), len(entries))
        entries[at : at + 1] = [entry]
        try:
            self._change(replace(self.stack, entries=entries), {name})
        except ActivationError as error:
            if at in error.causes:
                raise error.causes[at] from error
            raise
        return self._reports[name]

    def activate(self, stack: Stack) -> ActivationReport:
        """Put `stack` in force in place of the former one; see `Engine.activate`."""
        with self._lock:
            known = self.loaded
            report = super().activate(stack)
            new = {entry.name: one for entry, one in zip(self.stack, report.entries, strict=True)}
            self._reports = known | new
            self._resting = {name: entry for name, entry in self._resting.items() if name not in new}
            return report

    def _change(self, stack: Stack, asked: Container[str] = ()) -> ActivationReport:
        """Put a stack in force; entries whose file can no longer be read rest, unless their names were asked for."""
        with self._lock:
            try:
                return self.activate(stack)
            except ActivationError as error:
                lost = {stack.entries[i].name: cause for i, cause in error.causes.items()}
                if any(name in asked or not isinstance(cause, FileError) for name, cause in lost.items()):
                    raise
            report = self.activate(replace(stack, entries=[one for one in stack.entries if one.name not in lost]))
            self._resting |= self._missing(stack.entries)
            for name, cause in lost.items():
                logger.warning("%s is not applied any more: %s; load it again with replace=True", shown(name), cause)
            return report

    def _own_file(self, name: str) -> Path:
        """Return the path of a file for tensors that are in no file; its folder goes with the LoRA."""
        folder = Path(mkdtemp(prefix="lib_lora-"))
        path = folder / f"{''.join([c if c.isalnum() or c in '-_. ' else '_' for c in name])[:80]}.safetensors"
        delete = uncompiled(shutil.rmtree)  # as the finalizer of `Engine`
        self._own_files[path] = weakref.finalize(self, delete, folder, ignore_errors=True)
        return path

    def _delete_own_files(self) -> None:
        """Delete the files of LoRA that came as tensors and are not loaded any more."""
        entries = (*self.stack, *self._resting.values(), *self.fused.values())
        for path in self._own_files.keys() - {Path(entry.path) for entry in entries}:
            self._own_files.pop(path)()

    def set(self, name: str, strength: Wish) -> None:
        """Set the strength of a LoRA; writes numbers only, unless it names other blocks.

        Args:
            name: of the LoRA.
            strength: a number; a dict by component, in which one may have a dict by block, as
                `{"unet": {"down": 0.9, "mid": 1.0, "up": {"block_1": [0.4, 0.6]}}}`; a `Curve`, a `Region`, or a
                `Strength` of all these. A component that the dict does not name has 0. A block that it does
                not name has the strength 1.
        """
        with self._lock:
            multiplier = multiplier_of(strength, self.components)
            if self._find(name) in self._resting:
                self._resting[name] = replace(self._resting[name], multiplier=multiplier)
                return
            at, *more = [i for i, entry in enumerate(self.stack) if entry.name == name]
            if more:
                raise StackError(f"{1 + len(more)} entries are called {shown(name)}; write set_multiplier({at}, 0.8)")
            try:
                self.set_multiplier(at, multiplier)
            except ActivationError:  # it names other blocks, and the file of another LoRA can no longer be read
                entries = list(self.stack)
                entries[at] = replace(entries[at], multiplier=multiplier)
                self._change(replace(self.stack, entries=entries), {name})

    def unload(self, name: str, *more: str) -> None:
        """Take LoRA off, and forget them."""
        with self._lock:
            gone = {self._find(one) for one in (name, *more)}
            kept = [entry for entry in self.stack if entry.name not in gone]
            if len(kept) < len(self.stack):
                self._change(replace(self.stack, entries=kept))
            for one in gone:
                self._resting.pop(one, None)
                self._reports.pop(one, None)
            self._delete_own_files()

    def use(self, *names: str) -> ActivationReport:
        """Have these LoRA in force, in this order, and let all others rest; without a name, all rest."""
        return self.use_at(dict.fromkeys(map(self._find, names)))

    def use_at(self, strengths: Mapping[str, Wish | None]) -> ActivationReport:
        """Have these LoRA in force, each at another strength unless that is None, and let all others rest."""
        check_type(strengths, Mapping, "strengths", "a dict, as {'style': 0.8}")
        return self._use(strengths, strengths)

    def _use(self, strengths: Mapping[str, Wish | None], asked: Container[str] = ()) -> ActivationReport:
        """See `use_at`; a LoRA that was not asked for rests if its file can no longer be read."""
        with self._lock:
            entries, chosen = {**self._resting, **{entry.name: entry for entry in self.stack}}, list[Entry]()
            for name, strength in strengths.items():
                entry = entries.pop(self._find(name))
                new = entry.multiplier if strength is None else multiplier_of(strength, self.components)
                chosen.append(replace(entry, multiplier=new))
            report = self._change(replace(self.stack, entries=chosen), asked)
            self._resting = entries | self._missing(chosen)
            return report

    def _missing(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        """Return the entries that are not in force, by their names."""
        in_force = {entry.name for entry in self.stack}
        return {entry.name: entry for entry in entries if entry.name not in in_force}

    @contextmanager
    def only(self, *names: str) -> Iterator[ActivationReport]:
        """Have these LoRA alone in force inside a `with` block; after it all are as they were before."""
        former, resting = self.stack, dict(self._resting)
        report = self.use(*names)
        try:
            yield report
        finally:
            with self._lock:
                self._change(former)
                self._resting = resting | self._missing(former.entries)

    def merge(self) -> ActivationReport:
        """Write the LoRA into the weights that can be restored bit for bit; the others are computed as before."""
        with self._lock:
            return self._change(replace(self.stack, mode="merged"))

    def unmerge(self) -> ActivationReport:
        """Restore the merged weights bit for bit, and compute the LoRA beside them."""
        with self._lock:
            return self._change(replace(self.stack, mode="live"))

    def save(
        self,
        path: str | PathLike[str],
        *,
        moment: Moment | None = None,
        image: int | None = None,
        negative: bool | None = None,
        **options: Unpack[SaveOptions],
    ) -> SavedFile:
        """Write the LoRA in force as one file, with their strengths; for arguments and errors see `save_stack`."""
        from ..saving import save_stack  # which no other call needs

        return save_stack(self, path, moment=moment, image=image, negative=negative, **options)

    def deactivate(self) -> None:
        """Take everything off, and forget all LoRA: the model is as if nothing had ever been applied.

        Raises:
            ComponentError: a weight still has a LoRA that could not be taken off, now or before.
        """
        with self._lock:
            try:
                super().deactivate()
            finally:
                self._resting.clear()
                self._reports.clear()
                self.disabled, self.fused = None, {}
                self._delete_own_files()

    def close(self) -> None:
        """Deactivate, and let `attach` make another engine for the pipeline."""
        with _LOCK:
            for pipeline in [one for one, engine in _ENGINES.items() if engine is self]:
                del _ENGINES[pipeline]
        super().close()

    def _find(self, name: str) -> str:
        """Return the name of a LoRA, or raise StackError with the nearest one."""
        check_type(name, str, "the name of a LoRA", "a text, as 'style'")
        if name in self.names:
            return name
        near = get_close_matches(name, self.names, 1)
        known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, self.names))}"
        raise StackError(f"no LoRA is called {shown(name)}; {known if self.names else _LOAD}")


_ENGINES: weakref.WeakKeyDictionary[object, PipelineEngine] = weakref.WeakKeyDictionary()
_LOCK = threading.RLock()


def attach(pipeline: object, **options: Unpack[EngineOptions]) -> PipelineEngine:
    """Return the engine of a diffusers pipeline, which the pipeline keeps: there is one, and it goes with the pipeline.

    Args:
        pipeline: see `Engine.for_pipeline`.
        options: see the arguments of `Engine`; for the first call alone.

    Raises:
        ComponentError: it is no pipeline, or another engine serves it.
        ArgumentError: the pipeline has an engine already, and there are options.
    """
    with _LOCK:
        try:
            engine = _ENGINES.get(pipeline)
        except TypeError as error:  # it cannot be hashed, or held weakly
            text = f"attach takes a diffusers pipeline that is loaded, not {shown(pipeline)}"
            raise ComponentError(f"{text}; of a single model write PipelineEngine({{'unet': model}})") from error
        if engine is not None and options:
            text = f"the pipeline has an engine already, so {', '.join(options)} would have no effect"
            raise ArgumentError(f"{text}; write attach(pipe).close() before")
        if engine is None:
            engine = _ENGINES[pipeline] = PipelineEngine.for_pipeline(pipeline, **options)
        return engine
