"""Records as JSON Schema, and the check of a body against its record."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NewType, TypeAlias, Union, get_args, get_origin

from fastapi import HTTPException
from typing_extensions import NotRequired, is_typeddict

from .answers import UNPROCESSABLE

Record: TypeAlias = Any
"""A class of `records.py`, or a NewType there."""
Schema: TypeAlias = Mapping[str, Any]

_UNIONS = (Union, types.UnionType)
_NULL = type(None)
_PLAIN = {str: "string", float: "number", int: "integer", bool: "boolean", _NULL: "null"}
_WORDS = {str: "text", float: "a number", int: "a whole number", bool: "true or false", _NULL: "null"}
_LISTS = {str: "texts", float: "numbers", int: "whole numbers"}


def is_record(kind: Record) -> bool:
    """Tell whether a type has a name of its own in the documents."""
    return is_typeddict(kind) or isinstance(kind, NewType)


def fields_of(record: Record) -> dict[str, tuple[Any, Mapping[str, Any], bool]]:
    """Return the type of each field, what is said of it as JSON Schema says it, and whether it must be there."""
    return {name: (*_bare(kind), name in record.__required_keys__) for name, kind in record.__annotations__.items()}


def _bare(kind: Any) -> tuple[Any, Mapping[str, Any]]:
    if get_origin(kind) is NotRequired:
        return _bare(get_args(kind)[0])
    if get_origin(kind) is Annotated:
        bare, said = get_args(kind)
        return bare, {"description": said} if isinstance(said, str) else said
    return kind, {}


@lru_cache(maxsize=1)
def components(*records: Record) -> Mapping[str, Schema]:
    """Return the JSON Schema of these records and of the ones within them, by name."""
    return {record.__name__: _named(record) for record in with_inner(*records)}


def with_inner(*records: Record) -> list[Record]:
    """Return the records and the ones within them, each once, the inner ones first."""
    found: dict[Record, None] = {}
    for record in records:
        if is_typeddict(record):
            inner = [kind for field, *_ in fields_of(record).values() for kind in _records_in(field)]
            found.update(dict.fromkeys(with_inner(*inner)))
        found[record] = None
    return list(found)


def _records_in(kind: Any) -> Iterator[Record]:
    if is_record(kind):
        yield kind
    for part in get_args(kind):
        yield from _records_in(part)


def _named(record: Record) -> Schema:
    if not is_typeddict(record):
        return _schema(record.__supertype__)
    fields = fields_of(record)
    return {
        "type": "object",
        "description": record.__doc__,
        "properties": {name: {**_schema(kind), **said} for name, (kind, said, _) in fields.items()},
        "required": [name for name, (*_, required) in fields.items() if required],
        "additionalProperties": False,
    }


def _schema(kind: Any) -> Schema:
    origin, parts = get_origin(kind), get_args(kind)
    if is_record(kind):
        return reference(kind)
    if origin in _UNIONS:
        return {"anyOf": [_schema(part) for part in parts]}
    if origin is list:
        return {"type": "array", "items": _schema(parts[0])}
    if origin is tuple:
        items = [_schema(part) for part in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(parts[1])}
    if origin is Literal:
        return {"enum": list(parts)}
    return {} if kind is Any else {"type": _PLAIN[kind]}


def reference(record: Record) -> Schema:
    """Return the JSON Schema that refers to a record."""
    return {"$ref": f"#/components/schemas/{record.__name__}"}


def checked(record: Record, data: object, what: str) -> dict[str, Any]:
    """Return a body that has the fields of its record; records in lists are left to what reads them.

    Args:
        record: the record.
        data: as JSON has it.
        what: the body is, for the error.

    Raises:
        HTTPException: 422, with a sentence on the first fault.
    """
    fields = fields_of(record)
    names = ", ".join(fields)
    if not isinstance(data, dict):
        raise HTTPException(UNPROCESSABLE, f"{what} must be an object with the fields {names}")
    if others := [name for name in data if name not in fields]:
        raise HTTPException(UNPROCESSABLE, f"{what} has no field {others[0]:.60}; the fields are {names}")
    for name, (kind, _, required) in fields.items():
        if name not in data and required:
            raise HTTPException(UNPROCESSABLE, f"{what} lacks the field {name}, which must be {_wanted(kind)}")
        if name in data and not _suits(kind, data[name]):
            raise HTTPException(UNPROCESSABLE, f"{name} must be {_wanted(kind)}, not {data[name]!r:.60}")
    return {name: int(value) if fields[name][0] is int else value for name, value in data.items()}


def _suits(kind: Any, value: object) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return any(_suits(part, value) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_suits(parts[0], item) for item in value)
    if origin is Literal:
        return value in parts
    if is_typeddict(kind):
        return True
    if kind in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind is float or value == int(value))  # type: ignore[call-overload]
    return isinstance(value, kind)


def _wanted(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return " or ".join(map(_wanted, parts))
    if origin is list:
        return f"a list of {_LISTS.get(parts[0], 'objects')}"
    if origin is Literal:
        return f"one of: {', '.join(parts)}"
    return _WORDS[kind]
