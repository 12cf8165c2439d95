"""Notes on a file, in the files beside it that web UIs and their extensions write.

Read in this order: `name.json`, either as A1111's and Forge's card editor writes it ("activation text",
"preferred weight", "notes", ...) or as SD.Next stores a model of Civitai's API; then `name.civitai.info`, a model
version of that API; then `name.txt` and `name.description.txt`. Only the changed fields of `name.json` are written;
others stay. Both kinds of fields are stored in one file: each web UI reads its own.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ..store import Store, json_bytes, read_bytes, write_text
from .plain import are_texts, demand
from .walk import CatalogFile, beside, leads_away

VERSION = 5
"""Of these data; notes of another version are read again."""
RATINGS = range(6)
"""Stars; 0 is none."""
_MAX_BYTES = 8 << 20  # of a file with notes
_MAX_TEXT = 20_000  # characters of a field
_MAX_TAGS = 200
_MAX_ALPHA = 1e6
_PHRASE = re.compile(r"(?:\([^()]*\)|\[[^\[\]]*\]|[^,(\[]+|[(\[])+")  # the tab splits words so: (fur, tail:1.2) is one
_OWN = "remora"  # the object in `name.json` for fields that no web UI has


class NotesError(ValueError):
    """Notes are invalid, or their file cannot be changed; the message is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes on one file."""

    description: str = ""
    words: str = ""
    """Trigger words, as a prompt contains them."""
    negative: str = ""
    """The same for the negative prompt."""
    notes: str = ""
    base_model: str = ""
    tags: tuple[str, ...] = ()
    strength: float | None = None
    """The preferred strength; None is the web UI's default."""
    alpha: float | None = None
    """The user's alpha for the file; None leaves it to the file. lib_lora reads it from `name.json`, too."""
    rating: int = 0
    favourite: bool = False
    hidden: bool = False
    """Whether the user wants lists to leave it out."""
    groups: tuple[str, ...] = ()
    """Trigger words that belong together, as Civitai lists them."""
    page: str = ""
    """The address where a site has the file, as it told when it was asked last."""
    newer: str = ""
    """The address of a newer version; empty if it told of none."""
    problems: tuple[str, ...] = ()
    """A sentence for each file beside it that could not be read."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {**asdict(self), "version": VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Notes | None:
        """Return the notes that `to_json` wrote, or None if they are of another version.

        Raises:
            ValueError: the data are invalid; also KeyError and TypeError.
        """
        if data.get("version") != VERSION:
            return None
        values = {name: value for name, value in data.items() if name != "version"}
        found = cls(**values | {name: tuple(values[name]) for name in ("tags", "groups", "problems")})
        demand(are_texts((found.description, found.words, found.negative, found.notes, found.base_model)))
        demand(are_texts((*found.tags, *found.groups, *found.problems)) and isinstance(found.favourite, bool))
        demand(isinstance(found.hidden, bool) and are_texts((found.page, found.newer)))
        demand(type(found.rating) is int and found.rating in RATINGS)
        demand(found.strength is None or found.strength == _number(found.strength))
        demand(found.alpha is None or found.alpha == _alpha(found.alpha))
        return found


_READ_ONLY = ("base_model", "groups", "page", "newer", "problems")
EDITABLE = tuple(one.name for one in fields(Notes) if one.name not in _READ_ONLY)
"""The fields that `write_notes` accepts."""


def read_notes(paths: Sequence[Path]) -> Notes:
    """Read notes from these files, see `walk.Found.notes`."""
    by_end = {_end(path): path for path in paths}
    problems: list[str] = []
    own = _lenient(by_end.get(".json"), problems)
    version = _version(own) or _lenient(by_end.get(".civitai.info"), problems)
    model = own if "modelVersions" in own else _dict(version.get("model"))
    plain = _plain(by_end.get(".txt"), problems) or _plain(by_end.get(".description.txt"), problems)
    said = _text(own.get("description")) or _text(version.get("description"))
    remora = _dict(own.get(_OWN))
    online = _dict(remora.get("online"))
    return Notes(
        # beside a model of Civitai, the host reads the text file first
        description=(plain or without_html(said)) if "modelVersions" in own else (without_html(said) or plain),
        words=_text(own.get("activation text")) or ", ".join(_texts(version.get("trainedWords"))),
        negative=_text(own.get("negative text")),
        notes=_text(own.get("notes")),
        base_model=_text(own.get("sd version")).replace("Unknown", "") or _text(version.get("baseModel")),
        tags=tuple(_texts(own.get("tags")) or _texts(model.get("tags")))[:_MAX_TAGS],
        strength=_number(own.get("preferred weight")),
        alpha=_alpha(remora.get("alpha")),
        rating=rating if (rating := remora.get("rating")) in RATINGS and type(rating) is int else 0,
        favourite=remora.get("favourite") is True,
        hidden=remora.get("hidden") is True,
        groups=tuple(_texts(version.get("trainedWords")))[:_MAX_TAGS],
        page=_text(online.get("page")),
        newer=_text(_dict(online.get("newer")).get("page")),
        problems=tuple(problems),
    )


def write_notes(file: CatalogFile, changes: Mapping[str, object]) -> None:
    """Change fields in `name.json`; other fields and simultaneous changes stay.

    Raises:
        NotesError: an unknown field, an invalid value, or a file that is not a JSON object, would be too large, or is
            a link to a file of another name in another folder; or the LoRA was moved.
        OSError: the file cannot be written; nothing has changed.
    """
    _write(file, changes, {})


def fill_notes(file: CatalogFile, found: Mapping[str, object], own: Mapping[str, object]) -> None:
    """Write the fields that have no value yet, from any file beside it, and fields of Remora's own object.

    Raises:
        NotesError: as `write_notes`.
        OSError: likewise.
    """
    with notes_lock(file):
        now = read_notes(beside(file).notes)
        _write(file, {name: value for name, value in found.items() if not getattr(now, name)}, own)


def read_own(file: CatalogFile) -> Mapping[str, Any]:
    """Return Remora's own object in `name.json`, as anybody may have written it; empty without one."""
    path = _path(file)
    return _dict(_lenient(path if path in beside(file).notes else None, []).get(_OWN))


