"""The fields of A1111's text-to-image request: the supported ones, and the ones too important to ignore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..generation.options import TABLE, checked
from ..hosts.txt2img import RequestError, Txt2Img

N = TypeVar("N", int, float)

_CLIP_SKIP = "CLIP_stop_at_last_layers"
_MODEL = "sd_model_checkpoint"

# Field -> values without effect; any other value asks for a missing feature, and is refused rather than ignored.
# Fields that only refine one of these (hr_scale, subseed, script_args, ...) are ignored.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "enable_hr": (False, None),
    "init_images": ([], None),
    "alwayson_scripts": ({}, None),
    "script_name": ("", "None", None),
    "styles": ([], None),
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
}
_IGNORED_OVERRIDES = {"samples_format": ("png",)}
_OWN = frozenset(option.key for option in TABLE)


@dataclass(frozen=True)
class Asked:
    """A parsed request."""

    request: Txt2Img
    send_images: bool
    save_images: bool


def read_request(payload: Mapping[str, Any], clip_skip: int, is_current: Callable[[object], bool]) -> Asked:
    """Parse a request; like A1111, ignore unknown fields.

    Args:
        clip_skip: the default for `override_settings`.
        is_current: whether a name means the loaded model.

    Raises:
        RequestError: a value of the wrong type, or an unsupported feature.
    """
    for name, harmless in _UNSUPPORTED.items():
        if name in payload and payload[name] not in harmless:
            raise RequestError(f"{name}={payload[name]!r:.60} is not supported here")
    overrides = payload.get("override_settings") or {}
    if not isinstance(overrides, Mapping):
        raise RequestError("override_settings must be an object")
    request = Txt2Img(
        prompt=_text(payload, "prompt"),
        negative_prompt=_text(payload, "negative_prompt"),
        steps=read_number(payload, "steps", 50, int),
        # the two names A1111 has had; the newer one wins
        sampler=_text(payload, "sampler_name") or _text(payload, "sampler_index") or "Euler",
        schedule=_text(payload, "scheduler") or "Automatic",
        cfg_scale=read_number(payload, "cfg_scale", 7.0, float),
        width=read_number(payload, "width", 512, int),
        height=read_number(payload, "height", 512, int),
        seed=read_number(payload, "seed", -1, int),
        batch_size=read_number(payload, "batch_size", 1, int),
        n_iter=read_number(payload, "n_iter", 1, int),
        clip_skip=read_number(overrides, _CLIP_SKIP, clip_skip, int),
        settings=_own_settings(overrides, is_current),
    )
    return Asked(request, _flag(payload, "send_images", True), _flag(payload, "save_images", False))


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


def _text(payload: Mapping[str, Any], name: str) -> str:
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
        exact = not isinstance(value, bool) and number == float(value)
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        what = "a whole number" if kind is int else "a number"
        raise RequestError(f"{name} must be {what}, not {value!r:.60}")
    return number


def _flag(payload: Mapping[str, Any], name: str, default: bool) -> bool:
    value = payload.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, not {value!r:.60}")
    return value
