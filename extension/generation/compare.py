"""Comparisons: a grid of pictures that differ only in their LoRA, which the host makes one after the other."""

from __future__ import annotations

import io
import itertools
import json
import logging
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from PIL import Image

from ..hosts.txt2img import RequestError, Txt2Img
from ..text.prompt_edit import names_in, with_strength, without
from .xyz import NONE, with_blocks, with_region, with_schedule

if TYPE_CHECKING:
    from ..hosts import Painter

logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal[
    "strengths",
    "alone",
    "against",
    "without",
    "combinations",
    "blocks",
    "regions",
    "schedules",
    "sheet",
    "instead",
]
"""One LoRA's strength per row; the same without the others; two LoRA's strengths against each other; all, all but one,
none; every subset; one LoRA's block weights, region or schedule per row; one prompt per row, without and with a LoRA,
and the difference; all, and one in their place.
"""
RECIPE = "Remora comparison"
"""The text in the picture of a grid that has its request, which makes the same grid again."""
_MAX_CELLS = 150
_MAX_NAMES = 8
_MAX_ALONE = 50  # LoRA that are compared without the others, such as the epochs of a training
_STRENGTH = 100.0
_PAPER, _INK = (255, 255, 255), (36, 41, 47)
_GAP, _LINE = 8, 22  # pixels
_THUMB = 512  # pixels of the longer side, in the grid


