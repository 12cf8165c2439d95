"""The tab's modules as one script: a page asks for one file in place of dozens, and nothing has to be built before."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

ENTRY = "main.js"
_IMPORT = re.compile(r'^import (\{[^}]*\}|\* as \w+) from "([^"]+)";$', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)
_LIST = re.compile(r'\bexport ?\{([^}]*)\}(?: from "([^"]+)")?;')


class BundleError(ValueError):
    """The modules cannot become one script; the message names the module."""


def bundle(modules: Mapping[str, str]) -> str:
    """Return one module that exports what the module `ENTRY` exports; `modules` has their texts by path.

    Each module becomes a function that is called once, behind those it imports.

    Raises:
        BundleError: modules import each other in a circle, or one imports or exports in a way that is not read.
    """
    parts = [_function(path, modules[path]) for path in _ordered(modules)]
    names = sorted(_exports(ENTRY, modules[ENTRY]))
    return "\n".join(["const modules = {};", *parts, f'export const {{{", ".join(names)}}} = modules["{ENTRY}"];', ""])


def _ordered(modules: Mapping[str, str]) -> list[str]:
    """Return the paths of `ENTRY` and all that it needs, each behind those it imports."""
    done: list[str] = []
    begun: set[str] = set()

    def visit(path: str) -> None:
        if path in done:
            return
        if path in begun:
            raise BundleError(f"{path} imports itself, through other modules")
        if path not in modules:
            raise BundleError(f"there is no module {path}")
        begun.add(path)
        for needed in _imported(path, modules[path]):
            visit(needed)
        done.append(path)

    visit(ENTRY)
    return done


def _imported(path: str, text: str) -> Iterator[str]:
    for match in _IMPORT.finditer(text):
        yield _path(path, match[2])
    for match in _LIST.finditer(text):
        if match[2]:
            yield _path(path, match[2])


def _path(importer: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), address))


def _exports(path: str, text: str) -> dict[str, str]:
    """Return what a module exports: name -> the expression that has its value."""
    names = {match[1]: match[1] for match in _EXPORTED.finditer(text)}
    for match in _LIST.finditer(text):
        source = f'modules["{_path(path, match[2])}"].' if match[2] else ""
        names |= {outer: source + inner for inner, outer in _pairs(match[1])}
    return names


def _pairs(listed: str) -> Iterator[tuple[str, str]]:
    """Yield the names of `a, b as c`: (a, a), (b, c)."""
    for item in filter(None, map(str.strip, listed.split(","))):
        before, _, after = item.partition(" as ")
        yield before, after or before


def _function(path: str, text: str) -> str:
    def read(match: re.Match[str]) -> str:
        source = f'modules["{_path(path, match[2])}"]'
        if match[1].startswith("*"):
            return f"const {match[1].removeprefix('* as ')} = {source};"
        names = ", ".join(f"{outer}: {inner}" for outer, inner in _pairs(match[1].strip("{}")))
        return f"const {{{names}}} = {source};"

    body = _EXPORTED.sub("", _LIST.sub("", _IMPORT.sub(read, text)))
    if stray := re.search(r"^(?:import|export)\b.*", body, re.MULTILINE):
        raise BundleError(f"{path}: {stray[0]:.80} is not read")
    names = ", ".join(f"{outer}: {inner}" for outer, inner in sorted(_exports(path, text).items()))
    return f'modules["{path}"] = (() => {{\n{body}\nreturn {{{names}}};\n}})();'
