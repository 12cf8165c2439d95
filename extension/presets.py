"""Stacks that were kept under a name, in a file; as text they can be given to others.

# Remora preset 1: sunset
<lora:light:0.8> golden hour
<lora:film:0.5:1>
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .atomic import write_text
from .collection import PictureError, shrunk_picture
from .known import ANY
from .prompt import PromptError, parse

logger = logging.getLogger(__name__)

VERSION = 1  # of the file, and of the text
_FILE = "presets.json"
_HEAD = re.compile(r"#\s*Remora preset\s+(\d+)\s*:\s*(.*)", re.IGNORECASE)
_LINE = re.compile(r"<(?:lora|lyco|loractl):[^<>]*>", re.IGNORECASE)
_MAX_NAME = 100  # characters
_MAX_TEXT = 100_000
_MAX_PRESETS = 2000
_SIDE = 256  # pixels, of a thumbnail


class PresetError(ValueError):
    """A preset that is not taken, or not there; the text is one sentence that says why."""


@dataclass(frozen=True)
class Preset:
    """One stack."""

    name: str
    text: str
    """A line per LoRA: its tag, and after it the words that belong to it."""
    thumbnail: bytes = b""
    """WebP; may be empty."""

    def to_text(self) -> str:
        """Return the text that `read_text` reads."""
        return f"# Remora preset {VERSION}: {self.name}\n{self.text}\n"


def read_text(text: str) -> list[Preset]:
    """Read presets from text; without a head it is one with the name `imported`.

    Raises:
        PresetError: a line that is none, a newer version, no preset at all; the text names the line.
    """
    if len(text) > _MAX_TEXT:
        raise PresetError(f"the text has {len(text):,} characters; presets have no more than {_MAX_TEXT:,}")
    found: list[tuple[str, list[str]]] = []
    for place, written in enumerate(text.splitlines(), 1):
        line = written.strip()
        head = _HEAD.fullmatch(line)
        if head is not None:
            if int(head[1]) > VERSION:
                raise PresetError(
                    f"line {place}: this preset is of version {head[1]}, and this Remora knows version {VERSION}; "
                    "update Remora to use it"
                )
            found.append((head[2].strip() or "imported", []))
        elif line and not line.startswith("#"):
            if not found:
                found.append(("imported", []))
            found[-1][1].append(_checked_line(line, f"line {place}"))
    if not any(lines for _, lines in found):
        raise PresetError("there is no LoRA in this text; a preset has lines as <lora:name:0.8>")
    return [Preset(_checked_name(name), "\n".join(lines)) for name, lines in found if lines]


class Presets:
    """Keeps presets in `presets.json` of a folder.

    Args:
        folder: where; asked when it is needed. None keeps them only as long as the program runs.
    """

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: dict[str, Preset] | None = None
        self.problem = ""
        """One sentence where the file could not be read."""

    @property
    def all(self) -> Sequence[Preset]:
        """As they are kept, by name."""
        with self._lock:
            return sorted(self._loaded().values(), key=lambda preset: preset.name.casefold())

    def get(self, name: str) -> Preset:
        """Return one.

        Raises:
            PresetError: there is none of that name.
        """
        with self._lock:
            return self._existing(name)

    def put(self, name: str, text: str, former: str = "") -> Preset:
        """Keep a stack under a name, in place of the one of that name.

        Args:
            name: the name.
            text: a line per LoRA.
            former: the name it had, which it has no more; its thumbnail stays.

        Raises:
            PresetError: the name or a line is none, or there is none of the former name.
            OSError: it cannot be written; everything is as before.
        """
        name = _checked_name(name)
        lines = [_checked_line(line, f"line {place}") for place, line in enumerate(text.strip().splitlines(), 1)]
        if not lines:
            raise PresetError("a preset needs at least one LoRA")
        with self._lock:
            kept = dict(self._loaded())
            old = self._existing(former) if former else kept.get(name)
            preset = Preset(name, "\n".join(lines), b"" if old is None else old.thumbnail)
            kept.pop(former, None)
            self._keep(kept | {name: preset})
            return preset

    def set_thumbnail(self, name: str, picture: bytes) -> Preset:
        """Give one another thumbnail.

        Raises:
            PresetError: there is none of that name, or the picture is none.
            OSError: it cannot be written; everything is as before.
        """
        try:
            thumbnail = shrunk_picture(picture, _SIDE)
        except PictureError as error:
            raise PresetError(str(error)) from error
        with self._lock:
            preset = replace(self._existing(name), thumbnail=thumbnail)
            self._keep(self._loaded() | {name: preset})
            return preset

    def remove(self, name: str) -> None:
        """Forget one.

        Raises:
            PresetError: there is none of that name.
            OSError: it cannot be written; everything is as before.
        """
        with self._lock:
            self._existing(name)
            self._keep({other: preset for other, preset in self._loaded().items() if other != name})

    def add_text(self, text: str) -> list[Preset]:
        """Keep the presets of a text, none in place of another: where a name is taken, a number is put to it.

        Raises:
            PresetError: as `read_text`; none is kept then.
            OSError: it cannot be written; everything is as before.
        """
        read = read_text(text)
        with self._lock:
            kept = dict(self._loaded())
            added = []
            for preset in read:
                names = (preset.name, *(f"{preset.name} {number}" for number in range(2, _MAX_PRESETS)))
                free = next(name for name in names if name not in kept)
                kept[free] = replace(preset, name=free)
                added.append(kept[free])
            self._keep(kept)
            return added

    def _existing(self, name: str) -> Preset:
        preset = self._loaded().get(name)
        if preset is None:
            raise PresetError(f"there is no preset {name!r:.120} (any more)")
        return preset

    def _keep(self, kept: dict[str, Preset]) -> None:
        if len(kept) > _MAX_PRESETS:
            raise PresetError(f"there are {_MAX_PRESETS} presets already; remove some first")
        folder = self._folder()
        if folder is not None:
            presets = [_to_json(preset) for preset in kept.values()]
            write_text(
                folder / _FILE, json.dumps({"version": VERSION, "presets": presets}, ensure_ascii=False, indent=1)
            )
        self._kept = kept

    def _loaded(self) -> dict[str, Preset]:
        if self._kept is None:
            folder = self._folder()
            self._kept = {} if folder is None else self._read(folder / _FILE)
        return self._kept

    def _read(self, path: Path) -> dict[str, Preset]:
        try:
            presets = _from_json(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            aside = path.with_name(f"{path.name}.unread")
            try:
                aside.write_bytes(path.read_bytes())
            except OSError:
                aside = path
            self.problem = f"the presets in {path} cannot be read ({error}); a copy is kept as {aside.name}"
            logger.warning("remora: %s", self.problem)
            return {}
        return {preset.name: preset for preset in presets}


def _checked_name(name: str) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= _MAX_NAME:
        raise PresetError(f"the name of a preset has 1 to {_MAX_NAME} characters")
    return name


def _checked_line(line: str, where: str) -> str:
    line = " ".join(line.split())
    try:
        tags = parse(line, ANY).tags
    except PromptError as error:
        raise PresetError(f"{where}: {error}") from error
    if len(tags) != 1 or not _LINE.match(line):
        raise PresetError(f"{where}: {line!r:.80} is no LoRA; write one tag and its words, as <lora:name:0.8> words")
    return line


def _to_json(preset: Preset) -> dict[str, str]:
    return {
        "name": preset.name,
        "text": preset.text,
        "thumbnail": base64.b64encode(preset.thumbnail).decode("ascii"),
    }


def _from_json(data: Any) -> list[Preset]:
    if not isinstance(data, Mapping) or not isinstance(data.get("presets"), list):
        raise PresetError("it is no list of presets")
    if data.get("version") != VERSION:
        raise PresetError(f"it is of version {data.get('version')!r}, and this Remora knows version {VERSION}")
    found = []
    for number, one in enumerate(data["presets"], 1):
        match one:
            case {"name": str(name), "text": str(text), "thumbnail": str(thumbnail)}:
                try:
                    found.append(Preset(_checked_name(name), text, base64.b64decode(thumbnail, validate=True)))
                except binascii.Error as error:
                    raise PresetError(f"the thumbnail of preset {number} is damaged") from error
            case _:
                raise PresetError(f"preset {number} lacks its name, text or thumbnail")
    return found
