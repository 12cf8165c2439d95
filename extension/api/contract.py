"""Write what is made from the table of routes: `python -m extension.api.contract`.

The types of the tab, `javascript/api.d.ts`, and the tables in docs/api.md.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from typing_extensions import is_typeddict

from .routes import SECTIONS, Route, used_records
from .schema import Record, fields_of, is_record, with_inner

ROOT = Path(__file__).resolve().parents[2]
TYPES = ROOT / "javascript" / "api.d.ts"
DOCS = ROOT / "docs" / "api.md"
_BEGIN, _END = "<!-- routes: written by `python -m extension.api.contract` -->\n", "<!-- end of routes -->\n"
_WIDTH = 120  # characters of a line, beyond which the formatter of the tab breaks a union
_PLAIN = {str: "string", float: "number", int: "number", bool: "boolean", type(None): "null", Any: "unknown"}


def documents() -> dict[Path, str]:
    """Return the text that each file should have."""
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    return {TYPES: types_of_tab(), DOCS: f"{before}{_BEGIN}\n{tables()}\n{_END}{after}"}


def types_of_tab() -> str:
    """Return TypeScript that declares every record, and the answer to each path."""
    declared = "\n".join(_declared(record) for record in with_inner(*used_records()))
    routes = [route for *_, routes in SECTIONS for route in routes if "/" not in _name(route.answers)]
    by_path = {_path(route): _name(route.answers) for route in routes}
    quoted = {path: f'"{path}"' if "/" in path else path for path in by_path}
    answers = "".join(f"    {quoted[path]}: {name};\n" for path, name in by_path.items())
    return (
        "// Written by `python -m extension.api.contract`.\n\n"
        f"{declared}\n/** The answers as JSON, by path. */\nexport interface Answers {{\n{answers}}}\n"
    )


def _declared(record: Record) -> str:
    if not is_typeddict(record):
        return f"export type {record.__name__} = {_type(record.__supertype__)};\n"
    lines = [f"/** {record.__doc__} */", f"export interface {record.__name__} {{"]
    for name, (kind, said, required) in fields_of(record).items():
        if "description" in said:
            lines.append(f"    /** {said['description']} */")
        line = f"    {name}{'' if required else '?'}: {_type(kind)};"
        lines.append(line if len(line) <= _WIDTH else line.replace(": ", ": | ", 1).replace(" | ", "\n        | "))
    return "\n".join([*lines, "}\n"])


def _type(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if is_record(kind):
        return str(kind.__name__)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type, parts))
    if origin is list:
        inner = _type(parts[0])
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if origin is tuple:
        return f"[{', '.join(map(_type, parts))}]"
    if origin is dict:
        return f"{{[name: string]: {_type(parts[1])}}}"
    if origin is Literal:
        return " | ".join(f'"{part}"' for part in parts)
    return _PLAIN[kind]


def tables() -> str:
    """Return the table of the routes of each section, as Markdown."""
    head = "| route | effect | body | answer |\n|---|---|---|---|\n"
    return "\n".join(f"{title}:\n\n{head}" + "".join(map(_row, routes)) for title, _, routes in SECTIONS)


def _row(route: Route) -> str:
    query = f"?{'&'.join(f'{name}=' for name in route.query)}" if route.query else ""
    takes = "" if route.takes is None else f"`{_name(route.takes.kind)}`"
    return f"| `{route.method} {_path(route)}{query}` | {route.summary} | {takes} | `{_name(route.answers)}` |\n"


def _path(route: Route) -> str:
    return route.path.removeprefix("/")


def _name(kind: Record | str) -> str:
    return kind if isinstance(kind, str) else str(kind.__name__)


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
