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

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ...errors import FileError, check_type
from ..components import DENOISER, role
from ..reading import read_object
from ._header import BY_LAYER, TrainedLayer, arguments, by_layer, names_of_layer, parsed, plain_values, stale
from ._peft_patterns import Table
from .base import KeyFormat

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
        said: the arguments of the network in the header: rank and alpha by layer, rank and alpha of convolutions.

    Raises:
        ValueError: patterns of names take too long to match; from all that asks for one module.
    """

    def __init__(self, values: Mapping[str, object], notes: Sequence[str], said: Mapping[str, object]) -> None:
        self.notes = tuple(notes)
        found = {name: by_layer(said, keys) for name, keys in BY_LAYER.items()}
        self._by_layer = {name: table for name, table in found.items() if table is not None}
        convolutions = {"r": "conv_dim", "lora_alpha": "conv_alpha"}
        self._of_convolutions = {name: said[key] for name, key in convolutions.items() if key in said}
        self.empty = not values and not self._by_layer and not self._of_convolutions
        parts: dict[str, dict[str, object]] = {"": {}}
        for key, value in values.items():
            component, _, name = key.rpartition(".")
            parts.setdefault(component, {})[name] = value
        self._values = {component: {**parts[""], **own} for component, own in parts.items()}
        """Of each component; the empty name stands for all others."""
        self._tables = {component: _tables(own) for component, own in self._values.items()}

    @classmethod
    def of(
        cls, path: Path, metadata: Mapping[str, str], layers: Sequence[TrainedLayer], beside: Sequence[KeyFormat]
    ) -> PeftConfig:
        """Read the configuration in a file's header, else its own `adapter_config.json`, or raise FileError.

        A configuration must agree with the `layers`. `beside` has the spellings of the file's keys whose trainers write
        `adapter_config.json`.
        """
        values, said = _of_header(path, metadata), arguments(metadata)
        plain, notes = plain_values(metadata, said, layers)
        has_alpha = any(key.endswith("lora_alpha") for key in plain)
        if not has_alpha:
            said.pop("conv_alpha", None)  # folded into the tensors, as the other alpha
        if not values and not has_alpha and beside:
            values, of_beside = _own_beside(path, layers, beside)
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
        name = self._name(component)
        if module is None or self.empty:
            return MappingProxyType(self._values[name])
        own = dict(self._of_convolutions) if spatial else {}
        own |= {key: value for key, table in self._tables[name].items() if (value := table.value(module)) is not None}
        for key, table in self._by_layer.items():
            found = (table.value(one) for one in names_of_layer(component, module))
            if (number := next((one for one in found if one is not None), None)) is not None:
                own[key] = number
        return MappingProxyType(ChainMap(own, self._values[name]))  # no copy: each layer has one

    def _name(self, component: str | None) -> str:
        """Return whose values a component has; a denoiser's name may be a role, or missing, in the file's keys."""
        if component in self._values:
            return component or ""
        if component is None or role(component) == DENOISER:
            alike = [name for name in self._values if role(name) == DENOISER]
            if len(alike) == 1 and (component is not None or len(self._values) == 2):
                return alike[0]
        return ""

    @property
    def base_model(self) -> object:
        """Return the model it was trained on, by name or path; None where no configuration tells."""
        return next(filter(None, [own.get("base_model_name_or_path") for own in self._values.values()]), None)


def _tables(values: Mapping[str, object]) -> dict[str, Table]:
    """Return what may differ from layer to layer, by the name of its value for all layers."""
    found = {name: values.get(table) for name, table in _PATTERNS.items() if name in values}
    return {name: Table(one.items()) for name, one in found.items() if isinstance(one, dict) and one}


def _of_header(path: Path, metadata: Mapping[str, str]) -> dict[str, object]:
    """Return the configuration that the header has as JSON; empty without one.

    Raises:
        FileError: what only can be a configuration cannot be read.
    """
    for key in (PEFT_HEADER, LYCORIS_HEADER, ONETRAINER_HEADER, *_OTHER_HEADERS):
        values = parsed(metadata[key]) if key in metadata else None
        if isinstance(values, dict):
            if key == ONETRAINER_HEADER:
                return {ours: values[own] for own, ours in _ONETRAINER.items() if own in values}
            return values
        if key in metadata and key not in _OTHER_HEADERS:
            raise FileError(path, f"metadata {key} is not a JSON object")
    return {}


def _without_scale(values: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration without what it says of alpha and rank."""
    scale = ("r", "lora_alpha", "alpha", "rank_pattern", "alpha_pattern")
    return {key: value for key, value in values.items() if key.rpartition(".")[2] not in scale}


def _own_beside(
    path: Path, layers: Sequence[TrainedLayer], formats: Iterable[KeyFormat]
) -> tuple[dict[str, object], list[str]]:
    """Return the file's own `adapter_config.json` by PEFT's names, and why one is not used.

    In a folder of LoRA it is a neighbour's: it belongs to the file that its trainer wrote, by its name, and to none
    whose ranks or layers it does not have.
    """
    folder, name, config = path.parent, path.name.partition(".")[0].lower(), path.parent / "adapter_config.json"
    is_second = name == _OWN_NAMES[1] and any(folder.glob(f"{_OWN_NAMES[0]}.*"))
    stems = tuple(stem for one in formats for stem in one.stems)
    if (name not in _OWN_NAMES or is_second) and not (stems and name.endswith(stems)):
        there = any(layer.lacks_alpha for layer in layers) and config.exists()
        return {}, [f"{_BESIDE}: it belongs to a file called adapter_model.safetensors"] if there else []
    if not config.exists():
        return {}, []
    try:
        values = read_object(config)
    except FileError as error:
        return {}, [f"{_BESIDE}: {error.reason}"]
    for one in formats:
        values |= {own: found for said, own in one.settings.items() if (found := _setting(values, said)) is not None}
    why = stale(values, layers)
    return ({}, [f"{_BESIDE}, as {why}"]) if why else (values, [])


def _setting(values: object, name: str) -> object:
    for step in name.split("."):
        values = values.get(step) if isinstance(values, dict) else None
    return values


def base_model(metadata: Mapping[str, str], configured: object = None) -> str | None:
    """Return the name and version of the model a file was made from, for people; None where the header says nothing.

    Args:
        metadata: the header's.
        configured: the model's name or path in the trainer's configuration.
    """
    check_type(metadata, Mapping, "metadata", "the metadata of a header, as AdapterFile.open(path).metadata")
    texts = [_line(one) for one in (*map(metadata.get, _NAMES), configured) if isinstance(one, str)]
    name = next(filter(None, texts), "")
    parts = re.split(r"[\\/]+", name.rstrip("\\/"))
    if "\\" in name or name.startswith("/") or len(parts) > 2:  # else a name as on a hub, `owner/name`
        name = parts[-1]
    # ModelSpec and OneTrainer append something: `stable-diffusion-xl-v1-base/lora`, `sdxl_`
    versions = [_line(metadata[key]).partition("/")[0].rstrip("_") for key in _VERSIONS if key in metadata]
    version = next(filter(None, versions), "")
    return (f"{name} ({version})" if name and version else name or version) or None


def _line(text: str) -> str:
    """Return one line of printable text: a file may say anything."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return "" if line in _NOTHING else line[:_LONGEST]
