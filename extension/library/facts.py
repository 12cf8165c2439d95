"""The data of a file's header that help people find it among thousands."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from lib_lora import AdapterFile, Family, FileError, Glance, LoraError, base_model, glance

from .plain import are_texts, demand, is_count, read_json

VERSION = 2
"""Of these data; facts of another version are read again."""
_NO_ALIAS = frozenset({"", "none", "Addams"})  # trainers' defaults that thousands of files share
_HASH = re.compile(r"[0-9a-fA-F]{12,64}")
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()[:12]  # what ai-toolkit stores in every file
_TAGS = 100  # shown
_SEARCHED = 20  # found by the search
_LONGEST_TAG = 60  # characters; longer ones are whole captions
_LONGEST = 4000  # characters of a text
_MOST_PICTURES = 10**9  # that a folder of training pictures may hold
_EVERY = 0.97  # of the captions: a word in so many is a trigger word,
_FEW = 3  # unless there are more such words
PICTURES = ("modelspec.thumbnail", "ssmd_cover_images")
"""Names in the header that may hold a picture."""
_FAMILY_KEYS = ("ss_base_model_version", "modelspec.architecture")  # metadata that names the family
# Displayed data on the training, by kohya's and ModelSpec's names.
_TRAINING: Mapping[str, tuple[str, ...]] = {
    "title": ("modelspec.title",),
    "author": ("modelspec.author",),
    "licence": ("modelspec.license",),
    "date": ("modelspec.date", "ss_training_started_at"),
    "trained with": ("ss_network_module", "modelspec.implementation"),
    "optimizer": ("ss_optimizer",),
    "learning rate": ("ss_learning_rate",),
    "unet learning rate": ("ss_unet_lr",),
    "text encoder learning rate": ("ss_text_encoder_lr",),
    "steps": ("ss_max_train_steps", "ss_steps"),
    "epochs": ("ss_num_epochs",),
    "epoch": ("ss_epoch",),
    "pictures": ("ss_num_train_images",),
    "batch size": ("ss_total_batch_size", "ss_batch_size_per_device"),
    "resolution": ("modelspec.resolution", "ss_resolution"),
    "clip skip": ("ss_clip_skip",),
    "alpha": ("ss_network_alpha",),
    "noise offset": ("ss_noise_offset",),
    "min SNR gamma": ("ss_min_snr_gamma",),
    "prediction": ("modelspec.prediction_type",),
    "comment": ("ss_training_comment", "modelspec.description"),
}


@dataclass(frozen=True, slots=True)
class Structure:
    """A file's format, family and kinds, derived from its keys and shapes."""

    format: str = ""
    kinds: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[int, int] | None = None
    layers: int = 0
    family: Family | None = None
    named: str = ""
    """The family that the header names, for people, if its layers are of another."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of one file's header."""

    problem: str = ""
    """Why the file cannot be used, as one sentence; empty if it can."""
    alias: str = ""
    """The name its trainer gave it; empty if meaningless."""
    stored_hash: str = ""
    """12 hex digits that its trainer stored; empty if not credible."""
    base_model: str = ""
    structure: Structure = field(default_factory=Structure)
    tags: str = ""
    """The most frequent words of the training captions."""
    words: tuple[str, ...] = ()
    """Trigger words: the ones the file names, or the ones in all captions."""
    picture: bool = False
    """Whether the header has a picture."""
    passing: bool = False
    """Whether the problem may be gone at the next start, such as a drive that did not answer."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        structure = json.dumps(asdict(self.structure), sort_keys=True)
        return {**asdict(self), "structure": structure, "version": VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts | None:
        """Return the facts that `to_json` wrote, or None if they are of another version.

        Raises:
            ValueError: the data are invalid; also KeyError, TypeError and AttributeError.
        """
        if data.get("version") != VERSION:
            return None
        values = {name: value for name, value in data.items() if name != "version"}
        found = cls(**values | {"structure": _structure_from(values["structure"]), "words": tuple(values["words"])})
        demand(are_texts((found.problem, found.alias, found.stored_hash, found.base_model, found.tags, *found.words)))
        demand(isinstance(found.picture, bool) and isinstance(found.passing, bool))
        return found


@dataclass(frozen=True, slots=True)
class Training:
    """The data of a header on the training."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Label -> value."""
    tags: tuple[tuple[str, int], ...] = ()
    """Words of the captions and the number of captions that contain them, most frequent first."""
    header: Mapping[str, str] = field(default_factory=dict)
    """The whole header, in which a distilled file says what it was made for."""


def read_training(path: Path) -> Training:
    """Read a header's data on the training.

    Raises:
        LoraError: the header cannot be read.
    """
    said = AdapterFile.open(path).metadata
    tags = _frequencies(said.get("ss_tag_frequency", "")).most_common(_TAGS)
    return Training(_training(said), tuple(tags), said)