@dataclass(frozen=True)
class Plan:
    """The prompts of a comparison, one per cell of its grid."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    prompts: tuple[str | None, ...]
    """In row order; None for the difference of the two cells before it."""
    own_seeds: bool = False
    """Whether each row adds one to the seed of the row before."""


def plan(mode: str, prompt: str, names: Sequence[str], values: Sequence[float] | Sequence[str]) -> Plan:
    """Return the prompts of all cells.

    Args:
        mode: one of `Mode`.
        prompt: has a tag for each of the names; it sets the strengths that are not compared.
        names: of the compared LoRA.
        values: the strengths, if `mode` compares strengths; the texts, if it compares blocks, regions or schedules.

    Raises:
        RequestError: these cannot be compared; the text says why.
    """
    if mode not in get_args(Mode):
        raise RequestError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r:.40}")
    most = {"alone": _MAX_ALONE, "instead": _MAX_CELLS}.get(mode, _MAX_NAMES)
    if not 0 < len(names) <= most or len(set(names)) < len(names):
        raise RequestError(f"choose 1 to {most} different LoRA to compare")
    if missing := [name for name in names if name not in names_in(prompt)]:
        raise RequestError(f"LoRA {missing[0]!r:.120} is not in the prompt, so there is nothing to compare")
    if mode in _OF_TEXTS:
        made = _OF_TEXTS[mode](prompt, names, _texts(values))
    elif mode in _OF_STRENGTHS:
        made = _OF_STRENGTHS[mode](prompt, names, _strengths_of(values))
    else:
        made = _OF_NAMES[mode](prompt, names)
    if len(made.prompts) > _MAX_CELLS:
        raise RequestError(f"this would be {len(made.prompts)} pictures; a comparison has no more than {_MAX_CELLS}")
    return made


def _strengths_of(values: Sequence[float | str]) -> list[float]:
    if not 0 < len(values) <= _MAX_CELLS:
        raise RequestError(f"give 1 to {_MAX_CELLS} strengths, as 0, 0.5, 1")
    numbers = [one for one in values if not isinstance(one, str) and math.isfinite(one) and abs(one) <= _STRENGTH]
    if bad := [one for one in values if one not in numbers]:
        raise RequestError(f"strengths are numbers from -{_STRENGTH:g} to {_STRENGTH:g}, not {bad[0]}")
    return numbers


def _texts(values: Sequence[float | str]) -> list[str]:
    texts = [one.strip() for one in values if isinstance(one, str) and one.strip()]
    if not 0 < len(texts) <= _MAX_CELLS or len(texts) < len(values):
        raise RequestError(f"give 1 to {_MAX_CELLS} texts to compare, such as {NONE!r} for none")
    return texts


def _of_field(change: Callable[[str, str, str], str], prompt: str, names: Sequence[str], texts: Sequence[str]) -> Plan:
    prompts = tuple(change(prompt, name, text) for name in names for text in texts)
    return Plan(tuple(texts), tuple(names), prompts)


def _strengths(prompt: str, names: Sequence[str], values: Sequence[float]) -> Plan:
    prompts = tuple(with_strength(prompt, name, value, value) for name in names for value in values)
    return Plan(tuple(f"{value:g}" for value in values), tuple(names), prompts)


def _alone(prompt: str, names: Sequence[str], values: Sequence[float]) -> Plan:
    prompts = []
    for name in names:
        text = prompt
        for other in names:
            text = text if other == name else without(text, other)
        prompts += [with_strength(text, name, value, value) for value in values]
    return Plan(tuple(f"{value:g}" for value in values), tuple(names), tuple(prompts))


def _against(prompt: str, names: Sequence[str], values: Sequence[float]) -> Plan:
    if len(names) != 2:
        raise RequestError("two LoRA are needed to compare their strengths against each other")
    across, down = names
    prompts = tuple(
        with_strength(with_strength(prompt, down, below, below), across, value, value)
        for below in values
        for value in values
    )
    return Plan(tuple(f"{across} {v:g}" for v in values), tuple(f"{down} {v:g}" for v in values), prompts)


def _without(prompt: str, names: Sequence[str]) -> Plan:
    none = prompt
    for name in names:
        none = without(none, name)
    if len(names) == 1:
        return Plan((f"without {names[0]}", f"with {names[0]}"), ("",), (none, prompt))
    one_less = tuple(without(prompt, name) for name in names)
    columns = ("with all", *(f"without {name}" for name in names), "without any")
    return Plan(columns, ("",), (prompt, *one_less, none))


def _combinations(prompt: str, names: Sequence[str]) -> Plan:
    half = math.ceil(len(names) / 2)
    across, down = _subsets(names[:half]), _subsets(names[half:])
    prompts = []
    for left in down:
        for kept in across:
            text = prompt
            for name in names:
                text = text if name in (*left, *kept) else without(text, name)
            prompts.append(text)
    return Plan(tuple(map(_label, across)), tuple(map(_label, down)) if names[half:] else ("",), tuple(prompts))


def _sheet(prompt: str, names: Sequence[str], texts: Sequence[str]) -> Plan:
    if len(names) != 1:
        raise RequestError("choose 1 LoRA for a sheet")
    (name,) = names
    prompts = list[str | None]()
    for text in texts:
        whole = f"{text} {prompt}"
        prompts += [with_strength(whole, name, 0, 0), whole, None]  # without a tag, it could still be always on
    return Plan((f"without {name}", f"with {name}", "difference"), tuple(texts), tuple(prompts), own_seeds=True)


def _instead(prompt: str, names: Sequence[str], texts: Sequence[str]) -> Plan:
    other = prompt
    for name in names:
        other = with_strength(other, name, 0.0, 0.0)  # without its tag it would act where it is always on
    file = texts[0]
    return Plan((" + ".join(names), file), ("",), (prompt, with_strength(without(other, file), file, 1.0, 1.0)))


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [kept for count in range(len(names) + 1) for kept in itertools.combinations(names, count)]


def _label(names: Sequence[str]) -> str:
    return " + ".join(names) or "none"


_OF_NAMES = {"without": _without, "combinations": _combinations}
_OF_STRENGTHS = {"strengths": _strengths, "alone": _alone, "against": _against}
_OF_TEXTS: Mapping[str, Callable[[str, Sequence[str], Sequence[str]], Plan]] = {
    "blocks": partial(_of_field, with_blocks),
    "regions": partial(_of_field, with_region),
    "schedules": partial(_of_field, with_schedule),
    "sheet": _sheet,
    "instead": _instead,
}


class ComparisonRun:
    """A comparison that is running or done; its pictures are kept until the next one."""

    def __init__(
        self, painter: Painter, request: Txt2Img, made: Plan, recipe: Mapping[str, object] | None = None
    ) -> None:
        self.plan = made
        self._recipe = recipe or {}
        self.id = secrets.token_hex(4)
        """Distinguishes its pictures from pictures of other comparisons."""
        self._painter = painter
        self._request = request
        self.pictures: list[Image.Image | None] = [None] * len(made.prompts)
        self.running = True
        self.cancelled = False
        self.problem = ""
        """Why it ended early, as one sentence."""
        self._at = 0
        self._lock = threading.Lock()
        self._thread = self._new_thread()

    def start(self) -> None:
        """Start the comparison."""
        self._thread.start()

    def grow(self, more: Plan) -> None:
        """Add rows at the end, and make their pictures with the same settings and seed.

        Each is alone: where its prompt has the LoRA of another row, the picture is without it.

        Raises:
            RequestError: the columns are others, a row is there already, or there are too many pictures.
        """
        if more.columns != self.plan.columns or set(more.rows) & set(self.plan.rows):
            raise RequestError("only new rows with the same columns can be added to a comparison")
        if len(self.plan.prompts) + len(more.prompts) > _MAX_CELLS:
            raise RequestError(f"a comparison has no more than {_MAX_CELLS} pictures")
        with self._lock:
            rows, prompts = self.plan.rows + more.rows, self.plan.prompts + self._alone(more)
            self.plan = replace(self.plan, rows=rows, prompts=prompts)
            self.pictures += [None] * len(more.prompts)
            if self.running:
                return
            self.running, self.cancelled, self.problem = True, False, ""
            self._thread = self._new_thread()
        self._thread.start()

    def _alone(self, more: Plan) -> tuple[str | None, ...]:
        prompts = more.prompts
        for other in self.plan.rows:
            prompts = tuple(text and without(text, other) for text in prompts)
        return prompts

    def cancel(self) -> None:
        """Stop at the next step; finished pictures stay."""
        self.cancelled = True
        if self.running:
            self._painter.interrupt()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return {
            "id": self.id,
            "columns": list(self.plan.columns),
            "rows": list(self.plan.rows),
            "prompts": list(self.plan.prompts),
            "done": [picture is not None for picture in self.pictures],
            "running": self.running,
            "cancelled": self.cancelled,
            "problem": self.problem,
            "at": self._at,
            "fraction": self._painter.fraction if self.running else 0.0,
            "seed": self._request.seed,
        }

    def picture(self, cell: int) -> bytes | None:
        """Return one picture as PNG, or None if it is not finished."""
        picture = self.pictures[cell] if 0 <= cell < len(self.pictures) else None
        return None if picture is None else _png(picture, _parameters_of(picture))

    def grid(self) -> bytes:
        """Return all pictures with their labels as one PNG; unfinished pictures are white.

        It has its request as a text, and the parameters of the last picture of the first row.
        """
        row = [_parameters_of(picture) for picture in self.pictures[: len(self.plan.columns)] if picture is not None]
        parameters = next(filter(None, reversed(row)), {})
        return _png(_drawn(self.plan, self.pictures), {**parameters, RECIPE: json.dumps(self._recipe)})

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="remora-compare", daemon=True)

    def _run(self) -> None:
        try:
            while self._goes_on():
                prompt = self.plan.prompts[self._at]
                made = self._difference() if prompt is None else self._painted(prompt)
                if made is None:  # also if the user pressed the host's own button
                    self.cancelled = True
                self.pictures[self._at] = made
        except Exception as error:  # the tab shows every error of a host
            logger.exception("remora: the comparison failed")
            self.problem = str(error) or type(error).__name__
            self.running = False

    def _goes_on(self) -> bool:
        """Go to the next picture that is not made; tell whether there is one, and the comparison goes on."""
        with self._lock:  # rows may be added now
            left = [at for at, picture in enumerate(self.pictures) if picture is None]
            self.running = bool(left) and not self.cancelled
            self._at = left[0] if left else self._at
            return self.running

    def _painted(self, prompt: str) -> Image.Image | None:
        row = self._at // len(self.plan.columns) if self.plan.own_seeds else 0
        request = replace(self._request, prompt=prompt, seed=self._request.seed + row)
        return self._painter.paint(request, lambda: self.cancelled)

    def _difference(self) -> Image.Image | None:
        first, second = self.pictures[self._at - 2 : self._at]
        if first is None or second is None:
            return None
        from PIL import ImageChops  # a start needs it not

        made = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
        made.info.clear()  # it has what the first picture says of itself
        return made


def _drawn(made: Plan, pictures: Sequence[Image.Image | None]) -> Image.Image:
    width, height = next((picture.size for picture in pictures if picture is not None), (_THUMB, _THUMB))
    scale = min(1.0, _THUMB / max(width, height))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    label = _LINE if any(made.rows) else 0
    across = len(made.columns) * (size[0] + _GAP) + _GAP
    down = _LINE + len(made.rows) * (size[1] + label + _GAP) + _GAP
    paper = Image.new("RGB", (across, down), _PAPER)
    from PIL import ImageDraw, ImageFont  # a start needs neither

    pen, font = ImageDraw.Draw(paper), ImageFont.load_default()
    for x, text in enumerate(made.columns):
        pen.text((_GAP + x * (size[0] + _GAP), _GAP), _short(text, size[0]), _INK, font)
    for y, text in enumerate(made.rows):
        top = _LINE + _GAP + y * (size[1] + label + _GAP)
        pen.text((_GAP, top + 2), _short(text, across - 2 * _GAP), _INK, font)
        for x in range(len(made.columns)):
            picture = pictures[y * len(made.columns) + x]
            if picture is not None:
                place = _GAP + x * (size[0] + _GAP), top + label
                paper.paste(picture.convert("RGB").resize(size, Image.Resampling.LANCZOS), place)
    return paper


def _short(text: str, width: int) -> str:
    """Return a label that fits into so many pixels; it is cut before its end, which tells names apart."""
    most = max(7, width // 7)
    if len(text) <= most:
        return text
    end = (most - 3) * 2 // 3
    return f"{text[: most - 3 - end]}...{text[-end:]}"


def _parameters_of(picture: Image.Image) -> dict[str, str]:
    """Return the parameters text that the host wrote for a picture, by its name in a PNG."""
    text = picture.info.get("parameters")
    return {"parameters": text} if isinstance(text, str) else {}


def _png(picture: Image.Image, texts: Mapping[str, str]) -> bytes:
    from PIL.PngImagePlugin import PngInfo  # likewise

    written = PngInfo()
    for name, text in texts.items():
        written.add_text(name, text)
    stream = io.BytesIO()
    picture.save(stream, "PNG", pnginfo=written)
    return stream.getvalue()
