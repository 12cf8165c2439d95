"""Which places of the picture the entries of a layer's input are, worked out from a model's call and a tensor's shape.

A UNet's layers have a pixel of the latents, or 2 x 2, 4 x 4 … of them, for each token or each place of a map. A
transformer has one token for each patch, in some layers together with those of the prompt, before or behind the
picture's. Whatever else a layer is given, such as the prompt's tokens for keys and values, is of no place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .model_call import Call

_TEXT = re.compile(
    r"attn2\.(?:to_[kv]|norm_k)\b|cross_attn\.(?:k|v|kv)(?:_\w+)?\b|\bc_?attn\.to_[kv]\b|\badd_[qkv]_proj|to_add_out"
    r"|norm_added|_context\b|context_|\btxt_|_txt\b|text|caption|\bcap_|y_embedder|time|\bt_embedder|guidance|vector"
    r"|label_emb|add_embedding|encoder_hid|modulation|(?<!_orig)_mod\b"
)
"""Layers of the prompt, the timestep and the like: they may be given as many tokens as the picture has."""
_SCALES = tuple(2**i for i in range(8))


@dataclass(frozen=True, slots=True)
class Grid:
    """What the entries of a layer's input are, in order."""

    height: int
    width: int
    frames: int = 1
    """Whole pictures, one after the other."""
    before: int = 0
    """Tokens of no place in front of them."""
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """What a call of a model computes.

    Attributes:
        rows: of the call.
        frames: of each row; 1 for still pictures.
        height: of the latents, or in tokens where the call has tokens.
        width: likewise.
        patch: places along each side that make one token; 0 where layers differ, as in a UNet.
        references: tokens of other pictures behind the picture's own.
        image_first: whether the tokens of the prompt are behind the picture's where they are together.
    """

    rows: int
    frames: int
    height: int
    width: int
    patch: int = 0
    references: int = 0
    image_first: bool = False

    @classmethod
    def of(cls, call: Call, patch: int, *, image_first: bool = False) -> Picture | None:
        """That of a call; None where the call does not tell its height and width.

        Args:
            call: that begins.
            patch: see above, of latents that are no tokens yet.
            image_first: see above.
        """
        x = call.denoised
        if isinstance(x, list | tuple):  # a tensor (channels, frames, height, width) for each picture
            shapes = {tuple(one.shape) for one in x if isinstance(one, Tensor)}
            x = x[0].unsqueeze(0) if len(shapes) == 1 else None
        if not isinstance(x, Tensor) or call.rows is None:
            return None
        if x.ndim in (4, 5):
            frames = x.shape[2] if x.ndim == 5 else 1
            return cls(call.rows, frames, x.shape[-2], x.shape[-1], patch, image_first=image_first)
        sizes = _told(call.kwargs, x.shape[1]) if x.ndim == 3 else None
        if sizes is None:
            return None
        frames, height, width = sizes
        others = x.shape[1] - frames * height * width
        return cls(call.rows, frames, height, width, 1, others, image_first)

    def of_map(self, shape: Sequence[int]) -> Grid | None:
        """The places of what has its channels second, (rows, channels, [frames,] height, width)."""
        if shape[0] not in (self.rows, self.rows * self.frames) or len(shape) not in (4, 5):
            return None
        return Grid(shape[-2], shape[-1])

    def of_tokens(self, count: int) -> Grid | None:
        """The places of this many tokens; None where they are none of the picture."""
        if self.patch:
            return self._joint(count)
        return next((Grid(*size) for size in self._sizes() if math.prod(size) == count), None)

    def _joint(self, count: int) -> Grid | None:
        height, width = -(-self.height // self.patch), -(-self.width // self.patch)
        own = height * width * self.frames
        others = count - own
        if others < 0:
            return None
        if others in (0, self.references):
            return Grid(height, width, self.frames, 0, others)
        if self.image_first:
            return Grid(height, width, self.frames, 0, others)
        return Grid(height, width, self.frames, others - self.references, self.references)

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Heights and widths that layers of a UNet may have, rounded either way."""
        for scale in _SCALES:
            yield -(-self.height // scale), -(-self.width // scale)
            yield max(self.height // scale, 1), max(self.width // scale, 1)


def is_of_text(path: str) -> bool:
    """Whether a layer of a denoiser is given the prompt, the timestep or the like, by its dotted name."""
    return _TEXT.search(path) is not None


def patch_of(model: nn.Module) -> int:
    """Of a transformer; 2 is what nearly all have."""
    config = getattr(model, "config", None)  # first: diffusers warns of what is in it and asked of the model
    for holder in (model,) if config is None else (config, model):
        found = getattr(holder, "patch_size", None)
        if isinstance(found, list | tuple) and found:
            found = found[-1]
        if isinstance(found, int) and found > 0:
            return found
    return 2


def _told(kwargs: Mapping[str, Any], tokens: int) -> tuple[int, int, int] | None:
    """Frames, height and width in tokens, of a call whose latents are tokens already.

    By ids of theirs (Flux), by shapes (Qwen-Image), or by numbers (LTX).
    """
    found = _by_ids(kwargs) or _by_shapes(kwargs.get("img_shapes")) or _by_numbers(kwargs)
    return found if found is not None and math.prod(found) <= tokens else None


def _by_ids(kwargs: Mapping[str, Any]) -> tuple[int, int, int] | None:
    ids = kwargs.get("img_ids")
    if not isinstance(ids, Tensor) or ids.ndim not in (2, 3) or ids.shape[-1] < 3:
        return None
    ids = ids[0] if ids.ndim == 3 else ids  # (tokens, which picture and where in it)
    own = ids[ids[:, 0] == ids[0, 0]]
    height, width = (int((own[:, i].max() - own[:, i].min()).item()) + 1 for i in (1, 2))
    return (1, height, width) if height * width == own.shape[0] else None


def _by_shapes(shapes: object) -> tuple[int, int, int] | None:
    while isinstance(shapes, list | tuple) and shapes and isinstance(shapes[0], list | tuple):
        shapes = shapes[0]  # of the first row, of the picture and not of its references
    if isinstance(shapes, list | tuple) and len(shapes) == 3 and all(isinstance(one, int) for one in shapes):
        return shapes[0], shapes[1], shapes[2]
    return None


def _by_numbers(kwargs: Mapping[str, Any]) -> tuple[int, int, int] | None:
    frames, height, width = (kwargs.get(name) for name in ("num_frames", "height", "width"))
    if isinstance(height, int) and isinstance(width, int):
        return frames if isinstance(frames, int) else 1, height, width
    return None
