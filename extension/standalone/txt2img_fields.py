"""The fields of A1111's requests for pictures: the supported ones, and the ones too important to ignore."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..generation.options import TABLE, checked
from ..hosts.txt2img import MAX_BATCH, MAX_SIDE, MAX_SOURCE_PIXELS, SIDE_STEP, Hires, RequestError, Source, Txt2Img
from .pnginfo import read_picture

if TYPE_CHECKING:
    from PIL.Image import Image

N = TypeVar("N", int, float)

_CLIP_SKIP = "CLIP_stop_at_last_layers"
_MODEL = "sd_model_checkpoint"

# Field -> values without effect; any other value asks for a missing feature, and is refused rather than ignored.
# Fields that only refine one of these (subseed, script_args, ...) are ignored.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "script_name": ("", "None", None),
    "restore_faces": (False, None),
    "tiling": (False, None),
    "subseed_strength": (0, None),
    "seed_resize_from_w": (0, -1, None),
    "seed_resize_from_h": (0, -1, None),
    "refiner_checkpoint": ("", "None", None),
    "firstpass_image": (None,),
    "infotext": ("", None),
    "eta": (1, None),
    "s_churn": (0, None),
    "s_tmin": (0, None),
    "s_noise": (1, None),
    "s_min_uncond": (0, None),
    "firstphase_width": (0, None),
    "firstphase_height": (0, None),
    "initial_noise_multiplier": (1, None),
    "latent_mask": ("", None),
    "mask_round": (True, None),
}
_OF_IMAGES = ("init_images", "mask")
_OF_TEXT = ("enable_hr",)
_SAME = {
    "hr_sampler_name": "Use same sampler",
    "hr_scheduler": "Use same scheduler",
    "hr_checkpoint_name": "Use same checkpoint",
}
"""What A1111's page sends for a hires pass like the first one."""
_IGNORED_OVERRIDES: Mapping[str, tuple[object, ...]] = {
    "samples_format": ("png",),
    "sd_vae": ("Automatic", "None", "", None),  # the one of the model
}
_OWN = frozenset(option.key for option in TABLE)


@dataclass(frozen=True)
class Asked:
    """A parsed request."""

    request: Txt2Img
    send_images: bool
    save_images: bool
    notes: tuple[str, ...] = ()
    """For the user: what the request names and A1111 ignores where it is missing, as styles."""


def names_model(payload: Mapping[str, Any]) -> bool:
    """Tell whether a request names a model, which may be by its hash."""
    overrides = payload.get("override_settings")
    return bool(payload.get("hr_checkpoint_name")) or (isinstance(overrides, Mapping) and _MODEL in overrides)


def read_request(
    payload: Mapping[str, Any], clip_skip: int, is_current: Callable[[object], bool], *, from_images: bool = False
) -> Asked:
    """Parse a request; like A1111, ignore unknown fields.

    Args:
        payload: the request.
        clip_skip: the default for `override_settings`.
        is_current: whether a name means the loaded model.
        from_images: whether it is image to image.

    Raises:
        RequestError: a value of the wrong type, or an unsupported feature.
    """
    _refuse_unsupported(payload, from_images=from_images)
    overrides = payload.get("override_settings") or {}
    if not isinstance(overrides, Mapping):
        raise RequestError("override_settings must be an object")
    request = Txt2Img(
        prompt=read_text(payload, "prompt"),
        negative_prompt=read_text(payload, "negative_prompt"),
        steps=read_number(payload, "steps", 50, int),
        # the two names A1111 has had; the newer one wins
        sampler=read_text(payload, "sampler_name") or read_text(payload, "sampler_index") or "Euler",
        schedule=read_text(payload, "scheduler") or "Automatic",
        cfg_scale=read_number(payload, "cfg_scale", 7.0, float),
        width=read_number(payload, "width", 512, int),
        height=read_number(payload, "height", 512, int),
        seed=read_number(payload, "seed", -1, int),
        batch_size=read_number(payload, "batch_size", 1, int),
        n_iter=read_number(payload, "n_iter", 1, int),
        clip_skip=read_number(overrides, _CLIP_SKIP, clip_skip, int),
        settings=_own_settings(overrides, is_current),
    )
    if from_images:
        source = _source(payload)
        request = replace(request, source=source, batch_size=_batch_size(request, source))
    elif read_flag(payload, "enable_hr", False):
        request = replace(request, hires=_hires(payload, request, is_current))
    send, save = read_flag(payload, "send_images", True), read_flag(payload, "save_images", False)
    return Asked(request, send, save, _styles(payload))


def _refuse_unsupported(payload: Mapping[str, Any], *, from_images: bool) -> None:
    for name, harmless in _UNSUPPORTED.items():
        if name in payload and payload[name] not in harmless:
            raise RequestError(f"{name}={payload[name]!r:.60} is not supported here")
    for name in _OF_TEXT if from_images else _OF_IMAGES:
        if payload.get(name):
            other = "txt2img" if from_images else "img2img"
            raise RequestError(f"{name} is a field of {other}; send the request to /sdapi/v1/{other}")
    scripts = payload.get("alwayson_scripts") or {}
    if not isinstance(scripts, Mapping):
        raise RequestError("alwayson_scripts must be an object")
    if scripts:
        raise RequestError(
            f"alwayson_scripts: {next(iter(scripts)):.60} is not here; the embedded web UI has no scripts"
        )


