"""The table of Remora's own routes, with their bodies and answers as JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .blocks import BlocksApi
    from .compare import CompareApi
    from .library import Library
    from .pictures import PicturesApi
    from .presets import PresetsApi
    from .regions import RegionsApi
    from .stack import StackApi

Schema: TypeAlias = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}
_TRUTH: Schema = {"type": "boolean"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": schema, **more}


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _object(properties: Mapping[str, Schema], *optional: str) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _all_optional(properties: Mapping[str, Schema]) -> Schema:
    return _object(properties, *properties)


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_NOTED: Mapping[str, Schema] = {
    "words": {**_TEXT, "description": "trigger words, as they are put into a prompt"},
    "negative": {**_TEXT, "description": "words for the negative prompt"},
    "tags": _list(_TEXT),
    "notes": _TEXT,
    "rating": {**_WHOLE, "minimum": 0, "maximum": 5},
    "favourite": _TRUTH,
    "strength": {**_or_null(_NUMBER), "description": "preferred strength"},
    "alpha": {**_or_null(_NUMBER), "description": "in place of the file's own alpha"},
}
_LISTED: Mapping[str, Schema] = {
    "id": {**_TEXT, "description": "id of the file in these routes; changes if the file is moved"},
    "name": {**_TEXT, "description": "as in <lora:name:0.8>"},
    "alias": _TEXT,
    "file": {**_TEXT, "description": "path below its LoRA folder, without suffix"},
    "folder": _TEXT,
    "read": {**_TRUTH, "description": "whether the header has been read"},
    "readable": _TRUTH,
    "reason": {**_TEXT, "description": "why the file cannot be used; empty if it can"},
    "family": {**_or_null(_TEXT), "description": "a key of `families`"},
    "base_model": _or_null(_TEXT),
    "kind": {**_TEXT, "description": "adapter kinds, the most frequent first, such as lora+dora"},
    "rank": _or_null(_list(_WHOLE, minItems=2, maxItems=2)),
    "layers": _WHOLE,
    "format": _TEXT,
    "size": {**_WHOLE, "description": "bytes"},
    "mtime": {**_NUMBER, "description": "seconds since 1970, like `added` and `used`"},
    **_NOTED,
    "captions": {**_TEXT, "description": "frequent words of the training captions"},
    "added": _NUMBER,
    "used": {**_NUMBER, "description": "0 means never"},
    "uses": _WHOLE,
    "picture": {**_TEXT, "description": "changes if the picture changes; empty without a picture"},
}
_ENTRY: Mapping[str, Schema] = {
    "name": _TEXT,
    "on": _TRUTH,
    "unet": _NUMBER,
    "text_encoder": _NUMBER,
    "more": {**_TEXT, "description": "other fields of a tag, such as lbw=OUTALL:stop=10"},
}
_STATES: Schema = {"enum": ["applied", "partly", "none", "failed", "missing"]}
_FAMILY = _object({"name": _TEXT, "title": _TEXT, "sure": _TRUTH})
_DISTILLED = _object(
    {
        "method": _TEXT,
        "steps": {**_list(_WHOLE, minItems=2, maxItems=2), "description": "least and most steps"},
        "cfg": {
            **_list(_NUMBER, minItems=2, maxItems=2),
            "description": "least and most CFG scale; 1 is without guidance",
        },
        "sampler": _TEXT,
        "scheduler": _TEXT,
        "shift": _or_null(_NUMBER),
    }
)

COMPONENTS: Mapping[str, Schema] = {
    "Error": _object({"detail": {**_TEXT, "description": "one sentence: what, where, and what to do"}}),
    "Lora": _object(_LISTED),
    "LoraDetails": _object(
        {
            **_LISTED,
            "path": _TEXT,
            "description": _TEXT,
            "problems": _list(_TEXT),
            "kinds": _by_name(_WHOLE),
            "training": _by_name(_TEXT),
            "training_tags": _list({"type": "array", "minItems": 2, "maxItems": 2}),
            "distilled": _or_null(_DISTILLED),
            "scale_is_guess": {**_TRUTH, "description": "nothing tells the file's alpha, and the user gave none"},
            "sidecars": {**_list(_TEXT), "description": "files beside the LoRA that were read"},
            "hash": {**_TEXT, "description": "12 hex digits, as in `Lora hashes`; empty until it is computed"},
        }
    ),
    "Loras": _object(
        {
            "revision": {**_WHOLE, "description": "value for `since`"},
            "whole": {**_TRUTH, "description": "false if the answer has only changes"},
            "loras": _list(_ref("Lora")),
            "gone": {**_list(_TEXT), "description": "ids of removed files"},
            "families": _by_name(_object({"name": _TEXT, "title": _TEXT, "fits": _TRUTH, "reason": _TEXT})),
            "scan": _ref("Scan"),
            "problem": _TEXT,
        }
    ),
    "Scan": _object({"running": _TRUTH, "done": _WHOLE, "total": _WHOLE}),
    "Notes": _all_optional({**_NOTED, "description": _TEXT}),
    "Names": _object({"names": _list(_TEXT)}),
    "Meanings": _object(
        {
            "names": _by_name(
                _object(
                    {
                        "id": _or_null(_TEXT),
                        "name": _TEXT,
                        "problem": _TEXT,
                        "note": _TEXT,
                        "candidates": _list(_TEXT),
                    },
                    "name",
                )
            )
        }
    ),
    "Stack": _object(
        {"version": _WHOLE, "always_on": _TRUTH, "entries": _list(_object(_ENTRY)), "problem": _TEXT},
    ),
    "StackWanted": _all_optional(
        {
            "version": _WHOLE,
            "always_on": _TRUTH,
            "entries": _list(_object(_ENTRY, "on", "unet", "text_encoder", "more")),
        }
    ),
    "State": _object(
        {
            "version": _TEXT,
            "host": _TEXT,
            "enabled": _TRUTH,
            "default_multiplier": _NUMBER,
            "grammar": {**_TRUTH, "description": "brackets around tags mean something"},
            "comments": {**_TRUTH, "description": "# in a prompt begins a comment"},
            "parts": {**_TRUTH, "description": "AND divides prompts into parts of their own rows"},
            "model": {**_or_null(_TEXT), "description": "family of the loaded model"},
            "images": _WHOLE,
            "loras": _list(_ref("Outcome")),
            "merged": {**_WHOLE, "description": "layers"},
            "live": _by_name(_WHOLE),
            "notes": {
                **_list(_TEXT),
                "description": "sentences about the picture that are not about one of its `loras`",
            },
            "conflicts": _list(_TEXT),
            "pictures": {**_WHOLE, "description": "pictures made in this session"},
            "catalog": _object({"revision": _WHOLE, "running": _TRUTH, "done": _WHOLE, "total": _WHOLE}),
            "stack": {**_TEXT, "description": "the present ETag of `GET stack`, without quotes"},
        }
    ),
    "Outcome": _object(
        {
            "name": _TEXT,
            "asked": {
                **_TEXT,
                "description": "the name in the prompt, or the whole text of a tag that cannot be read",
            },
            "state": _STATES,
            "reason": _TEXT,
            "hit": {**_WHOLE, "description": "layers of the file that act"},
            "layers": _or_null(_WHOLE),
            "changed": {**_WHOLE, "description": "layers of the model"},
            "bytes": _WHOLE,
            "seconds": {**_NUMBER, "description": "time to read the file and to find its layers"},
            "warning": _TEXT,
            "format": _or_null(_TEXT),
            "family": _or_null(_FAMILY),
            "base_model": _or_null(_TEXT),
            "model": _or_null(_FAMILY),
            "kinds": _by_name(_WHOLE),
            "ranks": _or_null(_list(_WHOLE)),
            "unused": _by_name(_list(_TEXT)),
            "causes": _by_name(_TEXT),
            "details": _by_name(_TEXT),
            "images": _list(_WHOLE),
            "always_on": _TRUTH,
        }
    ),
    "Pictures": _object(
        {
            "count": {**_WHOLE, "description": "pictures made in this session; the latest 200 are kept"},
            "found": {**_WHOLE, "description": "pictures that fit the query"},
            "pictures": _list(
                _object(
                    {
                        "id": _WHOLE,
                        "time": {**_NUMBER, "description": "seconds since 1970"},
                        "seed": _WHOLE,
                        "thumbnail": _TRUTH,
                        "loras": _list(
                            _object(
                                {
                                    "id": {**_or_null(_TEXT), "description": "id of the file; null without one"},
                                    "name": {**_TEXT, "description": "as in the tag"},
                                    "strength": {**_TEXT, "description": "such as 0.8 or schedule"},
                                    "state": _STATES,
                                    "reason": _TEXT,
                                    "always_on": _TRUTH,
                                }
                            )
                        ),
                    }
                )
            ),
        }
    ),
    "Presets": _object(
        {
            "presets": _list(
                _object(
                    {
                        "name": _TEXT,
                        "text": {**_TEXT, "description": "one line for each LoRA: its tag, then its trigger words"},
                        "thumbnail": {
                            **_TEXT,
                            "description": "changes if the picture changes; empty without a picture",
                        },
                    }
                )
            ),
            "problem": _TEXT,
        }
    ),
    "Blocks": _object(
        {
            "blocks": {
                **_list(_object({"id": _TEXT, "title": _TEXT})),
                "description": "blocks of the loaded model, in the order of its first layout; empty without a model",
            },
            "layouts": {
                **_list(_object({"length": _WHOLE, "ids": _list(_TEXT)})),
                "description": "lists of weights that the model takes, by length",
            },
            "presets": _list(
                _object(
                    {
                        "name": _TEXT,
                        "values": {**_TEXT, "description": "numbers, R, U or X, separated by commas"},
                        "own": {**_TRUTH, "description": "saved by the user"},
                    }
                )
            ),
            "rules": {**_list(_TEXT), "description": "names for lbwe="},
            "problem": _TEXT,
        }
    ),
    "GrammarWanted": _object({"on": _TRUTH}),
    "BlockPresetWanted": _object({"name": _TEXT, "values": _TEXT}),
    "Regions": _object(
        {
            "regions": _list(
                _object(
                    {
                        "name": {**_TEXT, "description": "name for mask="},
                        "own": {**_TRUTH, "description": "saved by the user"},
                        "share": {**_NUMBER, "description": "share of the picture, from 0 to 1"},
                        "picture": {**_TEXT, "description": "grey PNG as base64, white where a LoRA acts"},
                    }
                )
            ),
            "problem": _TEXT,
        }
    ),
    "RegionWanted": _object(
        {
            "name": _TEXT,
            "picture": {**_TEXT, "description": "a picture file as base64, or as a data URL, white where a LoRA acts"},
        }
    ),
    "PresetWanted": _object({"text": _TEXT, "former": _TEXT}, "former"),
    "Text": _object({"text": _TEXT}),
    "CompareWanted": _object(
        {
            "mode": {
                "enum": ["strengths", "against", "without", "combinations", "blocks", "regions", "schedules"],
            },
            "names": {**_list(_TEXT), "description": "names of LoRA in the prompt"},
            "values": {
                "anyOf": [_list(_NUMBER), _list(_TEXT)],
                "description": "strengths for the modes that compare strengths; texts such as OUTALL, left or stop=10 "
                "for blocks, regions and schedules, with None for none",
            },
            "prompt": _TEXT,
            "negative_prompt": _TEXT,
            "steps": _WHOLE,
            "sampler": _TEXT,
            "schedule": _TEXT,
            "cfg_scale": _NUMBER,
            "width": _WHOLE,
            "height": _WHOLE,
            "seed": {**_WHOLE, "description": "-1: one random seed for all"},
        },
        *("mode", "values", "negative_prompt", "steps", "sampler", "schedule", "cfg_scale", "width", "height", "seed"),
    ),
    "Compare": _object(
        {
            "possible": _TRUTH,
            "samplers": _list(_TEXT),
            "comparison": _or_null(
                _object(
                    {
                        "id": _TEXT,
                        "columns": _list(_TEXT),
                        "rows": _list(_TEXT),
                        "prompts": {**_list(_TEXT), "description": "row by row, like `done`"},
                        "done": _list(_TRUTH),
                        "running": _TRUTH,
                        "cancelled": _TRUTH,
                        "problem": _TEXT,
                        "at": {**_WHOLE, "description": "cell"},
                        "fraction": _NUMBER,
                        "seed": _WHOLE,
                    }
                )
            ),
        }
    ),
    "Inspection": {"type": "object", "description": "the output of `python -m lib_lora inspect --json`"},
}


@dataclass(frozen=True)
class Route:
    """One route."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    answers: str
    """A name of `COMPONENTS`, or a media type."""
    takes: str = ""
    """The same for the body."""
    nothing: str = ""
    """When the answer is empty, if ever."""

    def described(self) -> dict[str, Any]:
        """Return the bodies and answers, which fastapi cannot derive."""
        error = _content("Error")
        told: dict[str, Any] = {
            "responses": {
                "200": {"description": "done", "content": _content(self.answers)},
                "4XX": {"description": "refused; nothing was changed", "content": error},
                "5XX": {"description": "failed; nothing was changed", "content": error},
            }
        }
        if self.nothing:
            told["responses"]["204"] = {"description": self.nothing}
        if self.takes:
            told["requestBody"] = {"required": True, "content": _content(self.takes)}
        return told


