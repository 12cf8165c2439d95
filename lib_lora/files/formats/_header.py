"""Alpha and rank as trainers write them into the header, without JSON or as arguments of the network.

| who | what |
|---|---|
| LightX2V (MiniMax-H3 Turbo) | `alpha`, `rank` |
| alibaba-pai (MiniMax-H3 Acc), LTX scripts | `lora_alpha`, `lora_rank` |
| FLUX.2 and SDXL scripts on diffusers | `network_alpha`, `network_dim` |
| sd-scripts, musubi-tuner and their relatives | `ss_network_alpha`, `ss_network_dim`; rs-LoRA as `ss_rs_lora` |
| scripts that write diffusers' configuration flat | `transformer.lora_alpha`, `transformer.r` |
| LyCORIS | `conv_dim`, `conv_alpha`, `rs_lora` in `ss_network_args` |
| sd-scripts for FLUX, LyCORIS' relatives | `network_reg_dims`, `network_reg_alphas`: by patterns of layers' names |

Sources: huggingface/diffusers loaders/lora_pipeline.py, `MiniMaxH3LoraLoaderMixin`; sgl-project/sglang, "Infer LoRA
alpha from safetensors metadata"; kohya-ss/sd-scripts train_network.py and networks/lora_flux.py, `parse_kv_pairs`;
kohya-ss/musubi-tuner src/musubi_tuner/convert_lora.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ._peft_patterns import Table

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "lora_alpha": ("lora_alpha", "network_alpha", "alpha", "ss_network_alpha", "ss_lora_alpha"),
    "r": ("r", "lora_rank", "lora_r", "rank", "network_dim", "lora_dim", "ss_network_dim", "ss_lora_rank"),
    "use_rslora": ("use_rslora", "rs_lora", "rslora", "ss_rs_lora", "ss_use_rslora"),
}
"""PEFT's name -> every spelling of it, the one that counts first in front."""
_COMPONENT = re.compile(r"(?:(unet|prior|transformer(_[12]|_ref)?|text_encoder(_[234])?)\.)?")
_TRUE = frozenset({"true", "1", "yes", "on"})
_EMPTY = frozenset({"", "none", "null"})
_ARGUMENTS = ("ss_network_args", "network_args", "lycoris_config")
BY_LAYER = {
    "r": ("lora_reg_dims", "network_reg_dims", "reg_dims"),
    "lora_alpha": ("lora_reg_alphas", "network_reg_alphas", "reg_alphas"),
}
_PREFIXES = ("lora_unet", "lora_transformer", "lycoris")
_FOLDED = (
    "the alpha in its header is not used: its keys were renamed after the training by musubi-tuner, which multiplies "
    "the tensors by the scale; if they were not, give its alpha"
)


class TrainedLayer(NamedTuple):
    """A layer that a configuration must agree with."""

    module: str
    kind: str
    """The algorithm's name."""
    rank: int | None
    """None where the tensors do not tell."""
    flattened: bool
    lacks_alpha: bool
    """Whether its algorithm has a scale, and its tensors do not tell it."""


def plain_values(
    metadata: Mapping[str, str], network_arguments: Mapping[str, object], layers: Sequence[TrainedLayer]
) -> tuple[dict[str, object], list[str]]:
    """Return what the header says of alpha and rank by PEFT's names, and why some of it is not used.

    For `network_arguments` see `arguments`.
    """
    found: dict[str, object] = {}
    notes: list[str] = []
    for component in sorted({match[0] for key in metadata if (match := _COMPONENT.match(key))}):
        own: dict[str, object] = {}
        for name, spellings in _SPELLINGS.items():
            said = {key: metadata[key] for one in spellings if (key := component + one) in metadata}
            values = {key: value for key, text in said.items() if (value := _value(name, text)) is not None}
            bad = [key for key in said.keys() - values.keys() if said[key].strip().lower() not in _EMPTY]
            if name == "lora_alpha" and bad:
                notes.append(f"{min(bad)} in its header is no number, {said[min(bad)][:20]!r}")
            if len(set(values.values())) > 1:
                notes.append(f"its header says {', '.join(f'{key} {value:g}' for key, value in values.items())}")
            if values:
                own[name] = next(iter(values.values()))
        why, has_alpha = stale(own, layers), "lora_alpha" in own
        if why and has_alpha:
            notes.append(f"the scale in its header is not used, as {why}")
        elif has_alpha and _is_folded(metadata, component, layers):
            notes.append(_FOLDED)
        elif not why:
            found |= {component + name: value for name, value in own.items() if has_alpha or name == "r"}
    by_strategy = metadata.get("ss_scaling_strategy") == "alpha_over_sqrt_rank" and found
    if by_strategy or (str(network_arguments.get("rs_lora")).lower() in _TRUE and "lora_alpha" in found):
        found["use_rslora"] = True
    return found, notes if True in {layer.lacks_alpha for layer in layers} else []


