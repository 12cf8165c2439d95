"""What denoisers of all families are called with: names of arguments, sizes in tokens, noise, layers of the prompt."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_INPUTS = ("sample", "hidden_states", "x", "img")
"""What UNets and transformers of diffusers, ldm and Wan, and of Flux' own code, call what they denoise."""
_TIMESTEPS = ("timestep", "timesteps", "t")
"""diffusers', ldm's, and what some wrappers call it."""


def denoised_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the first argument of a call of a denoiser, or the one with a known name."""
    return args[0] if args else next((kwargs[name] for name in _INPUTS if name in kwargs), None)


def timestep_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the timestep as it is: it is the second argument of every UNet, and has a name everywhere else."""
    second = args[1] if len(args) > 1 else None
    return next((kwargs[name] for name in _TIMESTEPS if name in kwargs), second)


def repeats_rows(kwargs: Mapping[str, Any]) -> bool:
    """Tell whether an extension's patch of the cross attention may give it other rows than the call has.

    Regions by attention are made so: the rows of some conditions are there once for each region. Source:
    Haoming02/sd-forge-couple lib_couple/attention_couple.py; ComfyUI comfy/ldm/modules/attention.py, `attn2_patch`.
    """
    patches = _option(kwargs, "patches")
    return bool(patches.get("attn2_patch")) if isinstance(patches, dict) else False


def halves_in(kwargs: Mapping[str, Any], rows: int | None) -> tuple[bool, ...] | None:
    """Return for each row whether it is of the negative prompt; None where the call does not tell.

    ComfyUI's and Forge's sampling says it of the chunks of a call, which are of equal size. Source: ComfyUI
    comfy/samplers.py, `_calc_cond_batch`, "cond_or_uncond".
    """
    chunks = _option(kwargs, "cond_or_uncond")
    if not chunks or rows is None or rows % len(chunks):
        return None
    return tuple(bool(chunk) for chunk in chunks for _ in range(rows // len(chunks)))


def _option(kwargs: Mapping[str, Any], name: str) -> Any:
    options = kwargs.get("transformer_options")
    return options.get(name) if isinstance(options, dict) else None


_TEXT = re.compile(
    r"attn2\.(?:to_[kv]|norm_k)\b|cross_attn\.(?:k|v|kv)(?:_\w+)?\b|\bc_?attn\.to_[kv]\b|\badd_[qkv]_proj|to_add_out"
    r"|norm_added|_context\b|context_|\btxt_|_txt\b|text|caption|\bcap_|y_embedder|time|\bt_embedder|guidance|vector"
    r"|label_emb|add_embedding|encoder_hid|modulation|(?<!_orig)_mod\b"
)
"""Layers of the prompt, the timestep and the like: they may be given as many tokens as the picture has."""


@lru_cache(maxsize=16384)
def is_of_text(path: str) -> bool:
    """Tell whether a layer of a denoiser is given the prompt, the timestep or the like, by its dotted name."""
    return _TEXT.search(path) is not None


def patch_of(model: object) -> int:
    """Return the places along each side of a transformer's token; nearly all have 2."""
    config = getattr(model, "config", None)  # first: diffusers warns when the model is asked for its entries
    for holder in (model,) if config is None else (config, model):
        found = getattr(holder, "patch_size", None)
        if isinstance(found, list | tuple) and found:
            found = found[-1]
        if isinstance(found, int) and found > 0:
            return found
    return 2


def sizes_in_tokens(kwargs: Mapping[str, Any], tokens: int) -> tuple[int, int, int] | None:
    """Return frames, height and width in tokens: by ids (Flux), by shapes (Qwen-Image), or by numbers (LTX)."""
    found = _by_ids(kwargs.get("img_ids")) or _by_shapes(kwargs.get("img_shapes")) or _by_numbers(kwargs)
    return found if found is not None and math.prod(found) <= tokens else None


def _by_ids(ids: Any) -> tuple[int, int, int] | None:
    if getattr(ids, "ndim", 0) not in (2, 3) or ids.shape[-1] < 3:
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


_UPWARDS = frozenset({"Lumina2Transformer2DModel", "MiniMaxH3Transformer3DModel", "ZImageTransformer2DModel"})
"""Classes of diffusers whose timesteps are 0 in pure noise and 1 at the picture, as the pipelines of each pass them."""


def noise_timestep(model: object, timestep: float | None, *, flow: bool) -> float | None:
    """Return the timestep of a call, between 0 and 1000, so that it grows with the noise in each model.

    Args:
        model: which is called.
        timestep: as the model takes it, where fractions are multiplied by 1000, but not 1.0.
        flow: whether the model's timesteps are fractions.
    """
    if timestep is None or not flow:
        return timestep
    timestep = 1000.0 if timestep == 1.0 else timestep
    return 1000.0 - timestep if any(cls.__name__ in _UPWARDS for cls in type(model).__mro__) else timestep


def sigma_of(timestep: float, *, flow: bool) -> float:
    """Return the noise at a timestep between 0 and 1000, for hosts that do not give it.

    The noise of flow models is a fraction. For all others it follows from the schedule that Stable Diffusion is
    trained with, betas of 0.00085 to 0.012, linear in their roots. Source: CompVis/stable-diffusion
    ldm/modules/diffusionmodules/util.py, `make_beta_schedule`.
    """
    if flow:
        return timestep / 1000.0
    low = min(max(math.floor(timestep), 0), 999)
    high = min(low + 1, 999)
    share = min(max(timestep - low, 0.0), 1.0)
    return math.exp((1 - share) * math.log(_SIGMAS[low]) + share * math.log(_SIGMAS[high]))


def _sigmas() -> tuple[float, ...]:
    kept, found = 1.0, []
    for i in range(1000):
        root = 0.00085**0.5 + (0.012**0.5 - 0.00085**0.5) * i / 999
        kept *= 1 - root * root
        found.append(((1 - kept) / kept) ** 0.5)
    return tuple(found)


_SIGMAS = _sigmas()
