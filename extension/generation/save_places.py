"""Places for saved files: LoRA folders, folders of the host's models, and names that every system allows."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..library.walk import READABLE, TRASH
from ..text.regions import is_device_name

if TYPE_CHECKING:
    from .session import Session

_LONGEST = 100  # characters of a name
_MOST_BYTES = 180  # of a name: file systems have 255, and the unfinished file has a longer one
_NO_NAME = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
"""Characters that no file on Windows has in its name, or no tag."""
_CACHE = "snapshots"  # the folder of a model in the cache of Hugging Face, whose files are links


class SaveError(ValueError):
    """A file cannot be saved; the message is one sentence."""


def folders(session: Session) -> list[str]:
    """Return the folders that a file may be saved in, as paths below the LoRA folders; `` for the first of these."""
    known = {file.folder for file in session.catalog.every}
    return ["", *sorted(known - {""})]


def place(session: Session, name: str, folder: str) -> Path:
    """Return the path of a new file of LoRA.

    Raises:
        SaveError: no file may have this name, or the folder is not below the LoRA folders.
    """
    return folder_of(session, folder) / f"{checked_name(name)}{READABLE}"


def models(session: Session) -> Mapping[str, Path]:
    """Return the models of the host by name, the loaded one first."""
    found = session.host.models()
    is_loaded = {name: bool(_loaded_from(session, path)) for name, path in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: not is_loaded[name])}


def loaded_model(session: Session) -> tuple[Path, list[Path]] | None:
    """Return the path of the loaded model, a file or a folder, and its files; None where it is not known."""
    found = [(path, _loaded_from(session, path)) for path in session.host.models().values()]
    return next((one for one in found if one[1]), None)


def _loaded_from(session: Session, path: Path) -> list[Path]:
    """Return the files of a model that the loaded one was read from."""
    loaded = dict.fromkeys(file for files in session.host.checkpoints().values() for file in files)
    return [file for file in loaded if path in (file, *file.parents)]


def model_of(session: Session, name: str) -> Path:
    """Return the path of a model by its name.

    Raises:
        SaveError: there is none, or it is not on disk any more.
    """
    if not name:
        raise SaveError("choose a model")
    path = session.host.models().get(name)
    if path is None or not path.exists():
        raise SaveError(f"the web UI has no model {name[:120]!r}; choose one of its list")
    return path


def place_beside(model: Path, name: str) -> Path:
    """Return the path of a new model beside another one, of the same form.

    Raises:
        SaveError: no file may have this name, or be there.
    """
    if model.parent.name == _CACHE:
        raise SaveError(f"{model.parent.parent.name} is in the cache of downloads; save it as a folder of models first")
    return model.parent / (f"{checked_name(name)}{READABLE}" if model.is_file() else checked_name(name))


def checked_name(name: str) -> str:
    """Return a name without its suffix.

    Raises:
        SaveError: no file may have this name.
    """
    name = name.strip().removesuffix(READABLE)
    if not name or name.startswith((".", "~")) or name.endswith((".", " ")) or _NO_NAME.search(name):
        raise SaveError(
            f'a file cannot have the name {name[:60]!r}; write letters, digits and spaces, none of < > : " / \\ | ? * '
            "and no dot at its ends"
        )
    if len(name) > _LONGEST or len(name.encode("utf-8")) > _MOST_BYTES:
        raise SaveError(f"the name is too long; write at most {_LONGEST} letters")
    if is_device_name(name):
        raise SaveError(f"{name!r} is the name of a device on Windows, where no file has it; choose another name")
    return name


def folder_of(session: Session, wanted: str) -> Path:
    """Return a folder by its path below a LoRA folder; `` for the first of these.

    Raises:
        SaveError: there is no such folder.
    """
    tops = [top for top in session.host.adapter_dirs() if top.is_dir()]
    if not tops:
        raise SaveError("there is no LoRA folder; make one first")
    if not wanted:
        return tops[0]
    known = {
        file.folder: file.source if file.is_folder else file.path.parent for file in reversed(session.catalog.every)
    }
    if wanted in known:
        return known[wanted]
    parts = wanted.split("/")
    is_plain = not any(part == TRASH or part.strip(". ") == "" or _NO_NAME.search(part) for part in parts)
    for top in tops if is_plain else ():
        found = top.joinpath(*parts)
        # of a name that is too long, `os.path` says that it is no folder, and `Path` raises
        if os.path.isdir(found) and Path(os.path.realpath(top)) in Path(os.path.realpath(found)).parents:  # noqa: PTH112
            return found
    raise SaveError(f"there is no folder {wanted[:120]!r} in the LoRA folders; make it first, or choose another one")