def _write(file: CatalogFile, changes: Mapping[str, object], own: Mapping[str, object]) -> None:
    checked = {name: _checked(name, value) for name, value in changes.items()}

    def change(data: dict[str, Any]) -> dict[str, Any]:
        for name, value in checked.items():
            _WRITERS[name](data, value)
        for name, value in own.items():
            _own_field(name)(data, value)
        return data

    text = file.path.with_name(f"{file.path.stem}.txt")
    with notes_lock(file):
        if leads_away(path := _path(file)):  # it may lead to any file of the user
            raise NotesError(f"{path} is a link to a file of another name in another folder; put a file in its place")
        _store(file).change(change)
        if "description" in checked and text in beside(file).notes:
            write_text(text, str(checked["description"]))  # the host reads this one first


@contextmanager
def notes_lock(file: CatalogFile) -> Iterator[None]:
    """Exclude other changes of the files beside a LoRA in a `with` statement; see `Store.lock`.

    Raises:
        NotesError: the LoRA was moved, with the files beside it, or another file has its place.
    """
    with _store(file).lock():
        if not file.is_current():
            raise NotesError(f"{file.path.name} was moved or replaced meanwhile; reload the list")
        yield


def _path(file: CatalogFile) -> Path:
    return file.path.with_name(f"{file.path.stem}.json")


def _store(file: CatalogFile) -> Store[dict[str, Any]]:
    path = _path(file)
    return Store(
        lambda: path,
        "notes",
        {},
        lambda content: _parsed(path, content),
        lambda data: json_bytes(data, indent=4),
        _MAX_BYTES,
        shared=True,
        refusal=NotesError,
    )


def _checked(name: str, value: object) -> object:
    if name not in EDITABLE:
        raise NotesError(f"notes have no field {name:.60}; the fields are {', '.join(EDITABLE)}")
    match name:
        case "favourite" | "hidden":
            good, wanted = isinstance(value, bool), "true or false"
        case "rating":
            good, wanted = type(value) is int and value in RATINGS, f"a whole number from 0 to {RATINGS[-1]}"
        case "strength":
            good = value is None or (value == 0 and value is not False) or _number(value) is not None
            wanted = "a number from -100 to 100, or null for the web UI's default; 0 counts as null"
        case "alpha":
            good = value is None or _alpha(value) is not None
            wanted = f"a number from -{_MAX_ALPHA:,.0f} to {_MAX_ALPHA:,.0f}, or null for the file's own"
        case "tags":
            good = isinstance(value, list) and len(value) <= _MAX_TAGS and all(_is_line(tag) for tag in value)
            wanted = f"a list of no more than {_MAX_TAGS} texts of 1 to 100 characters"
        case _:
            good, wanted = isinstance(value, str) and len(value) <= _MAX_TEXT, f"a text of no more than {_MAX_TEXT:,}"
    if not good:
        raise NotesError(f"{name} must be {wanted}, not {value!r:.60}")
    return value


