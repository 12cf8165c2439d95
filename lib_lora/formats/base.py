"""What a key format is. No torch here: a format is a table about strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    before: tuple[str, ...] = ()

    def parse(self, key: str) -> ParsedKey | None:
        """Take `key` apart; None when it is not of this spelling."""
        for pattern in self.patterns:
            match = re.fullmatch(pattern, key)
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
