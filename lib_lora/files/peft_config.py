"""What trainers keep outside the tensors: alpha, and choices that change what the tensors mean.

PEFT writes `adapter_config.json` beside the file. diffusers packs one such configuration per component into the
header's `lora_adapter_metadata`, as `unet.lora_alpha`, `text_encoder.r` and so on. SimpleTuner puts the arguments of
LyCORIS into the header's `lycoris_config`, OneTrainer all its settings into `ot_config`.

Sources: huggingface/peft tuners/*/config.py and `utils/other.py:get_pattern_key`; huggingface/diffusers
loaders/lora_base.py; bghira/SimpleTuner helpers/training/save_hooks.py; Nerogar/OneTrainer
modules/modelSaver/mixin/DtypeModelSaverMixin.py and modules/util/config/TrainConfig.py.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import FileError, NumberError
from ..tensors import LARGEST
from .file import AdapterFile, adapter_config
from .patterns import Table
from .reading import Alpha

PEFT_HEADER = "lora_adapter_metadata"
LYCORIS_HEADER = "lycoris_config"
ONETRAINER_HEADER = "ot_config"

# The rest of OneTrainer's settings says nothing that the tensors do not say, or says it of the training: its
# `lora_alpha` is already in the tensors, as `alpha` or folded into `lora_B`.
_ONETRAINER = {
    "oft_block_size": "oft_block_size",
    "oft_block_share": "block_share",
    "base_model_name": "base_model_name_or_path",
}
# what may differ from module to module, and the name of the table that says so
_PATTERNS = {"lora_alpha": "alpha_pattern", "alpha": "alpha_pattern", "r": "rank_pattern"}


class PeftConfig:
    """The configurations that belong to one file.

    Args:
        values: one configuration, or several with `component.` before each name.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._common: dict[str, object] = {}
        self._components: dict[str, dict[str, object]] = {}
        self._tables: dict[int, dict[str, Table]] = {}
        for key, value in values.items():
            component, dot, name = key.rpartition(".")
            part = self._components.setdefault(component, {}) if dot else self._common
            part[name] = value

    @classmethod
    def of(cls, file: AdapterFile, *, beside: bool = True) -> PeftConfig:
        """What the header says, else `adapter_config.json` beside the file, else an empty one.

        Args:
            file: an adapter file.
            beside: whether a configuration beside the file can be meant for it.

        Raises:
            FileError: one is there but cannot be read.
        """
        for key, names in ((PEFT_HEADER, None), (LYCORIS_HEADER, None), (ONETRAINER_HEADER, _ONETRAINER)):
            values = _header(file, key)
            if values is not None and names is not None:
                values = {ours: values[own] for own, ours in names.items() if own in values}
            if values is not None:
                return cls(values)
        return cls((adapter_config(file.path) if beside else None) or {})

    def values(self, component: str | None, module: str | None = None) -> Mapping[str, object]:
        """The configuration of one component, as its trainer wrote it and without the component's name.

        Args:
            component: diffusers' name of the component; None gives what is said of no component in particular, as does
                one of which the file does not speak.
            module: a dotted path. With it, `r`, `alpha` and `lora_alpha` are those of this module.

        Raises:
            EffortError: patterns of names take too long to match.
        """
        values = self._common if component is None else self._components.get(component, self._common)
        if module is None or not values:
            return MappingProxyType(values)
        tables = self._tables.get(id(values))
        if tables is None:  # the configurations stay as long as this object does
            tables = self._tables[id(values)] = _tables(values)
        special = {name: table.value(module) for name, table in tables.items()}
        own = {name: value for name, value in special.items() if value is not None}
        return MappingProxyType(ChainMap(own, values))  # no copy: each layer has one, and a file may say much

    @property
    def base_model(self) -> object:
        """The model it was trained on, by name or path; None where no configuration tells."""
        every = (self._common, *self._components.values())
        return next((one["base_model_name_or_path"] for one in every if one.get("base_model_name_or_path")), None)

    def alpha(self, component: str | None, module: str) -> Alpha:
        """Return the alpha of one layer; `Alpha(None)` where no configuration speaks of it.

        Raises:
            NumberError: it is not finite.
        """
        values = self.values(component, module)
        value = values.get("lora_alpha", values.get("alpha"))  # the second in PEFT's LoHa and LoKr
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Alpha()
        if not -LARGEST <= value <= LARGEST:  # nan is neither, and an int may be too large for a float
            raise NumberError(f"want a finite number as alpha, got {str(value)[:20]}")
        return Alpha(float(value), rank_stabilized=values.get("use_rslora") is True)


def _header(file: AdapterFile, key: str) -> dict[str, object] | None:
    text = file.metadata.get(key)
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise FileError(file.path, f"metadata {key} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise FileError(file.path, f"metadata {key} is no JSON object")
    return values


def _tables(values: Mapping[str, object]) -> dict[str, Table]:
    """What may differ from module to module -> its patterns, of one configuration."""
    found = {name: values.get(table) for name, table in _PATTERNS.items() if name in values}
    return {name: Table(table.items()) for name, table in found.items() if isinstance(table, dict) and table}