def _value(name: str, text: str) -> float | bool | None:
    if name == "use_rslora":
        return text.strip().lower() in _TRUE
    number = _number(text)  # what is not finite is refused where it is used
    return number if name != "r" or (isinstance(number, int) and number > 0) else None


def _is_folded(metadata: Mapping[str, str], component: str, layers: Sequence[TrainedLayer]) -> bool:
    """Return whether kohya's trainer wrote the header, whose files have alpha as tensors, and the keys are others'."""
    by_kohya = metadata.get("ss_network_module", "").startswith("networks.")
    own = any(f"{component}{name}" in metadata for name in _SPELLINGS["lora_alpha"][:3])
    return by_kohya and not own and {layer.flattened for layer in layers} == {False}


def stale(values: Mapping[str, object], layers: Sequence[TrainedLayer]) -> str:
    """Return why a configuration is another file's, or of another state of this one; empty where it may be its own."""
    kinds = {layer.kind for layer in layers}
    told = values.get("peft_type")
    if isinstance(told, str) and kinds and not _is_of(told.lower(), kinds):
        return f"it is for {told}, and the file has {', '.join(sorted(kinds))}"
    ranks = {layer.rank for layer in layers if layer.rank is not None}
    said = _ranks(values)
    is_plain = not values.get("target_parameters")  # a rank of experts is one of each
    if is_plain and ranks and said and not ranks & said and told not in ("ADALORA", "LOKR"):
        return f"it is for rank {_either(said)}, and the file has {_either(ranks)}"
    targets = values.get("target_modules")
    if isinstance(targets, list) and targets and layers and is_plain:
        names = tuple([str(one) for one in targets])
        if not any(layer.module.replace(".", "_").endswith(one.replace(".", "_")) for layer in layers for one in names):
            return f"it is for other layers, such as {names[0][:40]}"
    return ""


def _is_of(told: str, kinds: set[str]) -> bool:
    """Return whether a file of these algorithms may be of a PEFT type."""
    if told == "lora":
        return not kinds <= {"loha", "lokr", "peft_oft", "peft_boft", "peft_ia3"}
    return told in kinds if told in ("loha", "lokr") else kinds != {"lora"} or told in ("adalora", "xlora")


def _ranks(values: Mapping[str, object]) -> set[int]:
    """Return every rank that a configuration speaks of."""
    found: list[object] = []
    for key, value in values.items():
        name = key.rpartition(".")[2]
        if name == "r":
            found.append(value)
        elif name == "rank_pattern" and isinstance(value, dict):
            found += value.values()
    return {one for one in found if type(one) is int}


def _either(ranks: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(ranks)[:3]))


def arguments(metadata: Mapping[str, str]) -> dict[str, object]:
    """Return the arguments of the network: kohya's `ss_network_args` and the like, and what is by layer beside them."""
    found: dict[str, object] = {key: metadata[key] for keys in BY_LAYER.values() for key in keys if key in metadata}
    for key in _ARGUMENTS:
        if key in metadata and isinstance(said := parsed(metadata[key]), dict):
            found |= said
    return {name: number if (number := _number(value)) is not None else value for name, value in found.items()}


def parsed(text: str) -> object:
    """Return what a text is as JSON; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if number is None else int(number) if math.isfinite(number) and number == int(number) else number


def names_of_layer(component: str | None, module: str) -> tuple[str, ...]:
    """Return the names that kohya's trainers and LyCORIS give to a layer, its own path first."""
    prefixes = _PREFIXES
    if component is not None and component.startswith("text_encoder"):
        number = component[-1]
        prefixes = ("lora_te", "lora_te1", "lycoris") if number == "r" else (f"lora_te{number}", "lycoris", "lora_te")
    flat = module.replace(".", "_")
    return (module, *[f"{prefix}_{flat}" for prefix in prefixes])


def by_layer(said: Mapping[str, object], keys: Sequence[str]) -> Table | None:
    """Return numbers by patterns of layers' names, under one of the keys in the arguments of the network, or None."""
    value = next((said[key] for key in keys if said.get(key)), None)
    if isinstance(value, str):  # JSON, else as in `network_args`: `pattern=4,pattern=8`
        loaded = parsed(value)
        pairs = (one.rpartition("=") for one in value.split(","))
        value = loaded if isinstance(loaded, dict) else {key.strip(): number for key, _, number in pairs if key}
    if not isinstance(value, dict) or not value:
        return None
    numbers = {key: one if isinstance(one, int | float) else _number(one) for key, one in value.items()}
    return Table([(f"^{key.removeprefix('^')}", one) for key, one in numbers.items() if one is not None])
