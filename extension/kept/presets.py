"""Presets: stacks saved under a name in a file, which can be shared as text.

# Remora preset 1: sunset
<lora:light:0.8> golden hour
<lora:film:0.5:1>

A preset with the parameters of a picture, or with a picture, is shared as a file of JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..library.pictures import PictureError, shrunk_picture
from ..store import Store, json_bytes
from ..text.known import ANY
from ..text.names import numbered
from ..text.prompt import PromptError, parse
from ..text.spelling import KIND, names_in, renamed

VERSION = 1  # of the file, and of the text
_FILE = "presets.json"
_HEAD = re.compile(r"#\s*Remora preset\s+(\d+)\s*:\s*(.*)", re.IGNORECASE)
_LINE = re.compile(rf"<(?:{KIND}):[^<>]*>", re.IGNORECASE)
_DIGITS = 9
_MARK = "remora_preset"
"""The key of the version in a file of one preset."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_NAME = 100  # characters
_MAX_TEXT = 100_000
_MAX_FILE = 1 << 20  # characters, of one preset as a file
_MAX_SKETCHES = 100
_MAX_PRESETS = 2000
_MAX_BYTES = 256 << 20  # of the file
_MAX_TOLD = 5  # of those that are no presets
_SIDE = 256  # pixels, of a thumbnail


class PresetError(ValueError):
    """A preset is invalid or does not exist; the message is one sentence that says why."""


@dataclass(frozen=True)
class SavedPreset:
    """One saved stack."""

    name: str
    text: str
    """One line per LoRA: its tag, then its words."""
    thumbnail: bytes = b""
    """WebP; may be empty."""
    parameters: str = ""
    """The parameters text of a picture that was made with it; may be empty."""
    sketches: Mapping[str, str] = field(default_factory=dict)
    """The name of a LoRA -> the sketch that finds it by its tensors, see `recipe.found_here`."""

    def to_text(self) -> str:
        """Return the text that `read_text` reads."""
        return f"# Remora preset {VERSION}: {self.name}\n{self.text}\n"

    def to_file(self) -> bytes:
        """Return all of it as JSON that `read_text` reads."""
        return json_bytes({_MARK: VERSION, **_to_json(self)}, indent=1)


@dataclass(frozen=True)
class _Refused:
    """An invalid preset of the file, which is kept there."""

    data: Any
    why: str


@dataclass(frozen=True)
class _Kept:
    """The content of the file."""

    presets: Mapping[str, SavedPreset] = field(default_factory=dict)
    """By name."""
    refused: tuple[_Refused, ...] = ()


def read_text(text: str) -> list[SavedPreset]:
    """Parse presets; a text without a head is one preset named `imported`. JSON is one preset, see `to_file`.

    Raises:
        PresetError: an invalid line, a newer version, or no preset; the message names the line.
    """
    if (written := text.lstrip("\ufeff \t\r\n")).startswith("{"):
        return [_of_file(written)]
    if len(text) > _MAX_TEXT:
        raise PresetError(f"the text has {len(text):,} characters; presets have no more than {_MAX_TEXT:,}")
    found: list[tuple[str, list[str]]] = []
    for place, written in enumerate(text.splitlines(), 1):
        line = written.strip()
        head = _HEAD.fullmatch(line)
        if head is not None:
            number = head[1][:_DIGITS]  # a longer number is larger, too
            if int(number) > VERSION:
                raise PresetError(
                    f"line {place}: this preset is of version {number}, and this Remora knows version {VERSION}; "
                    "update Remora to use it"
                )
            found.append((head[2].strip() or "imported", []))
        elif line and not line.startswith("#"):
            if not found:
                found.append(("imported", []))
            found[-1][1].append(_checked_line(line, f"line {place}"))
    if not any(lines for _, lines in found):
        raise PresetError("there is no LoRA in this text; a preset has lines such as <lora:name:0.8>")
    return [SavedPreset(_checked_name(name), "\n".join(lines)) for name, lines in found if lines]


