"""What an architecture is. No torch here: a family is a table of names and of tell-tale shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alias:
    """Two names of one module, or of everything below it, within one component."""

    component: str
    native: str
    """Dotted path prefix in the other tree (ldm, open_clip, flattened transformers)."""
    diffusers: str
    """Dotted path prefix in the tree adapters are usually named after."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A tell-tale of a family: a pattern searched in a file's facts (see `facts`), and how much it says."""

    pattern: str
    weight: int = 3


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model family."""

    name: str
    title: str
    """For people, as in `Stable Diffusion XL`."""
    signs: tuple[Sign, ...]
    aliases: tuple[Alias, ...] = ()
    before: tuple[str, ...] = ()

    def score(self, text: str) -> int:
        """Weigh the facts, one per line; 0 means nothing speaks for this family."""
        return sum(sign.weight for sign in self.signs if re.search(sign.pattern, text, re.MULTILINE))


def fact(component: str | None, module: str, width: int | None) -> str:
    """One line about one layer: `unet:down_blocks_1_…_attn2_to_k:768`; `?` where something is not known."""
    return f"{component or '?'}:{module.replace('.', '_')}:{'?' if width is None else width}"


def recognise(architectures: Iterable[Architecture], facts: Iterable[str]) -> Architecture | None:
    """The family most facts speak for; the earlier one when two are level; None when nothing speaks."""
    text = "\n".join(facts)
    best: Architecture | None = None
    most = 0
    for architecture in architectures:
        score = architecture.score(text)
        if score > most:
            best, most = architecture, score
    return best


class AliasTable:
    """The other names of a path, by every known prefix of it, in both directions."""

    def __init__(self, aliases: Iterable[Alias]) -> None:
        self._others: dict[tuple[str, str], list[str]] = {}
        for alias in aliases:
            for one, other in ((alias.native, alias.diffusers), (alias.diffusers, alias.native)):
                others = self._others.setdefault((alias.component, one), [])
                if other not in others:
                    others.append(other)

    def names(self, component: str, path: str) -> Iterator[str]:
        """Yield `path` and every other spelling of it, each once, the path's own first."""
        seen = {path}
        queue = [path]
        while queue:
            current = queue.pop(0)
            yield current
            for other in self._renamed(component, current):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)

    def _renamed(self, component: str, path: str) -> Iterator[str]:
        prefix = path
        while prefix:
            for other in self._others.get((component, prefix), ()):
                yield other + path[len(prefix) :]
            prefix = prefix.rpartition(".")[0]
