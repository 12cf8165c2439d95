"""Reads the LoRA files in the background, and follows changes in their folders."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .facts import Facts, FactsReader
from .index import Index
from .notes import Notes, read_notes
from .walk import TRASH, Bounds, CatalogFile, Choice, Found, ScanStoppedError, walk, walk_again

logger = logging.getLogger(__name__)

_SAVE_EVERY = 500  # files
_LOOK_EVERY = 20.0  # seconds, while a client looks and there are no change events
_TOLD_ENOUGH = 300.0  # seconds, the same with change events: network drives lose some
_SETTLE = 1.0  # seconds without further events: a file that is being copied changes all the time
_SETTLE_AT_MOST = 10.0  # seconds of events after which the folders are scanned all the same
_FEW_PLACES = 50  # folders that are scanned one by one: more events than these are lost where they come too fast
_RETRY = 30.0  # seconds after which saving is tried again where it failed
_LATER = 2.0  # seconds after a start, in which pages show known data first
_PATIENCE = 10.0  # seconds that the thread has to stop
_WATCHED = 60.0  # seconds that a client counts as looking after a request


@dataclass(frozen=True)
class Progress:
    """The progress of the scan."""

    running: bool = False
    done: int = 0
    total: int = 0


class Scanner:
    """Keeps an index up to date with some folders, on its own thread."""

    def __init__(
        self,
        folders: Callable[[], Sequence[Path]],
        index: Index,
        choice: Choice = lambda paths: None,
    ) -> None:
        self._folders = folders
        self._choice = choice
        self.index = index
        self._reader = FactsReader()
        self._asked = threading.Event()  # set to read new files and save the index
        self._due = True  # to scan the folders before that
        self._places: set[Path] = set()  # to scan before that, without the folders inside them
        self._idle = threading.Event()
        """Set while no file is waiting to be read."""
        self._hurry = threading.Event()
        self._walking = threading.Lock()
        self._noting = threading.Lock()
        self._stopped = False
        self._stops = 0
        """How often the thread was stopped; a scan that has begun before stops, too."""
        self._thread: threading.Thread | None = None
        self._looked = 0.0
        self._scanned = 0.0
        self._saved = 0.0
        self._watcher: _Watcher | None = None
        self.found: Mapping[Path, Found] | None = None
        """The files of the latest scan, by path; None before the first."""
        self._walked: Sequence[Path] = ()  # the folders of the latest scan of all, like the next
        self._entered: Mapping[str, str] = {}
        self.progress = Progress()
        self.problem = ""
        """One sentence if the folders have more files than a scan reads."""
        self.trashes: tuple[Path, ...] = ()
        """The folders of deleted files that the latest scan came upon."""

    def start(self) -> None:
        """Start the thread, unless it is running."""
        if self._thread is None:
            self._stopped = False
            self._due = True
            self.index.leave_out(self._folders())  # show known data before the first scan
            self.ask()
            self._thread = threading.Thread(target=self._run, name="remora-scan", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and every scan, and wait for the thread; a drive that does not answer is not waited for."""
        self._stopped = True
        self._stops += 1
        self._hurry.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            self._thread = None
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until all files are read; tell whether they are."""
        return self._idle.wait(seconds)

    def hurry(self, seconds: float) -> None:
        """Make the thread begin at once, and wait at most `seconds` until all is read; without a thread, scan now."""
        if self._thread is None:
            self.scan()
            return
        self._hurry.set()
        self._idle.wait(seconds)

    def scan(self, places: Collection[Path] | None = None) -> Mapping[Path, Found]:
        """Scan the folders now, by names and stamps; the thread reads new files.

        Args:
            places: folders in which files came or went, if it is known that no others have changed.
        """
        found = self._walk(places)
        self.ask()
        return found

    def ask(self) -> None:
        """Make the thread read new files and save the index."""
        self._idle.clear()
        self._asked.set()

    def _walk(self, places: Collection[Path] | None = None) -> Mapping[Path, Found]:
        self._hurry.set()
        with self._walking:
            folders = self._folders()
            try:
                found = self._again(folders, places)
            except ScanStoppedError:
                return self.found or {}
            if not self.problem:  # or files that are there would be forgotten
                self.index.keep_only((one.file for one in found.values()), folders)
            names = names_of([one.file for one in found.values()], self._choice)
            for one in found.values():
                self._note(one, names[one.file])
            if found != self.found:  # what was worked out of the same files stays
                self.found = found
        return self.found or found

    def _again(self, folders: Sequence[Path], places: Collection[Path] | None) -> Mapping[Path, Found]:
        """Return the files of the folders; some places are enough where the others are as they were."""
        if places is not None and self.found is not None and not self.problem and folders == self._walked:
            trashes = {above for place in places for above in (place, *place.parents) if above.name == TRASH}
            left = {place for place in places if TRASH not in place.parts}
            found = walk_again(self.found, folders, left, self._entered)
            if found is not None:
                self.trashes = tuple({*self.trashes, *trashes})
                return found
        stops = self._stops
        bounds = Bounds(lambda: self._stops != stops)
        whole = {one.file.path: one for one in walk(folders, bounds)}
        self._say(bounds.problem)
        self.trashes = tuple(bounds.trashes)
        self._walked, self._entered = folders, bounds.entered
        return whole

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            logger.warning("remora: %s", problem)
        self.problem = problem

    def scan_often(self) -> None:
        """Scan often for a while: a client shows the files."""
        self._looked = time.monotonic()

    def read(self, found: Found) -> None:
        """Read the unread data of one file; every error becomes its problem."""
        row = self.index.get(found.file)
        changes: dict[str, Any] = {}
        known = None if row is None else row.facts
        if known is None or known.passing:
            facts = self._facts(found.file)
            changes |= {} if facts == known else {"facts": facts}
        if row is None or row.notes is None or row.beside != found.stamp:
            notes = replace(notes_of(found), description="")  # which is long, and read one at a time
            changes |= {"notes": notes, "beside": found.stamp, "picture": found.picture}
            if row is not None and row.notes is not None and row.notes.alpha != notes.alpha:
                changes["sketch"] = b""  # another alpha makes another change
        with self._noting:
            latest = self.index.get(found.file)
            if latest is not None and latest.beside != ("" if row is None else row.beside):
                # another thread has read later files beside it meanwhile
                for field in ("notes", "beside", "picture", "sketch"):
                    changes.pop(field, None)
            # a file that went while it was read has no row again
            if changes and (self.found is None or found.file.path in self.found):
                self.index.change(found.file, **changes)

    def _facts(self, file: CatalogFile) -> Facts:
        name = file.path.name.encode("utf-8", "replace").decode()
        if not file.has_text_name:
            return Facts(problem=f"{name}: its name is not UTF-8, so that no prompt can name it; rename the file")
        try:
            return self._reader.read(file.path, file.source) if file.is_folder else self._reader.read(file.path)
        except Exception as error:  # one bad file must not stop the scan
            logger.exception("remora: %s cannot be read", file.path)
            return Facts(problem=f"{name}: it cannot be read: {error!r:.300}", passing=True)

    def _note(self, found: Found, name: str) -> None:
        """Add a row for each file at once, so that it is listed before it is read."""
        row = self.index.get(found.file)
        if row is None or row.file.relative != found.file.relative or row.name != name:
            self.index.change(found.file, name=name)

    def _run(self) -> None:
        if len(self.index):
            self._hurry.wait(_LATER)  # show known data first
        while not self._stopped:
            self._due = self._due or self._is_time()
            if self._asked.is_set() or self._due or self._places:
                try:
                    self._scan()
                except Exception:  # the next scan may succeed
                    logger.exception("remora: the LoRA folders could not be looked through")
                    self.progress = Progress()
                    self._idle.set()  # nobody waits for what this scan did not read
            elif self.index.problem and time.monotonic() - self._saved > _RETRY:
                self._save()
            if not self._stopped:  # `close` may have asked while a scan was about to begin, which forgets that
                self._asked.wait(1.0)

    def _is_time(self) -> bool:
        now = time.monotonic()
        if self._watcher is not None and self._watcher.settled(_SETTLE, _SETTLE_AT_MOST):
            places = self._watcher.places()
            if places is None:
                return True
            self._places |= places
        every = _LOOK_EVERY if self._watcher is None or not self._watcher.works else _TOLD_ENOUGH
        return now - self._looked < _WATCHED and now - self._scanned > every

    def _scan(self) -> None:
        self._watch()
        self._asked.clear()  # later requests belong to the next round
        due, self._due = self._due, False
        places, self._places = self._places, set()
        if due or places or self.found is None:
            self._walk(None if due else places)
        found = self.found or {}
        waiting = [one for one in found.values() if self._is_new(one)]
        for done, one in enumerate(waiting):
            if self._stopped:
                break
            self.progress = Progress(True, done, len(waiting))
            self.read(one)
            if done % _SAVE_EVERY == _SAVE_EVERY - 1:
                self._save()
        self._save()
        if len(waiting) >= _SAVE_EVERY:
            _give_memory_back()
        self.progress = Progress(False, len(waiting), len(waiting))
        self._scanned = time.monotonic() if due else self._scanned
        if not self._asked.is_set():
            self._idle.set()

    def _save(self) -> None:
        late = not self.index.loaded
        self.index.save()
        self._saved = time.monotonic()
        self._due = self._due or (late and self.index.loaded)  # stored rows may be of files that are gone

    def _is_new(self, found: Found) -> bool:
        row = self.index.get(found.file)
        if row is None or row.facts is None or row.notes is None:
            return True
        return row.facts.passing or row.beside != found.stamp  # it could not be read while it was moved

    def _watch(self) -> None:
        folders = [folder for folder in self._folders() if folder.is_dir()]
        if self._watcher is None or self._watcher.folders != folders:
            if self._watcher is not None:
                self._watcher.close()
            self._watcher = _Watcher(folders)


def notes_of(found: Found) -> Notes:
    """Read the notes on a file; every error becomes its problem."""
    try:
        return read_notes(found.notes)
    except Exception as error:  # one bad file must not stop the scan
        logger.exception("remora: the notes on %s cannot be read", found.file.path)
        return Notes(problems=(f"the notes beside it cannot be read: {error!r:.300}",))


def names_of(files: Sequence[CatalogFile], choice: Choice) -> Mapping[CatalogFile, str]:
    """Return the shortest unique name of each file; an unreadable file has its full name.

    Args:
        files: all files.
        choice: returns which of several files of one name the host's own LoRA takes, or None.
    """
    shared: dict[str, list[CatalogFile]] = {}
    for file in files:
        if file.readable:
            shared.setdefault(file.name, []).append(file)
    names = {}
    for file in files:
        same = shared.get(file.name, []) if file.readable else []
        names[file] = file.name if len(same) == 1 else file.relative
        # at the top, the path is the name, which may mean another file
        if len(same) > 1 and not file.folder and choice([one.path for one in same]) not in (None, file.path):
            names[file] = file.relative + file.path.suffix
    return names


def _give_memory_back() -> None:
    """Make glibc return the memory of large headers to the system."""
    gc.collect()
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # no glibc
        return
    trim(0)


class _Watcher:
    """Reports changes below some folders, if the system and watchdog can."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.works = False
        self._first = self._changed = 0.0
        """When the first change since the latest scan came, and when the latest one."""
        self._places: deque[Path | None] = deque()
        """Where they were; None for folders that came or went."""
        self._observer: Any = None
        try:
            from watchdog.events import FileSystemEventHandler
            from watchdog.observers import Observer
        except ImportError:  # not installed: scan the folders periodically
            return
        handler = FileSystemEventHandler()
        for event in ("created", "deleted", "moved", "closed", "modified"):
            setattr(handler, f"on_{event}", self._on_event)
        observer = Observer()
        try:
            for folder in folders:
                observer.schedule(handler, str(folder), recursive=True)
            observer.start()
        except OSError as error:  # more folders than the system watches, or a drive without events
            logger.info("remora: changes of the LoRA folders are found by looking: %s", error.strerror or error)
            observer.unschedule_all()
            return
        self._observer = observer
        self.works = True

    def settled(self, seconds: float, most: float) -> bool:
        """Return True once after changes, when there were none for `seconds`, or they go on for `most`."""
        now = time.monotonic()
        if self._changed and (now - self._changed >= seconds or now - self._first >= most):
            self._first = self._changed = 0.0
            return True
        return False

    def places(self) -> set[Path] | None:
        """Return once in which folders files have changed; None if folders did, or too many to tell."""
        found = {self._places.popleft() for _ in range(len(self._places))}
        return {place for place in found if place} if None not in found and len(found) <= _FEW_PLACES else None

    def close(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None

    def _on_event(self, event: Any) -> None:
        if event.event_type in ("opened", "closed_no_write"):  # reading is no change
            return
        is_folder = event.is_directory and event.event_type != "modified"
        for path in filter(None, (event.src_path, event.dest_path)):
            place = Path(os.fsdecode(path))
            if TRASH not in place.parts:
                self._places.append(None if is_folder else place if event.is_directory else place.parent)
        self._changed = time.monotonic()
        self._first = self._first or self._changed
