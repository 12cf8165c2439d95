"""What trainers write beside the tensors: alpha, the model that was trained, choices that change what tensors mean.

PEFT writes `adapter_config.json` beside the file. diffusers packs one such configuration per component into the
header's `lora_adapter_metadata`, as `unet.lora_alpha`, `text_encoder.r` and so on. SimpleTuner puts the arguments of
LyCORIS into the header's `lycoris_config`, OneTrainer all its settings into `ot_config`.

Sources: huggingface/peft tuners/*/config.py and `utils/other.py:get_pattern_key`; huggingface/diffusers
loaders/lora_base.py; bghira/SimpleTuner helpers/training/save_hooks.py; Nerogar/OneTrainer
modules/modelSaver/mixin/DtypeModelSaverMixin.py and modules/util/config/TrainConfig.py.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ...errors import FileError
from ..file import AdapterFile, open_regular
from ._peft_patterns import Table

_MAX_CONFIG = 8 << 20  # bytes of an adapter_config.json
PEFT_HEADER = "lora_adapter_metadata"
LYCORIS_HEADER = "lycoris_config"
ONETRAINER_HEADER = "ot_config"
PDD_HEADER = "pdd_num_steps"
"""Of a distilled MiniMax-H3, whose header also has `lora_alpha`: vladmandic/sdnext minimax_lora.py, `file_alpha`."""

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

    Raises:
        ValueError: patterns of names take too long to match; from all that asks for one module.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._common: dict[str, object] = {}
        self._components: dict[str, dict[str, object]] = {}
        self._tables: dict[int, dict[str, Table]] = {}
        self.empty = not values
        for key, value in values.items():
            component, dot, name = key.rpartition(".")
            part = self._components.setdefault(component, {}) if dot else self._common
            part[name] = value

    @classmethod
    def of(cls, file: AdapterFile, *, beside: bool = True) -> PeftConfig:
        """Read the configuration in the header, else, where one can be meant, `adapter_config.json` beside the file.

        Raises:
            FileError: it cannot be read.
        """
        key = next((key for key in (PEFT_HEADER, LYCORIS_HEADER, ONETRAINER_HEADER) if key in file.metadata), None)
        if PDD_HEADER in file.metadata and "lora_alpha" in file.metadata:
            return cls({"lora_alpha": _alpha(file)})
        if key is None:
            return cls((adapter_config(file.path) if beside else None) or {})
        try:
            values = json.loads(file.metadata[key])
        except (ValueError, RecursionError) as error:
            raise FileError(file.path, f"metadata {key} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise FileError(file.path, f"metadata {key} is not a JSON object")
        if key == ONETRAINER_HEADER:
            values = {ours: values[own] for own, ours in _ONETRAINER.items() if own in values}
        return cls(values)

    def values(self, component: str | None, module: str | None = None) -> Mapping[str, object]:
        """Return the trainer's configuration of one component, or of all where the file does not name it.

        With a module's dotted path, `r`, `alpha` and `lora_alpha` are this module's.
        """
        values = self._common if component is None else self._components.get(component, self._common)
        if module is None or not values:
            return MappingProxyType(values)
        tables = self._tables.get(id(values))
        if tables is None:  # the configurations stay as long as this object does
            found = {name: values.get(table) for name, table in _PATTERNS.items() if name in values}
            tables = {name: Table(one.items()) for name, one in found.items() if isinstance(one, dict) and one}
            self._tables[id(values)] = tables
        own = {name: value for name, table in tables.items() if (value := table.value(module)) is not None}
        return MappingProxyType(ChainMap(own, values))  # no copy: each layer has one, and a file may say much

    @property
    def base_model(self) -> object:
        """Return the model it was trained on, by name or path; None where no configuration tells."""
        names = (one.get("base_model_name_or_path") for one in (self._common, *self._components.values()))
        return next(filter(None, names), None)


def _alpha(file: AdapterFile) -> float:
    try:
        return float(file.metadata["lora_alpha"])
    except ValueError as error:
        raise FileError(file.path, f"metadata lora_alpha is not a number: {error}") from error


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