def _is_line(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= 100


def _field(name: str) -> Callable[[dict[str, Any], object], None]:
    return lambda data, value: data.update({name: value})


def _write_words(data: dict[str, Any], value: object) -> None:
    data["activation text"] = value
    version = _version(data)
    if version:  # SD.Next shows the version's
        version["trainedWords"] = [word for part in _PHRASE.findall(str(value)) if (word := part.strip())]


def _own_field(name: str) -> Callable[[dict[str, Any], object], None]:
    def write(data: dict[str, Any], value: object) -> None:
        own = data.setdefault(_OWN, {})
        if not isinstance(own, dict):
            own = data[_OWN] = {}
        own[name] = value

    return write


_WRITERS: Mapping[str, Callable[[dict[str, Any], Any], None]] = {
    "description": _field("description"),
    "words": _write_words,
    "negative": _field("negative text"),
    "notes": _field("notes"),
    "tags": _field("tags"),
    "strength": lambda data, value: data.update({"preferred weight": value or 0.0}),
    "alpha": _own_field("alpha"),
    "rating": _own_field("rating"),
    "favourite": _own_field("favourite"),
    "hidden": _own_field("hidden"),
}


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotesError(f"{path} is not JSON ({error}); repair it or move it away") from error
    if not isinstance(data, dict):
        raise NotesError(f"{path} is not a JSON object; repair it or move it away")
    return data


def _lenient(path: Path | None, problems: list[str]) -> dict[str, Any]:
    """Read a JSON object; an unreadable file is added to `problems` and gives an empty one."""
    if path is None:
        return {}
    try:
        return _parsed(path, read_bytes(path, _MAX_BYTES))
    except (OSError, ValueError) as error:
        problems.append(_sentence(path, error))
        return {}


def _plain(path: Path | None, problems: list[str]) -> str:
    if path is None:
        return ""
    try:
        return read_bytes(path, _MAX_BYTES).decode("utf-8-sig", "replace")[:_MAX_TEXT].strip()
    except (OSError, ValueError) as error:
        problems.append(_sentence(path, error))
        return ""


def _sentence(path: Path, error: Exception) -> str:
    if isinstance(error, NotesError):
        return str(error)
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return f"{path} cannot be read: {why}"


def _end(path: Path) -> str:
    return next(end for end in (".civitai.info", ".description.txt", ".json", ".txt") if path.name.endswith(end))


def _version(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version of a Civitai model that its data describe; like SD.Next, the first if no hash matches."""
    versions = model.get("modelVersions")
    return _dict(versions[0]) if isinstance(versions, list) and versions else {}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value.strip()[:_MAX_TEXT] if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    values: Iterable[object] = value if isinstance(value, list) else ()
    return [text for one in values if (text := _text(one))]


def _number(value: object) -> float | None:
    """Return a strength; None for 0: A1111's editor says "Set to 0 to use default from Settings"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # compare before converting: an integer of 400 digits cannot become a float
    return float(value) if value and abs(value) <= 100 else None


def _alpha(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _MAX_ALPHA else None


class _TextOf(HTMLParser):
    """Collects the text of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("br", "li", "p", "div", "h1", "h2", "h3"):
            self.parts.append("\n")


def without_html(text: str) -> str:
    """Return the text of an HTML page; Civitai's descriptions are HTML."""
    if "<" not in text:
        return text
    page = _TextOf()
    # the parser would read the rest once per tag that starts after the last tag end
    end = text.rfind(">") + 1
    try:
        page.feed(text[:end])
        page.close()
        page.parts.append(html.unescape(text[end:]))
    except Exception:  # noqa: BLE001  # Python's parser asserts what not every text keeps to; then it is no page
        return text
    lines = (line.strip() for line in "".join(page.parts).splitlines())
    return "\n".join(line for line in lines if line)
