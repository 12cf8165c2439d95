"""What is made from the table of routes is up to date, and tells of a field that changes."""

# no `from __future__ import annotations`: the records are read at run time, like the ones of the routes

import json
from typing import Annotated, Literal, NewType

import jsonschema
import pytest
from typing_extensions import NotRequired, TypedDict

from extension.api import contract
from extension.api.routes import SECTIONS, schemas
from extension.api.schema import components

Anything = NewType("Anything", dict[str, int])


class Inner(TypedDict):
    """A record within another one."""

    sizes: tuple[int, str]


class Outer(TypedDict):
    """A record of every kind of field."""

    text: Annotated[str, "as it is written"]
    number: Annotated[float | None, {"minimum": 0}]
    inner: list[Inner | None]
    by_name: dict[str, Inner]
    mode: NotRequired[Literal["a", "b"]]
    any: Anything


DECLARED = """\
/** A record of every kind of field. */
export interface Outer {
    /** as it is written */
    text: string;
    number: number | null;
    inner: (Inner | null)[];
    by_name: {[name: string]: Inner};
    mode?: "a" | "b";
    any: Anything;
}
"""
GOOD = {"text": "a", "number": 0.5, "inner": [{"sizes": [1, "b"]}, None], "by_name": {}, "any": {"x": 1}}


def test_the_types_of_the_tab_and_the_tables_of_the_docs_are_up_to_date() -> None:
    for path, text in contract.documents().items():
        assert path.read_text("utf-8") == text, f"run `python -m extension.api.contract`, which writes {path.name}"


def test_a_record_is_declared_as_it_is() -> None:
    assert contract._declared(Outer) == DECLARED


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"mode": "b"}, True),
        ({"mode": "c"}, False),
        ({"number": -1}, False),
        ({"number": None}, True),
        ({"inner": [{"sizes": [1]}]}, False),
        ({"inner": [{"sizes": ["b", 1]}]}, False),
        ({"inner": [{}]}, False),
        ({"by_name": {"a": 1}}, False),
        ({"any": []}, False),
        ({"more": 1}, False),
        ({"text": None}, False),
    ],
)
def test_the_schema_of_a_record_takes_its_exact_shape_alone(change: dict[str, object], fits: bool) -> None:
    schema = {"$ref": "#/components/schemas/Outer", "components": {"schemas": components(Outer)}}
    assert jsonschema.Draft202012Validator(schema).is_valid({**GOOD, **change}) is fits
    missing = {name: value for name, value in GOOD.items() if name != "text"}
    assert not jsonschema.Draft202012Validator(schema).is_valid(missing)


def test_each_path_has_one_answer_as_json() -> None:
    """The tab finds the type of an answer by its path alone."""
    found: dict[str, set[str]] = {}
    for route in (route for *_, routes in SECTIONS for route in routes):
        if not isinstance(route.answers, str):
            found.setdefault(route.path, set()).add(route.answers.__name__)
    assert {path: names for path, names in found.items() if len(names) > 1} == {}
    assert set().union(*found.values()) <= set(schemas())
    json.dumps(schemas())
