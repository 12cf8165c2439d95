r"""LoRA tags in a prompt; pure text. The grammar is the union of what web UIs and their extensions have.

    <lora:name>   <lora:name:0.8>   <lora:name:0.5:1.0>   <lora:name:te=0.4:unet=0.9:dyn=16>   <lyco:name:0.8>
    <lora:name:1:high>   <lora:name:1:in=0.2:mid=1:out=0.8>   <lora:name:1:module=transformer_2>
    <lora:name:0@0,1@0.3,0@1:hr=0.6>   <lora:name:1@14,0@1:by=sigma:curve=cosine>
    <lora:name:1:lbw=OUTALL:lbwe=ATTNDEEPON:step=2-12>   <lora:name:1:0,0,0,1,…>   <lora:name:1:OUTALL:0.7>
    <lora:name:1:5-15>   <lora:name:1:start=0:end=0.25>
    <lora:name:1:sigma=14-1:pass=base,hires:half=pos:rows=1,3>   <lora:name:1:mask=left:feather=0.1:outside=0>
    <lora:name:1:alpha=8>   <lora:name:1:scale=0.0625>   <lora:name:0.8:combine=ties:density=0.5>
    <lora:name with \: in it:1:grammar=1>

The first number is the multiplier of the text encoders, the second that of the unet (as the first, where missing), the
third the rank to cut to. In place of a number there may be points, value@place, see `lib_lora.Curve`. What stands where
the second number would and is none are block weights. A range without a name, as 5-15, is one of steps. Other
`<kind:...>` tags stay in the text.

Sources: AUTOMATIC1111/stable-diffusion-webui extensions-builtin/Lora/extra_networks_lora.py; vladmandic/sdnext
modules/lora/extra_networks_lora.py; cheald/sd-webui-loractl loractl/lib/utils.py; hako-mikan/sd-webui-lora-block-weight
scripts/lora_block_weight.py. `by`, `curve`, `sigma`, `pass`, `half`, `rows`, `mask`, `feather`, `outside`, `part`,
`alpha`, `scale`, `combine`, `density`, `seed` and `grammar` are Remora's own; `grammar` is read for the whole prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import PureWindowsPath
from typing import Any, NoReturn, TypeVar, get_args

from lib_lora import Amount, Curve, Element, LoraError, Shape, Unit, Window

from . import grammar
from .block_weights import NUMBER, BlockWeightsError, TagBlocks, is_list, is_number, known, read_list
from .known import BUILT_IN, Known
from .placed import PlacedTag
from .regions import NO_MASK, Mask, RegionTextError, read_mask
from .similar import did_you_mean, number_meant, range_meant, similar
from .spelling import escaped, name_and_fields, unescaped
from .tag import EXPERTS, PASSES, PRUNING, RULES, SIDES, Rule, Tag

_NUMBER = re.compile(NUMBER)
_END = NUMBER.removeprefix("[+-]?")
_RANGE = re.compile(rf"({_END}|)\s*-\s*({_END}|)")
_MODULE = re.compile(r"[A-Za-z0-9_]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+,[0-9]+")
"""A number with a comma for its point, or a list of two whole numbers."""
_MOST_POINTS = 1000
_MOST_RANKS = 999_999
_MOST_IMAGES = 999
_MOST_PARTS = 999
_LARGEST_SEED = 999_999_999
_DENSITY = 0.5
"""The share of the numbers that a rule keeps where its tag does not say it."""
_SETTINGS = (
    *("te", "unet", "dyn", "hr", "hrte", "hrunet", *SIDES, "module"),
    *("lbw", "w", "lbwe", "x", "start", "stop", "end", "step", "sigma", "by", "curve", "pass", "half", "rows"),
    *("mask", "feather", "outside", "part", "alpha", "scale", "combine", "density", "seed", "grammar"),
)
ALIASES = {"w": "lbw", "end": "stop"}
"""Other names of settings."""
NOT_CLOSED = "the tag is not closed, '>' is missing"
_T = TypeVar("_T")


class PromptError(LoraError, ValueError):
    """A tag that cannot be parsed.

    Attributes:
        text: the tag as written.
        position: index in the prompt of the character at fault, from 0.
        reason: the fault, without the place.
    """

    def __init__(self, text: str, position: int, reason: str) -> None:
        super().__init__(f"{_shown(text)!r}, at character {position + 1} of the prompt: {reason}")
        self.text = text
        self.position = position
        self.reason = reason

    @property
    def arguments(self) -> str:
        """Return the text between `<lora:` and `>`."""
        return self.text.partition(":")[2].removesuffix(">")


@dataclass(frozen=True)
class Parsed:
    """A prompt without its LoRA tags, and the tags."""

    text: str
    """The prompt without its LoRA tags, otherwise unchanged."""
    tags: tuple[Tag, ...]
    placed: tuple[PlacedTag, ...] = dataclass_field(default=(), compare=False)
    """What the tags say, and what their places mean."""


def parse(prompt: str, names: Known = BUILT_IN, *, on: bool = False, negative: bool = False) -> Parsed:
    """Split a prompt into its text and its LoRA tags, in order; a name may occur twice.

    Args:
        prompt: the text.
        names: the names that a tag may refer to.
        on: brackets around tags mean something, see `grammar.read`.
        negative: it is a negative prompt, whose tags are words unless `on`.

    Raises:
        PromptError: a tag is not closed, has no name, or has an invalid field.
    """
    found = grammar.read(prompt, on=on, negative=negative)
    tags = []
    for kind, one in found.tags:
        if negative and not one.meant:
            continue
        tags.append(parse_placed(one, names=names, kind=kind))
    return Parsed(found.text, tuple(tags), tuple(one for _, one in found.tags))


def parse_placed(
    one: PlacedTag, default: float = 1.0, names: Known = BUILT_IN, *, kind: str = "lora", cut: str = ""
) -> Tag:
    """Parse a tag of a prompt, with what its place means; the result knows its place.

    Args:
        one: the tag.
        default: the multiplier of a tag without a number.
        names: as `parse_arguments`.
        kind: of the tag.
        cut: why a tag may not be closed, for the end of that error.

    Raises:
        PromptError: as `parse`.
    """
    before = f"<{kind}:"
    if one.is_open:
        raise PromptError(before + one.written, one.start - len(before), NOT_CLOSED + cut)
    tag = _TagReader(f"{before}{one}>", one, one.start or len(before), default, names).tag()
    return replace(one.limits.applied(tag) if one.meant else tag, place=one.place_of(tag))


def parse_arguments(arguments: str, names: Known = BUILT_IN) -> Tag:
    """Parse the text between `<lora:` and `>`, for hosts that split the prompt themselves.

    Args:
        arguments: the text; without a number in it, the multiplier is 1.
        names: the names that a tag may refer to.

    Raises:
        PromptError: as `parse`; positions count from the tag's `<`.
    """
    return _TagReader(f"<lora:{arguments}>", arguments, len("<lora:"), 1.0, names).tag()


def format_tag(tag: Tag) -> str:
    """Write a tag so that `parse` reads it back; the name must not contain `<` and `>`."""
    fields = [_amount(tag.te)]
    if tag.unet != tag.te or tag.rank is not None:
        fields.append(_amount(tag.unet))
    if tag.rank is not None:
        fields.append(str(tag.rank))
    fields += sorted(tag.noise)
    fields += [f"{name}={value}" for name, value in _named(tag)]
    return f"<lora:{':'.join([escaped(tag.name), *fields])}>"


def number(value: float) -> str:
    """Write a multiplier in the shortest form that reads back the same."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e6 else repr(value)


