"""From what a user gives to the path of a file: a file, a folder, a hub's id, tensors, or an open file."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..errors import ArgumentError, FileError, check_path, check_type, printed, shown
from .components import DENOISER, EXACT, role

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Tensor] | BinaryIO
"""What a LoRA may be loaded from."""

_NAMES = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
"""What PEFT's `save_pretrained` and diffusers' `save_lora_weights` write."""
_PICKLED = "adapter_model.bin"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_REPOSITORY = "models--"
_EXAMPLE = "the path of a file or a folder, a state dict, or a file that is open for reading bytes"


def path_of(
    source: Source, weight_name: str | None = None, new_file: Callable[[], Path] = Path, *, parts: bool = False
) -> Path:
    """Return the path of a file; `new_file` returns one to write, where the source is none yet.

    `weight_name` is the file in a folder; None stands for the usual names, or the only file. With `parts`, the path may
    be of a folder that has `component_files`.
    """
    if weight_name is not None:
        check_type(weight_name, str, "weight_name", "the name of a file in the folder")
    if isinstance(source, Mapping):
        return _saved(source, new_file())
    if not isinstance(source, str | os.PathLike) and callable(getattr(source, "read", None)):
        return _copied(source, new_file())
    written = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if not isinstance(written, str) or "\0" in written or not written:
        raise ArgumentError(f"a LoRA is loaded from {_EXAMPLE}, not from {shown(source)}")
    path = Path(written)
    if "://" in written:
        raise FileError(path, "it is a web address, and Remora downloads nothing; download it, and load the file")
    try:
        if path.exists() and not path.is_dir():
            return path
        return _in_folder(path if path.is_dir() else _in_hub_cache(path, weight_name), weight_name, parts)
    except OSError as error:
        raise FileError(path, f"it cannot be read: {error.strerror or error}") from error


def component_files(folder: str | Path) -> dict[str, Path]:
    """Return the files of a LoRA that PEFT saved component by component, the denoiser's first: component -> file.

    Each is in a folder with the component's name, as PEFT's `examples/lora_dreambooth` saves them. A pickle is among
    them, behind the others, so that the error can say how to convert it; where all are pickles, there are none.
    """
    check_path(folder, "component_files('a folder')")
    order = sorted(EXACT, key=lambda name: (role(name) != DENOISER, name))
    found = {name: path for name in order if _is_file(path := Path(folder, name, _NAMES[0]))}
    if found:
        found |= {one: path for one in order if one not in found and _is_file(path := Path(folder, one, _PICKLED))}
    return found


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113  # `Path` raises for a name that is too long


def whole_of(path: Path) -> Path:
    """Return the folder with `component_files` to which a file belongs; the file itself where there is none."""
    folder = path.parent.parent
    return folder if path.name == _NAMES[0] and path in component_files(folder).values() else path


def strange_parts(folder: Path) -> list[str]:
    """Return the names of folders that have a file of PEFT, and are not named for a component."""
    return sorted({one.parent.name for one in folder.glob(f"*/{_NAMES[0]}")} - EXACT)


def name_of(path: Path) -> str:
    """Return what to call a LoRA that the user gives no name: its file's or, of a usual name, its folder's."""
    is_folder = path.name not in _NAMES and path.is_dir()
    if path.name not in _NAMES and not is_folder:
        return path.stem
    repository = next((part for part in path.parts if part.startswith(_REPOSITORY)), None)
    folder = path.absolute() if is_folder else path.absolute().parent
    return folder.name if repository is None else repository.rpartition("--")[2]


def _in_hub_cache(path: Path, weight_name: str | None) -> Path:
    """Return the folder to which huggingface_hub downloaded a repository, by its id."""
    name = path.as_posix()
    if not _HUB_ID.fullmatch(name) or path.suffix == ".safetensors":
        raise FileError(path, f"there is no such file or folder: {printed(str(path.absolute()))}")
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repository = cache / f"{_REPOSITORY}{name.replace('/', '--')}"
    if not repository.is_dir():
        how = f"hf download {name}" + (f" {printed(weight_name)}" if weight_name else "")
        text = f"{name} is no file or folder here, and Remora downloads nothing; if it is on Hugging Face, run `{how}`"
        raise FileError(path, f"{text} once, then load it by the same name")
    return repository


def _in_folder(folder: Path, weight_name: str | None, parts: bool) -> Path:
    """Return the file of a folder that PEFT or diffusers wrote, or of a hub's repository in its cache."""
    if (folder / "snapshots").is_dir() and folder.name.startswith(_REPOSITORY):
        snapshots, main = folder / "snapshots", folder / "refs" / "main"
        latest = max(snapshots.iterdir(), key=lambda path: path.stat().st_mtime, default=snapshots)
        wanted = snapshots / main.read_text("utf-8", "replace").strip() if main.is_file() else latest
        folder = wanted if wanted.is_dir() else latest
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if weight_name is not None:
        if (folder / weight_name).is_file():
            return folder / weight_name
        raise FileError(folder, f"the folder has no file {weight_name!r}; it has {', '.join(found) or 'none'}")
    usual = [name for name in _NAMES if name in found] or found
    if parts and not usual and component_files(folder):
        return folder
    if len(usual) == 1:
        return folder / usual[0]
    if usual:
        raise FileError(folder, f"the folder has several files; give the path of one (or weight_name=): {usual}")
    pickled = [path.name for path in folder.glob("*.bin")]
    below = sorted(path.parent.name for path in folder.glob("*/adapter_model.safetensors"))
    text = "the folder has no file that ends in .safetensors"
    if pickled:
        text += f", and {pickled[0]} is a pickle, which is not loaded; save it with safe_serialization=True"
    elif below:
        text += f"; load a folder in it: {', '.join(below)}"
    raise FileError(folder, text)


def _saved(tensors: Mapping[str, Tensor], own: Path) -> Path:
    """Write a state dict to a file: dense tensors on the CPU, in memory of their own."""
    if not tensors:
        raise ArgumentError("a state dict without tensors is no LoRA; give the adapter's own, not the model's")
    copies = dict[str, Tensor]()
    for key, value in tensors.items():
        check_type(key, str, "a key of a state dict", "a text")
        check_type(value, (Tensor, int, float), f"{printed(key)} of a state dict", "a tensor")
        try:
            tensor = torch.as_tensor(value).detach()
            copies[key] = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format).contiguous()
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            why = "it has no data, another layout than dense, or too many digits"
            raise ArgumentError(f"{printed(key)} of a state dict cannot be copied: {why}") from error
    try:
        save_file(copies, own)
    except (OSError, ValueError, RuntimeError, KeyError) as error:  # the last two of dtypes that a file cannot have
        raise FileError(own, f"the state dict cannot be written to a file: {error}") from error
    return own


def _copied(source: BinaryIO, own: Path) -> Path:
    try:
        with own.open("wb") as target:
            shutil.copyfileobj(source, target)
    except TypeError as error:
        raise ArgumentError("an open file must give bytes; open it with mode 'rb'") from error
    except (OSError, ValueError) as error:
        raise FileError(Path(str(getattr(source, "name", own.name))), f"it cannot be read: {error}") from error
    return own