class PresetsFile:
    """Keeps presets in `presets.json` of a folder.

    Args:
        folder: returns the folder; called on every access. None keeps the presets in memory only.
    """

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        def path() -> Path | None:
            found = folder()
            return None if found is None else found / _FILE

        self._path = path
        self._store = Store(path, "presets", _Kept(), _read, _write, _MAX_BYTES, refusal=PresetError)

    @property
    def all(self) -> Sequence[SavedPreset]:
        """Return the presets, by name."""
        return sorted(self._store.value.presets.values(), key=lambda preset: preset.name.casefold())

    @property
    def problem(self) -> str:
        """Return one sentence if the file, or some of its presets, cannot be read."""
        refused = self._store.value.refused
        if not refused:
            return self._store.problem
        why = "; ".join(one.why for one in refused[:_MAX_TOLD])
        more = f"; and {len(refused) - _MAX_TOLD} more" if len(refused) > _MAX_TOLD else ""
        return (
            f"some of {self._path()} are not presets; Remora keeps them until you repair or delete them ({why}{more})"
        )

    def lock(self) -> AbstractContextManager[object]:
        """Exclude other changes in a `with` statement; see `Store.lock`."""
        return self._store.lock()

    def get(self, name: str) -> SavedPreset:
        """Return one preset.

        Raises:
            PresetError: there is none of that name.
        """
        return _existing(self._store.value.presets, name)

    def put(self, name: str, text: str, former: str = "", parameters: str | None = None) -> SavedPreset:
        """Save a stack under a name, replacing the preset of that name.

        Args:
            name: its name.
            text: one line per LoRA.
            former: its previous name, to rename it; its thumbnail and its parameters stay.
            parameters: of a picture that was made with it; None keeps those that it had.

        Raises:
            PresetError: the name or a line is invalid, or there is no preset named `former`.
            OSError: the file cannot be written; nothing has changed.
        """
        name = _checked_name(name)
        lines = _checked_lines(text)
        new = None if parameters is None else _checked_parameters(parameters)

        def change(kept: Mapping[str, SavedPreset]) -> dict[str, SavedPreset]:
            old = _existing(kept, former) if former else kept.get(name)
            preset = replace(old or SavedPreset(name, ""), name=name, text=lines)
            preset = preset if new is None else replace(preset, parameters=new)
            return {other: one for other, one in kept.items() if other != former} | {name: preset}

        return self._changed(change)[name]

    def set_thumbnail(self, name: str, picture: bytes) -> SavedPreset:
        """Replace the thumbnail of a preset.

        Raises:
            PresetError: there is none of that name, or the picture is invalid.
            OSError: the file cannot be written; nothing has changed.
        """
        try:
            thumbnail = shrunk_picture(picture, _SIDE)
        except PictureError as error:
            raise PresetError(str(error)) from error
        return self._changed(lambda kept: {**kept, name: replace(_existing(kept, name), thumbnail=thumbnail)})[name]

    def remove(self, name: str) -> None:
        """Delete a preset.

        Raises:
            PresetError: there is none of that name.
            OSError: the file cannot be written; nothing has changed.
        """

        def change(kept: Mapping[str, SavedPreset]) -> dict[str, SavedPreset]:
            _existing(kept, name)
            return {other: preset for other, preset in kept.items() if other != name}

        self._changed(change)

    def rename(self, names: Mapping[str, str]) -> None:
        """Change names of LoRA in all presets.

        Raises:
            OSError: the file cannot be written; nothing has changed.
        """
        if any(name in names for preset in self._store.value.presets.values() for name in names_in(preset.text)):
            self._changed(lambda kept: {of: replace(one, text=renamed(one.text, names)) for of, one in kept.items()})

    def add_text(self, text: str) -> list[SavedPreset]:
        """Save the presets of a text; a name that is taken gets a number.

        Raises:
            PresetError: as `read_text`; none is saved then.
            OSError: the file cannot be written; nothing has changed.
        """
        read = read_text(text)
        if len(read) > _MAX_PRESETS:  # before names are numbered, each of which is compared with all before it
            raise PresetError(f"the text has {len(read):,} presets; at most {_MAX_PRESETS:,} are kept")
        added: list[SavedPreset] = []

        def change(kept: Mapping[str, SavedPreset]) -> dict[str, SavedPreset]:
            changed = dict(kept)
            for preset in read:
                free = next(name for name in numbered(preset.name, " ", _MAX_NAME) if name not in changed)
                changed[free] = replace(preset, name=free)
                added.append(changed[free])
            return changed

        self._changed(change)
        return added

    def _changed(
        self, change: Callable[[Mapping[str, SavedPreset]], Mapping[str, SavedPreset]]
    ) -> Mapping[str, SavedPreset]:
        def checked(kept: _Kept) -> _Kept:
            changed = change(kept.presets)
            if len(changed) > max(_MAX_PRESETS, len(kept.presets)):
                raise PresetError(f"there are {_MAX_PRESETS} presets already; remove some first")
            return replace(kept, presets=changed)

        return self._store.change(checked).presets


def _existing(kept: Mapping[str, SavedPreset], name: str) -> SavedPreset:
    if name not in kept:
        raise PresetError(f"there is no preset {name!r:.120} (any more)")
    return kept[name]


