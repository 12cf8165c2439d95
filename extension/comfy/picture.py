"""Text as a picture of ComfyUI."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_SIZE, _MARGIN, _SPACING = 16, 12, 6
_WIDEST = 200
"""In characters; longer lines are broken."""


def picture_of(text: str) -> Tensor:
    """Return a text as an IMAGE, (1, height, width, 3), with black letters on white."""
    lines = [line[i : i + _WIDEST] for line in text.splitlines() for i in range(0, len(line), _WIDEST)]
    font, text = ImageFont.load_default(_SIZE), "\n".join(lines)
    box = ImageDraw.Draw(Image.new("L", (1, 1))).multiline_textbbox((0, 0), text, font, spacing=_SPACING)
    page = Image.new("RGB", (int(box[2]) + 2 * _MARGIN, int(box[3]) + 2 * _MARGIN), "white")
    ImageDraw.Draw(page).multiline_text((_MARGIN, _MARGIN), text, "black", font, spacing=_SPACING)
    numbers = torch.frombuffer(bytearray(page.tobytes()), dtype=torch.uint8)
    return numbers.reshape(1, page.height, page.width, 3).to(torch.float32) / 255