class FactsReader:
    """Reads headers. Thousands of files share some dozens of structures, which are cached."""

    def __init__(self) -> None:
        self._structures: dict[tuple[bytes, tuple[str, ...]], Structure] = {}

    def read(self, path: Path, source: Path | None = None) -> Facts:
        """Read one header; an unusable file has the reason as its `problem`.

        The source is the folder that the file is a component of, see `CatalogFile.source`.
        """
        said: Mapping[str, str] = {}
        structure, problem, passing = Structure(), "", False
        try:
            glanced = glance(path)
            said = glanced.metadata if glanced is not None else AdapterFile.open(path).metadata
            structure = _inspect(source) if source not in (None, path) else self._structure(path, glanced)
        except LoraError as error:
            problem = error.reason if isinstance(error, FileError) else str(error)
            passing = isinstance(error.__cause__, OSError)
        tags = _frequencies(said.get("ss_tag_frequency", "")).most_common()
        alias = said.get("ss_output_name", "")
        return Facts(
            problem=problem,
            alias="" if alias in _NO_ALIAS else alias[:_LONGEST],
            stored_hash=_credible(said.get("sshs_model_hash", "")),
            base_model=base_model(said) or "",
            structure=structure,
            tags=", ".join(tag for tag, _ in tags[:_SEARCHED] if len(tag) <= _LONGEST_TAG),
            words=_words(said, tags),
            picture=any(said.get(key, "").strip("[] ") for key in PICTURES),
            passing=passing,
        )

    def _structure(self, path: Path, glanced: Glance | None) -> Structure:
        if glanced is None or (path.parent / "adapter_config.json").exists():
            return _inspect(path)  # PEFT's configuration has more than the keys
        alike = glanced.tensors, tuple(glanced.metadata.get(key, "") for key in _FAMILY_KEYS)
        if (known := self._structures.get(alike)) is None:
            known = self._structures[alike] = _inspect(path)
        return known


def _inspect(path: Path) -> Structure:
    from lib_lora.inspection.families import report_of  # a start does not need it

    report, named = report_of(path)
    title = "" if named is None else named.titles
    return Structure(report.format, dict(report.kinds), report.ranks, report.layers, report.family, title)


def _credible(stored: str) -> str:
    return stored[:12].lower() if _HASH.fullmatch(stored) and not stored.lower().startswith(_HASH_OF_NOTHING) else ""


def _training(said: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for label, keys in _TRAINING.items():
        value = next((text for key in keys if (text := said.get(key, "").strip()) not in ("", "None")), "")
        if value:
            found[label] = value[:_LONGEST]
    return found


def _words(said: Mapping[str, str], tags: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return the trigger words: the phrase in the header, or the few words in almost all captions."""
    if phrase := said.get("modelspec.trigger_phrase", "").strip():
        return (phrase[:_LONGEST],)
    captions = sum(_counts(said.get("ss_dataset_dirs", ""), "img_count"))
    every = [tag for tag, count in tags if 0 < _EVERY * captions <= count and len(tag) <= _LONGEST_TAG]
    return tuple(every) if len(every) <= _FEW else ()


def _counts(text: str, name: str) -> Iterator[int]:
    for folder in _object(text).values():
        count = folder.get(name) if isinstance(folder, dict) else None
        if _is_count(count):
            yield count


def _frequencies(text: str) -> Counter[str]:
    """Parse kohya's `ss_tag_frequency`: {folder: {tag: number of captions that contain it}}."""
    counts: Counter[str] = Counter()
    for tags in _object(text).values():
        for tag, count in tags.items() if isinstance(tags, dict) else ():
            if _is_count(count) and tag.strip():
                counts[tag.strip()] += count
    return counts


def _is_count(value: object) -> TypeGuard[int]:
    """Tell whether a number of a header can be a number of pictures; Python's integers have no bound."""
    return isinstance(value, int) and 0 <= value <= _MOST_PICTURES


def _object(text: str) -> Mapping[str, Any]:
    """Parse a JSON object in the header; anything else gives an empty one."""
    try:
        loaded = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


@lru_cache(maxsize=4096)
def _structure_from(text: str) -> Structure:
    """Return a shared object for equal texts: thousands of files have few structures."""
    data = read_json(text)
    ranks = (data["ranks"][0], data["ranks"][1]) if data["ranks"] else None
    demand(are_texts((data["format"], data["named"])) and isinstance(data["kinds"], dict) and is_count(data["layers"]))
    demand(all(map(is_count, (*data["kinds"].values(), *(ranks or ())))))
    return Structure(data["format"], data["kinds"], ranks, data["layers"], _family(data["family"]), data["named"])


def _family(data: Mapping[str, Any] | None) -> Family | None:
    if data is None:
        return None
    also = tuple(found for one in data["also"] if (found := _family(one)) is not None)
    demand(are_texts((data["name"], data["title"])))
    return Family(data["name"], data["title"], data["sure"], also, data["named"])