def _checked_name(name: str) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= _MAX_NAME:
        raise PresetError(f"the name of a preset has 1 to {_MAX_NAME} characters")
    if found := _CONTROL.search(name):
        raise PresetError(f"the name of a preset has no control characters, and this one has {found[0]!r}")
    return name


def _checked_line(line: str, where: str) -> str:
    line = " ".join(line.split())
    try:
        tags = parse(line, ANY).tags
    except PromptError as error:
        raise PresetError(f"{where}: {error}") from error
    if len(tags) != 1 or not _LINE.match(line):
        raise PresetError(
            f"{where}: {line!r:.80} is not a LoRA; write one tag and its words, such as <lora:name:0.8> words"
        )
    return line


def _checked_lines(text: str) -> str:
    lines = [_checked_line(line, f"line {place}") for place, line in enumerate(text.strip().splitlines(), 1)]
    if not lines:
        raise PresetError("a preset needs at least one LoRA")
    return "\n".join(lines)


def _checked_parameters(text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise PresetError(f"the parameters have {len(text):,} characters; a preset keeps no more than {_MAX_TEXT:,}")
    return text.strip()


def _of_file(text: str) -> SavedPreset:
    """Read one preset from JSON, whose picture is made again: anybody may have written it."""
    if len(text) > _MAX_FILE:
        raise PresetError(f"the file has {len(text):,} characters; a preset has no more than {_MAX_FILE:,}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PresetError(f"the file is not JSON: {error}") from error
    version = data.get(_MARK)
    if not isinstance(version, int):
        raise PresetError(f"the file is no preset: it lacks {_MARK!r}")
    if version > VERSION:
        raise PresetError(
            f"this preset is of version {version}, and this Remora knows version {VERSION}; update Remora to use it"
        )
    preset = _from_json(data)
    lines = _checked_lines(preset.text)
    try:
        thumbnail = shrunk_picture(preset.thumbnail, _SIDE) if preset.thumbnail else b""
    except PictureError as error:
        raise PresetError(f"the picture of the preset cannot be used: {error}") from error
    return replace(preset, text=lines, thumbnail=thumbnail)


def _write(kept: _Kept) -> bytes:
    presets = [*map(_to_json, kept.presets.values()), *(refused.data for refused in kept.refused)]
    return json_bytes({"version": VERSION, "presets": presets}, indent=1)


def _read(content: bytes) -> _Kept:
    data = json.loads(content.decode("utf-8"))
    if not isinstance(data, Mapping) or not isinstance(data.get("presets"), list):
        raise PresetError("it is not a list of presets")
    if data.get("version") != VERSION:
        raise PresetError(f"it is of version {data.get('version')!r}, and this Remora knows version {VERSION}")
    presets: dict[str, SavedPreset] = {}
    refused = []
    for number, one in enumerate(data["presets"], 1):
        try:
            preset = _from_json(one)
            if preset.name in presets:
                raise PresetError("another one has its name")
            presets[preset.name] = preset
        except PresetError as error:
            refused.append(_Refused(one, f"preset {number}: {error}"))
    return _Kept(presets, tuple(refused))


def _to_json(preset: SavedPreset) -> dict[str, Any]:
    more = {"parameters": preset.parameters, "sketches": dict(preset.sketches)}
    return {
        "name": preset.name,
        "text": preset.text,
        "thumbnail": base64.b64encode(preset.thumbnail).decode("ascii"),
        **{name: value for name, value in more.items() if value},
    }


def _from_json(data: object) -> SavedPreset:
    match data:
        case {"name": str(name), "text": str(text), "thumbnail": str(thumbnail), **more}:
            try:
                picture = base64.b64decode(thumbnail, validate=True)
                return SavedPreset(_checked_name(name), text, picture, *_from_more(more))
            except ValueError as error:
                raise PresetError(
                    str(error) if isinstance(error, PresetError) else "its thumbnail is damaged"
                ) from error
        case _:
            raise PresetError("it lacks its name, text or thumbnail")


def _from_more(more: Mapping[Any, Any]) -> tuple[str, Mapping[str, str]]:
    """Return the parameters and the sketches of a preset, both of which may be missing."""
    parameters, sketches = more.get("parameters", ""), more.get("sketches", {})
    if not isinstance(parameters, str):
        raise PresetError("its parameters are not text")
    if not isinstance(sketches, dict) or not all(isinstance(one, str) for one in sketches.values()):
        raise PresetError("its sketches are not texts")
    if len(sketches) > _MAX_SKETCHES:
        raise PresetError(f"it has {len(sketches):,} sketches; a preset has no more than {_MAX_SKETCHES}")
    return _checked_parameters(parameters), sketches
