"""What trainers write beside the tensors: alpha, the model that was trained, choices that change what tensors mean.

PEFT writes `adapter_config.json` beside the file. diffusers packs one such configuration per component into the
header's `lora_adapter_metadata`, as `unet.lora_alpha`, `text_encoder.r` and so on. SimpleTuner puts the arguments of
LyCORIS into the header's `lycoris_config`, OneTrainer all its settings into `ot_config`. Others write alpha and rank
into the header as they are; see `_header.py`.

Sources: huggingface/peft tuners/*/config.py and `utils/other.py:get_pattern_key`; huggingface/diffusers
loaders/lora_base.py; bghira/SimpleTuner helpers/training/save_hooks.py; Nerogar/OneTrainer
modules/modelSaver/mixin/DtypeModelSaverMixin.py and modules/util/config/TrainConfig.py.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ...errors import FileError, check_type
from ..components import DENOISER, role
from ..file import AdapterFile, open_regular
from ._header import Layer, arguments, plain_values, stale, tables_by_layer
from ._peft_patterns import Table
from .base import KeyFormat

_MAX_CONFIG = 8 << 20  # bytes of an adapter_config.json
PEFT_HEADER = "lora_adapter_metadata"
LYCORIS_HEADER = "lycoris_config"
ONETRAINER_HEADER = "ot_config"
_OTHER_HEADERS = ("adapter_config", "peft_config", "lora_config")
"""Names under which scripts put PEFT's configuration into the header; something else may stand there."""
_OWN_NAMES = ("adapter_model", "pytorch_lora_weights")
"""Begin of the names of files that `adapter_config.json` may belong to: PEFT's, else diffusers'."""
_BESIDE = "adapter_config.json beside it is not used"

# The rest of OneTrainer's settings says nothing that the tensors do not say, or says it of the training: its
# `lora_alpha` is already in the tensors, as `alpha` or folded into `lora_B`.
_ONETRAINER = {
    "oft_block_size": "oft_block_size",
    "oft_block_share": "block_share",
    "base_model_name": "base_model_name_or_path",
}
# what may differ from module to module, and the name of the table that says so
_PATTERNS = {"lora_alpha": "alpha_pattern", "alpha": "alpha_pattern", "r": "rank_pattern"}

# kohya's scripts and musubi-tuner write the first and the third of these, ai-toolkit the third, OneTrainer and
# SimpleTuner the fourth; `modelspec.title` is what the file itself is called
_NAMES = ("ss_sd_model_name", "ss_base_model")
_VERSIONS = ("ss_base_model_version", "modelspec.architecture")
_LONGEST = 120  # characters
_NOTHING = frozenset({"", "None", "unknown"})  # what trainers write where they know nothing


