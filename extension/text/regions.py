"""Parts of the picture as prompts write them: by name, by edges, joined and inverted; pure.

    mask=left     mask=0,0,0.5,1     mask=face+0,0.8,1,1     mask=!face     mask=face:feather=0.1:outside=0

Edges are left, top, right and bottom, in shares of the picture. A name is one of those that come along or one of the
user's own. `!` is all but what follows, and binds closer than `+`.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from lib_lora import Region, StackError

from .similar import did_you_mean, similar

PARAMETER = "Remora regions"
"""Name in a parameters text of the user's own regions that a picture used."""
NAMED: Mapping[str, Region] = {
    "left": Region.rectangle(0, 0, 0.5, 1),
    "right": Region.rectangle(0.5, 0, 1, 1),
    "top": Region.rectangle(0, 0, 1, 0.5),
    "bottom": Region.rectangle(0, 0.5, 1, 1),
    "center": Region.rectangle(0.25, 0.25, 0.75, 0.75),
    "left third": Region.rectangle(0, 0, 1 / 3, 1),
    "middle third": Region.rectangle(1 / 3, 0, 2 / 3, 1),
    "right third": Region.rectangle(2 / 3, 0, 1, 1),
}
"""The regions that Remora ships."""

_BLANKS = r"[^\S\x1c-\x1f]*"  # `float` and browsers do not treat these control characters as blanks
_EDGE = rf"{_BLANKS}(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+){_BLANKS}"
_EDGES = re.compile(rf"{_EDGE}(?:,{_EDGE}){{3}}")
_NAME = re.compile(r"\w(?:[\w \-.()]*[\w)])?")
MAX_NAME = 60  # characters
_MOST_PARTS = 50
_MARKS = f"!{string.whitespace}"
_RESERVED = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in "123456789¹²³")]
)
"""Device names on Windows, with any suffix: no file can have such a name."""
_PACKED = re.compile(r"(\d{1,4})x(\d{1,4})-([A-Za-z0-9_-]+)")


class RegionTextError(ValueError):
    """A text is no region; the message says why.

    Attributes:
        place: index in the text of the part at fault.
    """

    def __init__(self, text: str, place: int = 0) -> None:
        super().__init__(text)
        self.place = place


@dataclass(frozen=True)
class Mask:
    """The region that a tag is limited to."""

    written: str = ""
    """As in the tag; empty is the whole picture."""
    feather: float = 0.0
    """Width of its soft edge, as a share of the picture."""
    region: Region | None = None
    """The region."""
    own: Mapping[str, Region] = field(default_factory=dict)
    """The user's own regions that it uses."""
    outside: float = 1.0
    """How much of the effect stays outside of the region."""
    part: int | None = None
    """Of a prompt whose parts are joined by AND, the part that describes the region, from 1; None without one."""


def read_mask(written: str, feather: float, own: Mapping[str, Region]) -> Mask:
    """Parse `mask=` and `feather=`.

    Args:
        written: the text.
        feather: from 0 to 1.
        own: the user's own regions, by name.

    Raises:
        RegionTextError: an unknown region, invalid edges, or an empty region.
    """
    if not written.strip():
        raise RegionTextError("the region is missing; write, for example, left or 0,0,0.5,1")
    parts = written.split("+")
    if len(parts) > _MOST_PARTS:
        raise RegionTextError(f"a region of {len(parts)} parts; at most {_MOST_PARTS} are allowed")
    places = [sum(len(part) + 1 for part in parts[:i]) for i in range(len(parts))]
    used: dict[str, Region] = {}
    regions = [_part(part, place, own, used) for part, place in zip(parts, places, strict=True)]
    try:
        region = reduce(or_, regions).feathered(feather)
    except StackError as error:
        raise RegionTextError(str(error)) from error
    if not any(region.cells):
        raise RegionTextError(f"the region {written.strip()!r} has no place in the picture")
    return Mask(written.strip(), feather, region, used)


def _part(text: str, place: int, own: Mapping[str, Region], used: dict[str, Region]) -> Region:
    name = text.strip()
    bare = name.lstrip(_MARKS)
    found = _meant(bare, place, own, used)
    return found.inverted() if name[: len(name) - len(bare)].count("!") % 2 else found


def _meant(name: str, place: int, own: Mapping[str, Region], used: dict[str, Region]) -> Region:
    if _EDGES.fullmatch(name):
        try:
            return Region.rectangle(*map(float, name.split(",")))
        except StackError as error:
            raise RegionTextError(str(error), place) from error
    if name in own:
        used[name] = own[name]
        return own[name]
    if name in NAMED:
        return NAMED[name]
    if "," in name:
        raise RegionTextError(
            f"{name[:60]!r} is not a rectangle; write left,top,right,bottom, such as 0,0,0.5,1", place
        )
    names = ", ".join(sorted(NAMED)) + "".join(f", {one}" for one in sorted(own)[:20])
    meant = did_you_mean(similar(name, (*NAMED, *own))) or f"the regions are {names}"
    raise RegionTextError(f"there is no region {name[:60]!r}; {meant}", place)


def checked_name(name: str) -> str:
    """Return a valid name for a user's own region.

    Raises:
        RegionTextError: a tag or a file cannot have this name, or Remora ships a region of this name.
    """
    name = name.strip()
    if len(name) > MAX_NAME or not name[:1].isalpha() or not _NAME.fullmatch(name):
        raise RegionTextError(
            f"a region's name is 1 to {MAX_NAME} letters, digits, spaces, and any of - . _ ( ), a letter first, and a "
            f"letter, a digit, _ or ) last; not {name[:60]!r}"
        )
    if name in NAMED:
        raise RegionTextError(f"{name!r} is a built-in region; choose another name")
    if is_device_name(name):
        raise RegionTextError(f"{name!r} is the name of a device on Windows, where no file has it; choose another name")
    return name


def is_device_name(name: str) -> bool:
    """Tell whether Windows has a device of a name, which no file can have there."""
    return name.partition(".")[0].rstrip().lower() in _RESERVED


def parameters(masks: Iterable[Mask]) -> dict[str, str]:
    """Return the parameters text of the user's own regions in these masks, so that others get them too."""
    own = {name: region for mask in masks for name, region in mask.own.items()}
    return {PARAMETER: ", ".join(f"{name}: {_packed(region)}" for name, region in own.items())} if own else {}


def read_parameter(text: str) -> dict[str, Region]:
    """Parse the value of that parameter; invalid parts are left out."""
    return dict(_read_all(text))


def _read_all(text: str) -> Iterator[tuple[str, Region]]:
    for part in text.split(","):
        name, _, packed = part.partition(":")
        match = _PACKED.fullmatch(packed.strip())
        try:
            if match:
                yield checked_name(name), _unpacked(int(match[1]), int(match[2]), match[3])
        except (RegionTextError, StackError, ValueError, binascii.Error, zlib.error):
            continue  # of another program, or truncated: skip it


def _packed(region: Region) -> str:
    text = base64.urlsafe_b64encode(zlib.compress(region.cells, 9)).decode().rstrip("=")
    return f"{region.width}x{region.height}-{text}"


def _unpacked(width: int, height: int, text: str) -> Region:
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    cells = zlib.decompressobj().decompress(packed, width * height + 1)  # no more than its declared size
    return Region(width, height, cells)


NO_MASK = Mask()
