"""Key formats: tables about strings, free of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

FILE_WIDE = "*"
"""`ParsedKey.module` of a parameter that all layers of a file share."""
BUNDLED = "bundle_emb."
"""Begin of `ParsedKey.param` for a part of a bundled embedding."""
ADAPTER_PARAMS = "<params>"
"""In a pattern: any parameter of an adapter kind, unless the kind has one named `weight`, as checkpoints do."""
LAYER_PARAMS = "<layers>"
"""In a pattern: the part before the dot of a parameter that begins with its kind's name, `gralora_A_general.weight`."""
PARTS = "<parts>"
"""In a pattern: the part behind that dot."""
SHARED_PARAMS = "<shared>"
"""In a pattern: any parameter of an adapter kind that all layers of a file share."""
CONFIG_SCALE = "<scale>"
"""In `KeyFormat.settings`: what the product of the factors is multiplied by, where a trainer has no alpha."""

# factors of a LoRA that are tensors and not layers
_BARE = {"lora_A": "lora_down.weight", "lora_B": "lora_up.weight"}
_BARE |= {f"lora_{side}": f"lora_{side}.weight" for side in ("down", "up", "mid")}
# modules that torch's FSDP, checkpointing, compiler and data parallel, and DeepSpeed, put around a model or a layer
_WRAPPERS = re.compile(
    r"(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)[._]|(?<![^.])module\.(?=(?!lora_)\w+\.)"
)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """One key of a file, taken apart."""

    component: str | None
    """diffusers' component name; None where the spelling does not say, so every component is searched."""
    module: str
    """The layer, spelled as in the file: dotted, or flattened with `_` for `.`.

    `FILE_WIDE` stands for all layers; a part of a bundled embedding has the name of the embedding here.
    """
    param: str
    """Canonical parameter name, such as `lora_down.weight`, `alpha` or `bundle_emb.clip_l`.

    Kohya's and LyCORIS' name where they have the parameter, else the name of the trainer that has it.
    """
    flattened: bool
    adapter: str | None = None
    """PEFT's adapter name inside the key, such as `default`."""
    untrained: bool = False
    """Whether it is of a layer as it was before the training, which the trainer saves beside the trained one."""


class Layer(Protocol):
    """A layer of a model, as far as a format looks at it."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> str: ...


class NumberingError(Exception):
    """The numbers that a file has for layers mean nothing in a model: a reason without names, and what does not fit."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class Layers(Protocol):
    """The layers of a component, as far as a format looks at them: a `naming.index.LayerIndex`."""

    component: str
    dotted: Mapping[str, Any]
    """By every name that they have."""

    def find(self, name: str) -> Layer | None: ...


NamesOf: TypeAlias = Callable[
    [Layers, Mapping[str, tuple[int, ...] | None], str | None, Mapping[str, object]], Mapping[str, str | NumberingError]
]
"""Gives a name of the model to each layer of a file whose keys have numbers, or do not name all layers.

A NumberingError in place of a name says what is wrong with that layer alone. It is given the model's layers; the weight
that each layer's parameters were made for, None where they do not tell; what the header says under the name of the
component; and the trainer's configuration. It raises NumberingError where the numbers mean nothing in the model.
"""


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """One spelling of adapter keys.

    Each pattern is matched against the whole key and has the group `param`, and may have `module` (a key without one
    is file-wide), `component` (looked up in `components`), `leaf` (appended to the module, through `leaves`), `rest`
    (appended to the parameter), `adapter` and `untrained`.
    """

    name: str
    patterns: tuple[str, ...]
    example: str
    """A real key of this spelling."""
    components: Mapping[str, str | None] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    """Parameter as spelled -> canonical; any other is canonical already."""
    leaves: Mapping[str, str] = field(default_factory=dict)
    flattened: bool = False
    alone: bool = True
    """Whether a file of nothing else is an adapter; False where a checkpoint has keys like these."""
    names_of: NamesOf | None = None
    """Gives the layers names, where the keys of a file do not."""
    configured: bool = False
    """Whether its trainer writes `adapter_config.json`."""
    stems: tuple[str, ...] = ()
    """How the names of files end that this configuration belongs to, beside the names of PEFT's and diffusers'."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Its settings, with dots between levels -> PEFT's names of them, or `CONFIG_SCALE`."""
    transposed: frozenset[str] = frozenset()
    """Canonical parameters that it saves with rows and columns exchanged, as MLX does."""
    last: bool = False
    """Whether it is tried after all formats that do not say so: its patterns take keys of other formats, too."""
    embedding: str | None = None
    """What the header says under the name of a textual inversion embedding, where that name is all of its key."""
    before: tuple[str, ...] = ()

    def with_params(self, params: Mapping[str, Iterable[str]]) -> KeyFormat:
        """Return the format with these parameters in the places of `ADAPTER_PARAMS`, `SHARED_PARAMS` and the like."""
        patterns = self.patterns
        for place, names in params.items():
            either = "|".join(map(re.escape, sorted(names)))
            patterns = tuple([one.replace(place, either) for one in patterns])
        return replace(self, patterns=patterns)


def parse_keys(
    formats: Collection[KeyFormat], keys: Iterable[str], said: Mapping[str, str]
) -> list[tuple[str, ParsedKey | None]]:
    """Return for each key the name of the first format that understands it, and its parts; an empty name if none does.

    Args:
        formats: in the order in which they are tried.
        keys: of a file.
        said: what the header says under the same names.
    """
    embeddings = {one.embedding: one for one in formats if one.embedding is not None}
    patterns = [(one, re.compile(pattern)) for one in formats for pattern in one.patterns]
    found = list[tuple[str, ParsedKey | None]]()
    for key in keys:  # plain loops without calls, as a file has thousands of keys
        if (bundled := embeddings.get(said.get(key, ""))) is not None:
            found.append((bundled.name, ParsedKey(None, key, f"{BUNDLED}string_to_param.*", bundled.flattened)))
            continue
        is_wrapped = "_wrapped_module" in key or "_orig_mod" in key or "module." in key
        own = _WRAPPERS.sub("", key) if is_wrapped else key
        for spelling, pattern in patterns:
            if (match := pattern.fullmatch(own)) is not None:
                one = spelling
                break
        else:
            found.append(("", None))
            continue
        groups = match.groupdict()
        module, param, component = groups.get("module") or FILE_WIDE, groups["param"] or "", groups.get("component")
        if (leaf := groups.get("leaf")) is not None:
            module = f"{module}.{one.leaves.get(leaf, leaf)}"
        if (rest := groups.get("rest")) is not None:
            param = f"{param}.{rest}"
        component = None if component is None else one.components.get(component, component)
        param, untrained = one.params.get(param) or _BARE.get(param, param), groups.get("untrained") is not None
        parsed = ParsedKey(component, module, param, one.flattened, groups.get("adapter"), untrained)
        found.append((one.name, parsed))
    return found