class PeftConfig:
    """The configurations of one file.

    Args:
        values: one configuration, or several with `component.` before each name.
        notes: one sentence for each configuration that is not used, or is doubtful.
        said: the arguments of the network in the header: ranks and alphas by layer and of convolutions.

    Raises:
        ValueError: patterns of names take too long to match; from all that asks for one module.
    """

    def __init__(
        self, values: Mapping[str, object], notes: Sequence[str] = (), said: Mapping[str, object] | None = None
    ) -> None:
        self._common: dict[str, object] = {}
        self._components: dict[str, dict[str, object]] = {}
        self._tables: dict[int, dict[str, Table]] = {}
        self._by_layer = tables_by_layer(said or {})
        self._of_convolutions = {
            name: said[key] for name, key in (("r", "conv_dim"), ("lora_alpha", "conv_alpha")) if said and key in said
        }
        self.notes = tuple(notes)
        self.empty = not values and not self._by_layer and not self._of_convolutions
        for key, value in values.items():
            component, dot, name = key.rpartition(".")
            part = self._components.setdefault(component, {}) if dot else self._common
            part[name] = value
        self._components = {name: {**self._common, **own} for name, own in self._components.items()}

    @classmethod
    def of(
        cls, file: AdapterFile, layers: Sequence[Layer] = (), beside: Sequence[KeyFormat] | None = None
    ) -> PeftConfig:
        """Read the configuration in the header, else the file's own `adapter_config.json`.

        Args:
            file: the file.
            layers: its layers, which a configuration must agree with.
            beside: the spellings of its keys whose trainers write `adapter_config.json`; None where they are not known.

        Raises:
            FileError: the header's cannot be read.
        """
        values, said = _of_header(file), arguments(file.metadata)
        plain, notes = plain_values(file.metadata, layers)
        has_alpha = any(key.endswith("lora_alpha") for key in plain)
        if not has_alpha:
            said.pop("conv_alpha", None)  # folded into the tensors, as the other alpha
        if not values and not has_alpha and (beside or beside is None):
            values, of_beside = _own_beside(file.path, layers, beside or ())
            notes = [*notes, *of_beside]
        elif values and (why := stale(values, layers)):
            values, notes = _without_scale(values), [*notes, f"the scale in its header is not used, as {why}"]
        return cls({**plain, **values}, notes, said)

    def values(
        self, component: str | None, module: str | None = None, *, spatial: bool = False
    ) -> Mapping[str, object]:
        """Return the trainer's configuration of one component, or of all where the file does not name it.

        Args:
            component: diffusers' name.
            module: a dotted path; then `r`, `alpha` and `lora_alpha` are this module's.
            spatial: whether that is a convolution with a kernel, which LyCORIS gives a rank and an alpha of its own.
        """
        values = self._of(component)
        if module is None or self.empty:
            return MappingProxyType(values)
        own = self._of_layer(values, component, module, spatial=spatial)
        return MappingProxyType(ChainMap(own, values))  # no copy: each layer has one, and a file may say much

    def _of(self, component: str | None) -> dict[str, object]:
        """Return the configuration of a component; a denoiser's name may be a role, or missing, in the file's keys."""
        found = None if component is None else self._components.get(component)
        if found is None and (component is None or role(component) == DENOISER):
            alike = [own for name, own in self._components.items() if role(name) == DENOISER]
            only = component is not None or len(self._components) == 1
            found = alike[0] if len(alike) == 1 and only else None
        return self._common if found is None else found

    def _of_layer(
        self, values: Mapping[str, object], component: str | None, module: str, *, spatial: bool
    ) -> dict[str, object]:
        """Return what the configuration says of one layer alone."""
        tables = self._tables.get(id(values))
        if tables is None:  # the configurations stay as long as this object does
            found = {name: values.get(table) for name, table in _PATTERNS.items() if name in values}
            tables = {name: Table(one.items()) for name, one in found.items() if isinstance(one, dict) and one}
            self._tables[id(values)] = tables
        own = dict(self._of_convolutions) if spatial else {}
        own |= {name: value for name, table in tables.items() if (value := table.value(module)) is not None}
        for name, by_layer in self._by_layer.items():
            if (value := by_layer.value(component, module)) is not None:
                own[name] = value
        return own

    @property
    def base_model(self) -> object:
        """Return the model it was trained on, by name or path; None where no configuration tells."""
        names = (one.get("base_model_name_or_path") for one in (self._common, *self._components.values()))
        return next(filter(None, names), None)


def _of_header(file: AdapterFile) -> dict[str, object]:
    """Return the configuration that the header has as JSON; empty without one.

    Raises:
        FileError: what only can be a configuration cannot be read.
    """
    for key in (PEFT_HEADER, LYCORIS_HEADER, ONETRAINER_HEADER, *_OTHER_HEADERS):
        if key not in file.metadata:
            continue
        try:
            values = json.loads(file.metadata[key])
        except (ValueError, RecursionError) as error:
            if key in _OTHER_HEADERS:
                continue
            raise FileError(file.path, f"metadata {key} is not JSON: {error}") from error
        if isinstance(values, dict):
            if key == ONETRAINER_HEADER:
                values = {ours: values[own] for own, ours in _ONETRAINER.items() if own in values}
            return values
        if key not in _OTHER_HEADERS:
            raise FileError(file.path, f"metadata {key} is not a JSON object")
    return {}


