"""The measures of files as a picture: the energy of each block, the spectrum, and a map of pairs. Needs Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from .measures import FileMeasures
from .stacked import Relation, StackMeasures

_COLOURS: Mapping[Relation, str] = {
    "cancel": "#f2a3a3",
    "collide": "#f5cf8e",
    "reinforce": "#a9cbf3",
    "independent": "#e4e7ea",
}
"""The relations of two files, the worst first, and the colours of their cells."""
_INK, _BAR, _SIDE = "#1b1f23", "#3b76c4", "#c9ced3"
_SIZE, _MARGIN, _LINE = 14, 16, 20  # pixels, as all below
_LABEL, _WIDTH, _HEIGHT = 130, 520, 120
"""Of the names of blocks, of the longest bar of a block, and of the spectrum."""
_CELL = 150, 46
_DIRECTIONS = 64
"""Of a spectrum, the strongest first."""


class _Page:
    """A picture that grows downwards."""

    def __init__(self) -> None:
        self._font = _font()
        self._texts: list[tuple[int, int, str]] = []
        self._boxes: list[tuple[tuple[int, int, int, int], str]] = []
        self.y = _MARGIN

    def text(self, x: int, y: int, text: str) -> None:
        """Write a line; letters that Latin-1 lacks become question marks, as the font lacks them, too."""
        self._texts.append((x, y, text.encode("latin-1", "replace").decode("latin-1")))

    def line(self, text: str) -> None:
        """Write a line below all others."""
        self.text(_MARGIN, self.y, text)
        self.y += _LINE

    def box(self, x: int, y: int, width: int, height: int, colour: str) -> None:
        """Fill a rectangle; none where it has no width or height."""
        if width > 0 and height > 0:
            self._boxes.append(((x, y, x + width - 1, y + height - 1), colour))

    def picture(self) -> Image.Image:
        """Return the picture, as large as what is on it."""
        widths = [x + int(self._font.getlength(text)) for x, _, text in self._texts]
        right = max([*widths, *(box[2] for box, _ in self._boxes)], default=0)
        made = Image.new("RGB", (right + _MARGIN, self.y + _MARGIN), "white")
        draw = ImageDraw.Draw(made)
        for box, colour in self._boxes:
            draw.rectangle(box, fill=colour)
        for x, y, text in self._texts:
            draw.text((x, y), text, fill=_INK, font=self._font)
        return made


def write_picture(path: Path, files: Sequence[tuple[str, FileMeasures]], stack: StackMeasures | None) -> None:
    """Draw files, and several of them as pairs, and write that as PNG.

    Args:
        path: of the picture.
        files: the name of each, and its measures.
        stack: what the files do to each other; None without it.

    Raises:
        OSError: the picture cannot be written.
    """
    page = _Page()
    for name, file in files:
        _draw_file(page, name, file)
    if stack is not None:
        _draw_pairs(page, [name for name, _ in files], stack)
    page.picture().save(path, "PNG")


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    try:
        return ImageFont.load_default(_SIZE)
    except TypeError:  # before Pillow 10.1, which has one size alone
        return ImageFont.load_default()


def _draw_file(page: _Page, name: str, file: FileMeasures) -> None:
    relative = "" if file.relative is None else f", {file.relative:.1%} of the base weights'"
    page.line(f"{name}: norm {file.norm:.4g}{relative}")
    page.line("energy of each block")
    blocks = {block: file.share(part) for block, part in file.by_block().items()}
    longest = max(blocks.values(), default=1.0) or 1.0
    for block, share in blocks.items():
        page.text(_MARGIN, page.y, block)
        page.box(_MARGIN + _LABEL, page.y + 2, round(_WIDTH * share / longest), _LINE - 4, _BAR)
        page.text(_MARGIN + _LABEL + round(_WIDTH * share / longest) + 6, page.y, f"{share:.1%}")
        page.y += _LINE
    spectrum = file.spectrum()[:_DIRECTIONS]
    page.line(f"energy of each direction, the strongest {len(spectrum)} of {file.rank}")
    width, highest = (_LABEL + _WIDTH) // _DIRECTIONS, max(spectrum, default=1.0) or 1.0
    for at, share in enumerate(spectrum):
        height = round(_HEIGHT * share / highest)
        page.box(_MARGIN + at * width, page.y + _HEIGHT - height, width - 2, height, _BAR)
    page.y += _HEIGHT
    page.box(_MARGIN, page.y, len(spectrum) * width, 1, _SIDE)
    page.y += _LINE


def _draw_pairs(page: _Page, names: Sequence[str], stack: StackMeasures) -> None:
    """Draw a cell for each pair: the worst relation of its bands of blocks, and the range of their cosines."""
    page.line("pairs of files: relation and cosines of the bands of blocks")
    for at, name in enumerate(names):
        page.line(f"{at + 1}  {name}")
    width, height = _CELL
    left, top = _MARGIN + _LINE, page.y + _LINE
    for at in range(len(names)):
        page.text(left + at * width + width // 2, page.y, str(at + 1))
        page.text(_MARGIN, top + at * height + height // 2 - _LINE // 2, str(at + 1))
    for (row, column), lines, colour in _cells(stack):
        for one, other in ((row, column), (column, row)):
            x, y = left + one * width, top + other * height
            page.box(x, y, width - 2, height - 2, colour)
            for number, text in enumerate(lines):
                page.text(x + 6, y + 4 + number * (_LINE - 2), text)
    page.y = top + len(names) * height


def _cells(stack: StackMeasures) -> Iterator[tuple[tuple[int, int], tuple[str, str], str]]:
    """Yield each pair of files with the text of its cell and its colour."""
    for files in dict.fromkeys([pair.files for pair in stack.pairs]):
        bands = [pair for pair in stack.pairs if pair.files == files]
        worst = min([pair.relation for pair in bands], key=list(_COLOURS).index)
        cosines = [pair.cosine for pair in bands]
        yield files, (worst, f"{min(cosines):+.3f} to {max(cosines):+.3f}"), _COLOURS[worst]
