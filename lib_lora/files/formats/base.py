"""What a key format is. No torch here: a format is a table about strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

FILE_WIDE = "*"
"""`ParsedKey.module` of a parameter that all layers of a file share."""
BUNDLED = "bundle_emb."
"""Begin of `ParsedKey.param` for a part of a bundled embedding."""


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """One key of a file, taken apart."""

    component: str | None
    """diffusers' component name; None where the spelling does not say, so every component is searched."""
    module: str
    """The layer, spelled as in the file: dotted, or flattened with `_` for `.`.

    Two kinds of key belong to no layer: `*` stands for a parameter that all layers share (`file_wide`), and what is
    `bundled` has the name of the embedding here.
    """
    param: str
    """Canonical parameter name, such as `lora_down.weight`, `alpha` or `bundle_emb.clip_l`.

    Kohya's and LyCORIS' name where they have the parameter, else that of the trainer that has.
    """
    flattened: bool
    adapter: str | None = None
    """PEFT's adapter name inside the key, such as `default`."""

    @property
    def file_wide(self) -> bool:
        """Whether the parameter is one that all layers of the file share."""
        return self.module == FILE_WIDE

    @property
    def bundled(self) -> bool:
        """Whether this is a part of a textual inversion embedding that came with the file."""
        return self.param.startswith(BUNDLED)


@dataclass(frozen=True, slots=True)
class Numbering:
    """The layers that a trainer means who numbers them instead of naming them, and the order in which it counts."""

    layers: Mapping[str, str]
    """Class of modules that are trained -> pattern of the layers below such modules, by diffusers' names.

    The classes are those that the header lists, as JSON, under the component's name; all where it lists none.
    """
    order: tuple[str, ...]
    """Every step of those names that is not a number, in the order in which the modules are registered."""

    def numbered(self, names: Iterable[str], classes: Iterable[str] | None) -> list[str]:
        """Those of `names` that are counted: the layer of number n is at n.

        Args:
            names: diffusers' names of a component's layers; others may be among them.
            classes: of modules, all of them in `layers`; None for all.
        """
        patterns = [self.layers[name] for name in (self.layers if classes is None else classes)]
        counted = [name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)]
        return sorted(counted, key=lambda name: [self._place(step) for step in name.split(".")])

    def _place(self, step: str) -> int:
        return int(step) if step.isdecimal() else self.order.index(step)


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """One spelling of adapter keys.

    Each pattern is matched against the whole key and has the group `param`, and may have `module` (a key without one
    is file-wide), `component` (looked up in `components`), `leaf` (appended to the module, through `leaves`), `rest`
    (appended to the parameter) and `adapter`.
    """

    name: str
    patterns: tuple[str, ...]
    example: str
    """A real key of this spelling."""
    components: Mapping[str, str | None] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    """Parameter as spelled -> canonical; what is not listed is canonical already."""
    leaves: Mapping[str, str] = field(default_factory=dict)
    flattened: bool = False
    alone: bool = True
    """Whether a file of nothing else is an adapter; False where a checkpoint has keys like these."""
    numberings: tuple[Numbering, ...] = ()
    """For a spelling whose modules are numbers: what these may mean. Where several do, the shapes have to tell."""
    embedding: str | None = None
    """What the header says under the name of a textual inversion embedding, where that name is all of its key."""
    before: tuple[str, ...] = ()

    def parse(self, key: str, said: str | None = None) -> ParsedKey | None:
        """Take `key` apart; None when it is not of this spelling.

        Args:
            key: of a tensor.
            said: what the header says under the same name.
        """
        if said is not None and said == self.embedding:
            return ParsedKey(None, key, f"{BUNDLED}string_to_param.*", self.flattened)
        for pattern in self.patterns:
            match = _compiled(pattern).fullmatch(key)
            if match is not None:
                return self._parsed(match.groupdict())
        return None

    def _parsed(self, groups: dict[str, str | None]) -> ParsedKey:
        module, param = groups.get("module") or FILE_WIDE, groups["param"] or ""
        leaf, rest, component = groups.get("leaf"), groups.get("rest"), groups.get("component")
        if leaf is not None:
            module = f"{module}.{self.leaves.get(leaf, leaf)}"
        if rest is not None:
            param = f"{param}.{rest}"
        return ParsedKey(
            component=None if component is None else self.components.get(component, component),
            module=module,
            param=self.params.get(param, param),
            flattened=self.flattened,
            adapter=groups.get("adapter"),
        )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A format's pattern: `re` looks its own up more slowly than it matches most keys."""
    return re.compile(pattern)