def _named(tag: Tag) -> Iterator[tuple[str, str]]:
    sides: dict[str, Amount] = {side: tag.sides[side] for side in tag.sides}
    amounts: dict[str, Amount | None] = {"hrte": tag.hires_te, "hrunet": tag.hires_unet, **sides}
    yield from ((name, _amount(value)) for name, value in amounts.items() if value is not None)
    texts = {"module": tag.module, "lbw": tag.blocks.written, "lbwe": tag.blocks.rules}
    yield from ((name, text) for name, text in texts.items() if text)
    if tag.blocks.x != 1.0:
        yield "x", number(tag.blocks.x)
    window = tag.during
    yield from ((n, number(v)) for n, v in (("start", window.start), ("stop", window.stop)) if v is not None)
    if window.high is not None or window.low is not None:
        yield "sigma", "-".join("" if one is None else number(one) for one in (window.high, window.low))
    if tag.curve is not None and tag.curve.unit != "step":
        yield "by", tag.curve.unit
    if tag.curve is not None and tag.curve.shape != "linear":
        yield "curve", tag.curve.shape
    if tag.passes:
        yield "pass", ",".join(one for one in PASSES if one in tag.passes)
    if tag.half:
        yield "half", tag.half
    if tag.rows:
        yield "rows", ",".join(map(str, sorted(tag.rows)))
    if tag.mask.written:
        yield "mask", tag.mask.written
    if tag.mask.feather:
        yield "feather", number(tag.mask.feather)
    if tag.mask.outside != 1:
        yield "outside", number(tag.mask.outside)
    if tag.mask.part is not None:
        yield "part", str(tag.mask.part)
    yield from ((n, number(v)) for n, v in (("alpha", tag.alpha), ("scale", tag.scale)) if v is not None)
    if tag.rule is not None:
        yield "combine", tag.rule.how
        yield from (("density", number(one)) for one in [tag.rule.density] if one is not None)
        yield from (("seed", str(one)) for one in [tag.rule.seed] if one)