def _styles(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each style: A1111 makes the picture without the ones it does not have."""
    styles = payload.get("styles") or []
    if not isinstance(styles, list) or not all(isinstance(name, str) for name in styles):
        raise RequestError("styles must be a list of names")
    return tuple(f"style {name!r:.60} has no effect: the embedded web UI has no styles" for name in styles)


def _hires(payload: Mapping[str, Any], first: Txt2Img, is_current: Callable[[object], bool]) -> Hires:
    same = {name: "" if (text := read_text(payload, name)) == usual else text for name, usual in _SAME.items()}
    if same["hr_checkpoint_name"] and not is_current(same["hr_checkpoint_name"]):
        raise RequestError(f"hr_checkpoint_name: model {same['hr_checkpoint_name']!r:.60} is not loaded")
    scale = read_number(payload, "hr_scale", 2.0, float)
    width, height = read_number(payload, "hr_resize_x", 0, int), read_number(payload, "hr_resize_y", 0, int)
    if not 0 < scale <= MAX_SIDE:
        raise RequestError(f"hr_scale is {scale:g}; it must be above 0, and at most {MAX_SIDE}")
    if not width and not height:
        width, height = int(first.width * scale), int(first.height * scale)
    return Hires(
        width=(width or height * first.width // max(1, first.height)) // SIDE_STEP * SIDE_STEP,
        height=(height or width * first.height // max(1, first.width)) // SIDE_STEP * SIDE_STEP,
        upscaler=read_text(payload, "hr_upscaler") or "Latent",
        steps=read_number(payload, "hr_second_pass_steps", 0, int) or first.steps,
        denoising=read_number(payload, "denoising_strength", 0.75, float),
        prompt=read_text(payload, "hr_prompt"),
        negative_prompt=read_text(payload, "hr_negative_prompt"),
        sampler=same["hr_sampler_name"],
        schedule=same["hr_scheduler"],
    )


def _source(payload: Mapping[str, Any]) -> Source:
    sent = payload.get("init_images")
    if not isinstance(sent, list) or not sent:
        raise RequestError("init_images must be a list with at least one picture as base64")
    if len(sent) > MAX_BATCH:  # before they are decoded
        raise RequestError(f"init_images has {len(sent)} pictures; a batch has at most {MAX_BATCH}")
    blur = [read_number(payload, f"mask_blur_{axis}", 4, int) for axis in "xy"]
    if payload.get("mask_blur") is None and blur[0] != blur[1]:
        raise RequestError("mask_blur_x and mask_blur_y must be equal here")
    return Source(
        images=tuple(_pictures(sent)),
        denoising=read_number(payload, "denoising_strength", 0.75, float),
        resize_mode=read_number(payload, "resize_mode", 0, int),
        mask=read_picture(payload["mask"], "mask") if payload.get("mask") else None,
        blur=read_number(payload, "mask_blur", blur[0], int),
        inverted=read_flag(payload, "inpainting_mask_invert", False),
        content=read_number(payload, "inpainting_fill", 0, int),
        only_masked=read_flag(payload, "inpaint_full_res", True),
        padding=read_number(payload, "inpaint_full_res_padding", 0, int),
    )


def _pictures(sent: Sequence[object]) -> Iterator[Image]:
    """Decode the pictures to start from, as long as they are not too large together."""
    pixels = 0
    for number, picture in enumerate(sent):
        image = read_picture(picture, f"init_images[{number}]")
        pixels += image.width * image.height
        if pixels > MAX_SOURCE_PIXELS:
            raise RequestError(f"init_images: the pictures have more than {MAX_SOURCE_PIXELS:,} pixels together")
        yield image


def _batch_size(request: Txt2Img, source: Source) -> int:
    """Return the batch size, as A1111: several pictures make a batch of their own."""
    count = len(source.images)
    return count if 1 < count < request.batch_size else request.batch_size


def _own_settings(overrides: Mapping[str, Any], is_current: Callable[[object], bool]) -> dict[str, object]:
    """Return Remora's settings; refuse others that are not supported."""
    own: dict[str, object] = {}
    for key, value in overrides.items():
        if key in _OWN:
            try:
                own[key] = checked(key, value)
            except ValueError as error:
                raise RequestError(f"override_settings: {error}") from error
        elif key == _MODEL and not is_current(value):
            raise RequestError(
                f"override_settings: model {value!r:.60} is not loaded; it is chosen when the program starts"
            )
        elif key not in (_MODEL, _CLIP_SKIP) and value not in _IGNORED_OVERRIDES.get(key, ()):
            raise RequestError(f"override_settings: {key:.60} is not supported here")
    return own


def read_text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text, not {value!r:.60}")
    return value


def read_number(payload: Mapping[str, Any], name: str, default: N, kind: type[N]) -> N:
    value = payload.get(name)
    if value is None:
        return default
    try:
        number = kind(value)
        exact = not isinstance(value, bool) and number == float(value) and math.isfinite(number)
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        what = "a whole number" if kind is int else "a number"
        raise RequestError(f"{name} must be {what}, not {value!r:.60}")
    return number


def read_flag(payload: Mapping[str, Any], name: str, default: bool) -> bool:
    value = payload.get(name)
    if value is None:
        return default
    if value not in (False, True):  # 0 and 1 equal these
        raise RequestError(f"{name} must be true or false, not {value!r:.60}")
    return bool(value)