def routes(
    library: Library,
    stack: StackApi,
    presets: PresetsApi,
    compare: CompareApi,
    blocks: BlocksApi,
    regions: RegionsApi,
    pictures: PicturesApi,
) -> tuple[Route, ...]:
    """Return all of Remora's own routes, below `/remora/v1`."""
    return (
        *_library(library),
        *_stack(stack),
        *_pictures(pictures),
        *_presets(presets),
        *_blocks(blocks),
        *_regions(regions),
        *_compare(compare),
    )


def _library(library: Library) -> tuple[Route, ...]:
    return (
        Route("GET", "/loras", library.list, "Loras"),
        Route("POST", "/refresh", library.refresh, "Loras"),
        Route("GET", "/lora", library.one, "LoraDetails"),
        Route("PATCH", "/lora", library.change, "LoraDetails", "Notes"),
        Route("GET", "/thumbnail", library.thumbnail, "image/webp", nothing="its picture is damaged"),
        Route("PUT", "/picture", library.set_picture, "LoraDetails", "image/*"),
        Route("DELETE", "/picture", library.restore_picture, "LoraDetails"),
        Route("POST", "/resolve", library.resolve, "Meanings", "Names"),
        Route("GET", "/inspect", library.inspect, "Inspection"),
    )


def _stack(stack: StackApi) -> tuple[Route, ...]:
    return (
        Route("GET", "/state", stack.state, "State"),
        Route("PUT", "/grammar", stack.set_grammar, "State", "GrammarWanted"),
        Route("GET", "/stack", stack.stack, "Stack"),
        Route("PUT", "/stack", stack.set_stack, "Stack", "StackWanted"),
    )


