"""Text conditionings in the Forge family: encoded per distinct stack, and cached by what they depend on.

The host encodes each distinct text of a batch once, and keeps the result as long as the prompts, a few settings and the
tags of the first prompt are the same. With Remora it depends on the strengths that each image's text encoders have
instead: equal texts of two images may differ, and another strength for the UNet alone changes nothing.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._extra_networks import KINDS
from ._forge_wraps import Wraps

if TYPE_CHECKING:
    from .base import Remora

logger = logging.getLogger(__name__)

_TAGS = 3
"""Place of the tags among the arguments of `cached_params`, after the object, the prompts and the steps."""


class TextConditions:
    """`get_conds_with_caching` and `cached_params` of the host's processing objects.

    Args:
        processing: its module.
        remora: who knows what is in force.
    """

    def __init__(self, processing: ModuleType, remora: Callable[[], Remora]) -> None:
        self._class = processing.StableDiffusionProcessing
        self._remora = remora
        self._wraps = Wraps()

    def take_over(self) -> None:
        """Have a say from now on; harmless when done already."""
        self._wraps.put(self._class, "get_conds_with_caching", self._conditions)
        self._wraps.put(self._class, "cached_params", self._cached_params)

    def give_back(self) -> None:
        """Leave the host as it was."""
        self._wraps.give_back()

    def _cached_params(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        remora = self._remora()
        if not remora.enabled:
            return original(*args, **kwargs)
        if "extra_network_data" in kwargs:
            kwargs["extra_network_data"] = _without_ours(kwargs["extra_network_data"])
        elif len(args) > _TAGS:
            args = (*args[:_TAGS], _without_ours(args[_TAGS]), *args[_TAGS + 1 :])
        params = original(*args, **kwargs)
        return (*params, ("remora", remora.text_key())) if isinstance(params, tuple) else params

    def _conditions(
        self,
        original: Callable[..., Any],
        p: Any,
        function: Callable[..., Any],
        prompts: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        remora = self._remora()
        if not remora.enabled:
            return original(p, function, prompts, *args, **kwargs)
        remora.follow_model()  # the refiner and the second pass may have brought another one
        keys = remora.text_keys()
        if len(set(keys)) > 1:
            if len(prompts) != len(keys):
                text = "remora: %d prompts are encoded for a batch of %d images; all with the LoRAs of the first"
                logger.warning(text, len(prompts), len(keys))
            else:
                function = _per_stack(function, keys, remora)
        return original(p, function, prompts, *args, **kwargs)


def _without_ours(tags: Any) -> Any:
    """The tags of one prompt but for those that Remora serves; what they do to a text is in Remora's own key."""
    if not isinstance(tags, dict):
        return tags
    return {kind: params for kind, params in tags.items() if kind not in KINDS}


def _per_stack(function: Callable[..., Any], keys: Sequence[Hashable], remora: Remora) -> Callable[..., Any]:
    """A function that encodes the prompts of images whose text encoders are alike together, and no others."""
    together: dict[Hashable, list[int]] = {}
    for image, key in enumerate(keys):
        together.setdefault(key, []).append(image)

    def encode(model: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        parts: dict[int, Any] = {}
        try:
            for images in together.values():
                remora.image(images[0])
                encoded = function(model, _some(prompts, images), *args, **kwargs)
                parts.update(zip(images, _schedules(encoded), strict=True))
        finally:
            remora.image(0)
        every = [parts[image] for image in range(len(keys))]
        if isinstance(encoded, list):
            return every
        whole = copy.copy(encoded)
        whole.batch, whole.shape = every, (len(every),)
        return whole

    return encode


def _some(prompts: Any, images: Sequence[int]) -> Any:
    """Some of the prompts, in a list of the host's own kind, which knows sizes besides."""
    some = copy.copy(prompts)
    some[:] = [prompts[image] for image in images]
    return some


def _schedules(encoded: Any) -> Any:
    """What each prompt became: the result itself, or the `batch` of one that prompts with AND have."""
    return encoded if isinstance(encoded, list) else encoded.batch