def _amount(amount: Amount) -> str:
    if not isinstance(amount, Curve):
        return number(amount)
    return ",".join(f"{number(value)}@{number(place)}" for place, value in amount.points)


@dataclass(frozen=True)
class _Field:
    """A part of the text of a tag."""

    value: str
    place: int
    """Index of its first character in the prompt."""
    named: bool = False
    """Whether it is a setting's value, as in `mask=left`, whose syntax differs from the tag's."""

    @property
    def text(self) -> str:
        """Return the value without surrounding blanks."""
        return self.value.strip()

    @property
    def is_amount(self) -> bool:
        """Return whether it is a number or points, as far as its characters tell."""
        return "@" in self.value or "~" in self.value or _NUMBER.fullmatch(self.text) is not None

    def split(self, marks: str) -> list[_Field]:
        """Split the value at any of these characters."""
        parts, place = [], self.place
        for part in re.split(f"[{re.escape(marks)}]", self.value):
            parts.append(_Field(part, place, self.named))
            place += len(part) + 1
        return parts


def _fields(arguments: str, start: int) -> Iterator[_Field]:
    for part in name_and_fields(arguments):
        yield _Field(part, start)
        start += len(part) + 1


class _TagReader:
    """Parses one tag."""

    def __init__(self, text: str, arguments: str, start: int, default: float, names: Known) -> None:
        self._text = text
        self._default = default
        self._names = names
        self._name, *rest = _fields(arguments, start)
        if not self._name.text:
            raise PromptError(text, start, "the name is missing; write, for example, <lora:name:0.8>")
        self._fields: dict[str, _Field] = {}
        self._noise: set[str] = set()
        self._overruled: list[tuple[str, _Field]] = []
        """Positional fields that a named field overrides."""
        self._sort(rest)
        self._by, self._shape = self._one_of("by", get_args(Unit)), self._one_of("curve", get_args(Shape))

    def tag(self) -> Tag:
        """Return the tag.

        Raises:
            PromptError: a field is invalid.
        """
        te = self._read("te", self._to_amount, self._default)
        both = self._read("hr", self._to_amount, None)
        sides = {side: self._to_amount(self._fields[side]) for side in SIDES if side in self._fields}
        tag = Tag(
            unescaped(self._name.text),
            te,
            self._read("unet", self._to_amount, te),
            self._read("dyn", self._to_rank, None),
            frozenset(self._noise),
            self._read("hrte", self._to_amount, both),
            self._read("hrunet", self._to_amount, both),
            sides,
            self._read("module", self._to_module, ""),
            self._blocks(),
            self._window(),
            self._read("pass", self._to_passes, frozenset()),
            self._one_of("half", ("pos", "neg")),
            self._read("rows", self._to_rows, frozenset()),
            self._mask(),
            self._read("alpha", self._to_number, None),
            self._read("scale", self._to_number, None),
            self._rule(),
        )
        self._check_overruled()
        self._one_of("grammar", ("0", "1"))
        for name, value in (("by", self._by), ("curve", self._shape)):
            if value and tag.curve is None:
                self._fail(self._fields[name], f"'{name}' needs a schedule, such as 0@0,1@0.5")
        return tag

    # --- names of fields ---

    def _sort(self, rest: list[_Field]) -> None:
        positional = []
        for field in rest:
            key, equals, value = field.value.partition("=")
            name = key.strip()
            if equals:
                if name not in _SETTINGS:
                    meant = did_you_mean(similar(name, _SETTINGS)) or "leave it out"
                    self._fail(field, f"{name[:60]!r} is not a setting of a LoRA tag; {meant}")
                self._take(ALIASES.get(name, name), _Field(value, field.place + len(key) + 1, True), field)
            elif name.lower() in EXPERTS:
                self._noise.add(name.lower())
            elif is_range(field.value):
                self._take("step", replace(field, named=True), field)
            else:
                positional.append(field)
        for name, field in self._by_place(positional):
            if name in self._fields:  # a named field overrides it
                self._overruled.append((name, field))
            else:
                self._fields[name] = field

    def _take(self, name: str, value: _Field, field: _Field) -> None:
        if name in self._fields:
            self._fail(field, f"{name!r} is set twice; leave one out")
        self._fields[name] = value

    def _by_place(self, fields: list[_Field]) -> Iterator[tuple[str, _Field]]:
        """Yield the names of positional fields: multipliers and the rank, or one multiplier and block weights."""
        names = ["te", "unet", "dyn"]
        if len(fields) > 1 and not fields[1].is_amount:
            names = ["te", "lbw", *(["x"] if len(fields) > 2 and fields[2].is_amount else ["lbwe"])]
        if len(fields) > len(names):
            extra = fields[len(names)]
            self._fail(extra, f"a fourth number, {extra.value!r}; write at most two strengths and a rank")
        yield from zip(names, fields, strict=False)

    # --- values ---

    def _check_overruled(self) -> None:
        """Reject an invalid field even if a named one overrides it: the user meant something by it."""
        for name, field in self._overruled:
            match name:
                case "te" | "unet":
                    self._to_amount(field)
                case "dyn":
                    self._to_rank(field)
                case "x":
                    self._to_number(field)
                case "lbw":
                    self._values(field)
                case "lbwe":
                    self._rules(field)

    def _read(self, name: str, to: Callable[[_Field], _T], default: Any) -> _T:
        found: _T = to(self._fields[name]) if name in self._fields else default
        return found

    def _fail(self, field: _Field, reason: str) -> NoReturn:
        raise PromptError(self._text, field.place, reason)

    def _to_number(self, field: _Field) -> float:
        if not is_number(field.text):
            if field.text.startswith("/") or "\\" in field.text:
                name = PureWindowsPath(field.text.strip(" \"'")).stem
                self._fail(field, f"{field.value!r} is a path; write the name alone, {name}")
            large = _NUMBER.fullmatch(field.text) is not None
            wanted = number_meant(field.text) or "a number, such as 0.8"
            self._fail(field, f"{field.value!r} is {'too large' if large else 'not'} a number; write {wanted}")
        return float(field.text)

    def _to_amount(self, field: _Field) -> Amount:
        """Parse a number, or points: `0@0,1@0.5`; as in the original, a point without a place is at 1."""
        if "@" not in field.value and "~" not in field.value:
            return self._to_number(field)
        parts = field.split(",;")
        if len(parts) > _MOST_POINTS:
            self._fail(field, f"a schedule of {len(parts)} points; at most {_MOST_POINTS} are allowed")
        points = []
        for part in parts:
            value, *place = part.split("@~")
            if len(place) > 1:
                self._fail(part, f"{part.value!r} is not a point; write, for example, 0.8@0.5")
            points.append((self._to_number(place[0]) if place else 1.0, self._to_number(value)))
        unit: Unit = self._by or "step"  # type: ignore[assignment]  # one of them, see __init__
        shape: Shape = self._shape or "linear"  # type: ignore[assignment]
        return Curve(tuple(points), unit, shape)

    def _to_rank(self, field: _Field) -> int:
        return self._to_count(field, _MOST_RANKS, "is not a rank; write a whole number from 1, such as 16")

    def _to_count(self, field: _Field, most: int, reason: str) -> int:
        written = field.text.lstrip("0")
        if not (written.isascii() and written.isdigit() and len(written) < 10 and int(written) <= most):
            self._fail(field, f"{field.value!r} {reason}")
        return int(written)

    def _to_module(self, field: _Field) -> str:
        if not _MODULE.fullmatch(field.text):
            self._fail(
                field, f"{field.value!r} is not a component of a model; write, for example, unet or text_encoder"
            )
        return field.text.lower()

    def _to_passes(self, field: _Field) -> frozenset[str]:
        found = set()
        for part in field.split(",+"):
            if part.text.lower() not in PASSES:
                self._fail(part, f"{part.value!r} is not a pass; {_one_of_these(part.text, PASSES, 'the passes are')}")
            found.add(part.text.lower())
        return frozenset(found) if len(found) < len(PASSES) else frozenset()

    def _to_rows(self, field: _Field) -> frozenset[int]:
        reason = "is not an image of a batch; images are numbered from 1"
        return frozenset(self._to_count(part, _MOST_IMAGES, reason) for part in field.split(",+"))

    def _one_of(self, name: str, choices: tuple[str, ...]) -> str:
        field = self._fields.get(name)
        if field is None:
            return ""
        if field.text.lower() not in choices:
            meant = did_you_mean(similar(field.text, choices))
            self._fail(field, f"{field.value!r} is none of {', '.join(choices)}{meant and f'; {meant}'}")
        return field.text.lower()

    # --- fields that belong together ---

    def _blocks(self) -> TagBlocks:
        x = self._read("x", self._to_number, 1.0)
        blocks = TagBlocks(x=x)
        if "lbw" in self._fields:
            blocks = replace(blocks, written=self._fields["lbw"].text, values=self._values(self._fields["lbw"]))
        if "lbwe" in self._fields:
            field = self._fields["lbwe"]
            blocks = replace(blocks, rules=field.text, elements=self._rules(field))
        return blocks

    def _rules(self, field: _Field) -> tuple[Element, ...]:
        return self._preset(field, self._names.blocks.elements, "presets of rules")

    def _values(self, field: _Field) -> tuple[float | str, ...]:
        if field.text in self._names.blocks.lists or not is_list(field.text):
            if is_number(field.text) and field.text not in self._names.blocks.lists:
                wanted = "write a weight for each block, or the name of a preset"
                self._fail(field, f"{field.text!r} is a single number; {wanted}")
            return self._preset(field, self._names.blocks.lists, "presets of block weights")
        if not field.named and _DECIMAL.fullmatch(field.text):
            wanted = f"{number_meant(field.text)}, or for block weights lbw={field.text}"
            self._fail(field, f"{field.value!r} is not a number; write {wanted}")
        try:
            return read_list(field.text)
        except BlockWeightsError as error:
            self._fail(field, str(error))

    def _preset(self, field: _Field, presets: Mapping[str, _T], what: str) -> _T:
        if field.text not in presets:
            meant = did_you_mean(similar(field.text, presets)) or known(what, presets)
            self._fail(field, f"{field.text[:60]!r} is neither a number nor block weights; {meant}")
        return presets[field.text]

    def _mask(self) -> Mask:
        if "mask" not in self._fields:
            for name in ("feather", "outside", "part"):
                if name in self._fields:
                    self._fail(self._fields[name], f"{name!r} needs a region, such as mask=left")
            return NO_MASK
        field, feather = self._fields["mask"], self._read("feather", self._to_number, 0.0)
        if not 0 <= feather <= 1:
            self._fail(self._fields["feather"], f"{feather:g} is not a soft edge; write a number from 0 to 1")
        outside = self._read("outside", self._to_number, 1.0)
        if not 0 <= outside <= 1:
            self._fail(self._fields["outside"], f"{outside:g} is not a share of the effect; write a number from 0 to 1")
        try:
            mask = read_mask(field.value, feather, self._names.regions)
        except RegionTextError as error:
            raise PromptError(self._text, field.place + error.place, str(error)) from error
        return replace(mask, outside=outside, part=self._read("part", self._to_part, None))

    def _rule(self) -> Rule | None:
        how = self._one_of("combine", RULES)
        fitting = {"density": how.removesuffix("_svd") in PRUNING, "seed": how.startswith("dare")}
        for name, example in (("density", "ties"), ("seed", "dare_linear")):
            if name in self._fields and not fitting[name]:
                self._fail(self._fields[name], f"{name!r} needs a rule that it belongs to, such as combine={example}")
        density = self._read("density", self._to_number, _DENSITY if fitting["density"] else None)
        if density is not None and not 0 < density <= 1:
            self._fail(
                self._fields["density"], f"{density:g} is not a share of the numbers; write a number from 0 to 1"
            )
        return Rule(how, density, self._read("seed", self._to_seed, 0)) if how else None

    def _to_seed(self, field: _Field) -> int:
        return 0 if field.text == "0" else self._to_count(field, _LARGEST_SEED, "is not a seed; write a whole number")

    def _to_part(self, field: _Field) -> int:
        return self._to_count(
            field, _MOST_PARTS, "is not a part of a prompt; the parts between AND are numbered from 1"
        )

    def _window(self) -> Window:
        start, stop = (self._read(name, self._to_number, None) for name in ("start", "stop"))
        if "step" in self._fields:
            first, last = self._range(self._fields["step"], "2-12")
            start, stop = (start if first is None else first), (stop if last is None else last)
        high = low = None
        if "sigma" in self._fields:
            high, low = self._range(self._fields["sigma"], "14-1")
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and value < 0:
                self._fail(self._fields[name], f"{value:g} is below 0; write a number from 0")
        return Window(start, stop, high, low)

    def _range(self, field: _Field, example: str) -> tuple[float | None, float | None]:
        match = match_range(field.value)
        found = [float(one) if one else None for one in (match[1], match[2])] if match is not None else [math.inf]
        if any(one is not None and not math.isfinite(one) for one in found):
            meant = range_meant(field.value)
            wanted = f"; write {meant}" if match is None and match_range(meant) else f", such as {example}"
            self._fail(field, f"{field.value!r} is not a range{wanted}")
        return found[0], found[1]


def is_range(text: str) -> bool:
    """Tell whether a field without a name is a range, as 5-15; -4 is a number."""
    return match_range(text) is not None and _NUMBER.fullmatch(text.strip()) is None


def match_range(text: str) -> re.Match[str] | None:
    """Match `a-b`, of which one may be empty; without blanks around it, so that many of them take no long time."""
    match = _RANGE.fullmatch(text.strip())
    return match if match is not None and (match[1] or match[2]) else None


def _shown(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _one_of_these(word: str, names: Sequence[str], are: str) -> str:
    """Return the end of a sentence: the names that a word may mean, or all of them."""
    return did_you_mean(similar(word, names)) or f"{are} {', '.join(names)}"