def _pictures(pictures: PicturesApi) -> tuple[Route, ...]:
    return (
        Route("GET", "/pictures", pictures.list, "Pictures"),
        Route("GET", "/pictures/thumbnail", pictures.thumbnail, "image/webp"),
    )


def _presets(presets: PresetsApi) -> tuple[Route, ...]:
    return (
        Route("GET", "/presets", presets.list, "Presets"),
        Route("POST", "/presets", presets.add, "Presets", "Text"),
        Route("GET", "/preset", presets.text, "text/plain"),
        Route("PUT", "/preset", presets.put, "Presets", "PresetWanted"),
        Route("DELETE", "/preset", presets.remove, "Presets"),
        Route("GET", "/preset/thumbnail", presets.thumbnail, "image/webp"),
        Route("PUT", "/preset/thumbnail", presets.set_thumbnail, "Presets", "image/*"),
    )


def _blocks(blocks: BlocksApi) -> tuple[Route, ...]:
    return (
        Route("GET", "/blocks", blocks.list, "Blocks"),
        Route("PUT", "/blocks/presets", blocks.put, "Blocks", "BlockPresetWanted"),
        Route("DELETE", "/blocks/presets", blocks.remove, "Blocks"),
    )


def _regions(regions: RegionsApi) -> tuple[Route, ...]:
    return (
        Route("GET", "/regions", regions.list, "Regions"),
        Route("PUT", "/regions", regions.put, "Regions", "RegionWanted"),
        Route("DELETE", "/regions", regions.remove, "Regions"),
    )


def _compare(compare: CompareApi) -> tuple[Route, ...]:
    return (
        Route("GET", "/compare", compare.state, "Compare"),
        Route("POST", "/compare", compare.start, "Compare", "CompareWanted"),
        Route("DELETE", "/compare", compare.cancel, "Compare"),
        Route("GET", "/compare/picture", compare.picture, "image/png"),
    )


def _content(name: str) -> dict[str, Any]:
    if "/" in name:
        return {name: {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": _ref(name)}}
