"""What a key format is. No torch here: a format is a table about strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """One key of a file, taken apart."""

    component: str | None
    """diffusers' component name; None where the spelling does not say, so every component is searched."""
    module: str
    """The layer, spelled as in the file: dotted, or flattened with `_` for `.`."""
    param: str
    """Canonical (kohya / LyCORIS) parameter name, such as `lora_down.weight` or `alpha`."""
    flattened: bool
    adapter: str | None = None
    """PEFT's adapter name inside the key, such as `default`."""


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """One spelling of adapter keys.

    Each pattern is matched against the whole key and has the groups `module` and `param`, and may have
    `component` (looked up in `components`), `leaf` (appended to the module, through `leaves`) and `adapter`.
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
    before: tuple[str, ...] = ()

    def parse(self, key: str) -> ParsedKey | None:
        """Take `key` apart; None when it is not of this spelling."""
        for pattern in self.patterns:
            match = re.fullmatch(pattern, key)
            if match is not None:
                return self._parsed(match.groupdict())
        return None

    def _parsed(self, groups: dict[str, str | None]) -> ParsedKey:
        module, param = groups["module"] or "", groups["param"] or ""
        leaf, component = groups.get("leaf"), groups.get("component")
        if leaf is not None:
            module = f"{module}.{self.leaves.get(leaf, leaf)}"
        return ParsedKey(
            component=None if component is None else self.components.get(component, component),
            module=module,
            param=self.params.get(param, param),
            flattened=self.flattened,
            adapter=groups.get("adapter"),
        )