def _without_scale(values: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration without what it says of alpha and rank."""
    scale = ("r", "lora_alpha", "alpha", "rank_pattern", "alpha_pattern")
    return {key: value for key, value in values.items() if key.rpartition(".")[2] not in scale}


def _own_beside(
    path: Path, layers: Sequence[Layer], formats: Iterable[KeyFormat]
) -> tuple[dict[str, object], list[str]]:
    """Return the file's own `adapter_config.json` by PEFT's names, and why one is not used.

    In a folder of LoRA it is a neighbour's: it belongs to the file that its trainer wrote, by its name, and to none
    whose ranks or layers it does not have.
    """
    folder, name = path.parent, path.name.partition(".")[0].lower()
    is_second = name == _OWN_NAMES[1] and any(folder.glob(f"{_OWN_NAMES[0]}.*"))
    stems = tuple(stem for one in formats for stem in one.stems)
    if (name not in _OWN_NAMES or is_second) and not (stems and name.endswith(stems)):
        there = any(layer.lacks_alpha for layer in layers) and (folder / "adapter_config.json").exists()
        return {}, [f"{_BESIDE}: it belongs to a file called adapter_model.safetensors"] if there else []
    try:
        values = adapter_config(path) or {}
        for one in formats:
            values |= {
                own: found for said, own in one.settings.items() if (found := _setting(values, said)) is not None
            }
    except FileError as error:
        return {}, [f"{_BESIDE}: {error.reason}"]
    why = stale(values, layers)
    return ({}, [f"{_BESIDE}, as {why}"]) if why else (values, [])


def _setting(values: object, name: str) -> object:
    for step in name.split("."):
        values = values.get(step) if isinstance(values, dict) else None
    return values


def adapter_config(path: Path) -> dict[str, object] | None:
    """Read PEFT's `adapter_config.json` beside an adapter file; return None where there is none.

    Raises:
        FileError: it is there but is not a JSON object.
    """
    config = path.parent / "adapter_config.json"
    if not config.exists():
        return None
    try:
        with open_regular(config) as stream:
            content = stream.read(_MAX_CONFIG + 1)
        if len(content) > _MAX_CONFIG:
            raise ValueError(f"it has more than {_MAX_CONFIG:,} bytes")
        loaded = json.loads(content.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(config, f"beside {path.name} cannot be read as JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise FileError(config, f"beside {path.name} is not a JSON object")
    return loaded


def base_model(metadata: Mapping[str, str], configured: object = None) -> str | None:
    """Return the name and version of the model a file was made from, for people; None where the header says nothing.

    Args:
        metadata: the header's.
        configured: the model's name or path in the trainer's configuration.
    """
    check_type(metadata, Mapping, "metadata", "the metadata of a header, as AdapterFile.open(path).metadata")
    texts = [_line(one) for one in (*(metadata.get(key) for key in _NAMES), configured)]
    name = next(filter(None, texts), "")
    parts = re.split(r"[\\/]+", name.rstrip("\\/"))
    if "\\" in name or name.startswith("/") or len(parts) > 2:  # else a name as on a hub, `owner/name`
        name = parts[-1]
    # ModelSpec and OneTrainer append something: `stable-diffusion-xl-v1-base/lora`, `sdxl_`
    versions = [_line(metadata.get(key)).partition("/")[0].rstrip("_") for key in _VERSIONS]
    version = next(filter(None, versions), "")
    return (f"{name} ({version})" if name and version else name or version) or None


def _line(value: object) -> str:
    """Return one line of printable text: a file may say anything."""
    text = value if isinstance(value, str) else ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return "" if line in _NOTHING else line[:_LONGEST]
