"""A1111's conditionings of prompts: each image's under its own LoRAs, and cached for as long as these stay the same.

The host encodes the prompts of a batch at once, each text once, and keeps the result as long as a key is equal, in
which the tags of the batch's first prompt stand. The text encoders' share of the tags is what matters, of all images.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any

from ..text.tag import Pass
from ._extra_networks import of_others
from ._wraps import Wraps
from .base import Remora


class Conditionings:
    """The host's way to them, wrapped.

    Args:
        remora: who serves now; None while the host serves the tags itself.
        depends: what a conditioning depends on besides.
        pass_of: what the host does now, by its processing object.
    """

    def __init__(
        self, remora: Callable[[], Remora | None], depends: Callable[[], Hashable], pass_of: Callable[[Any], Pass]
    ) -> None:
        self._remora = remora
        self._depends = depends
        self._pass_of = pass_of

    def wrap(self, wraps: Wraps, processing: ModuleType) -> None:
        """Be asked from now on."""
        wraps.put(processing.StableDiffusionProcessing, "cached_params", self._key)
        wraps.put(processing.StableDiffusionProcessing, "get_conds_with_caching", self._conditionings)

    def _key(
        self,
        original: Callable[..., Any],
        p: Any,
        prompts: Any,
        steps: Any,
        extra_network_data: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        remora = self._remora()
        if remora is not None:
            extra_network_data = (remora.text_key(), self._depends(), of_others(extra_network_data))
        return original(p, prompts, steps, extra_network_data, *args, **kwargs)

    def _conditionings(
        self, original: Callable[..., Any], p: Any, function: Any, prompts: Any, *args: Any, **kwargs: Any
    ) -> Any:
        remora = self._remora()
        if remora is not None:
            remora.follow_model(self._pass_of(p))  # a refiner has its prompts encoded before it is called
            keys = remora.text_keys()
            if len(set(keys)) > 1 and len(keys) == len(prompts):
                function = _by_stack(function, keys, remora)
        return original(p, function, prompts, *args, **kwargs)


def _by_stack(function: Callable[..., Any], keys: Sequence[Hashable], remora: Remora) -> Callable[..., Any]:
    """The same function, which encodes prompts by prompts of images with the same LoRAs."""

    def encode(model: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        groups: dict[Hashable, list[int]] = {}
        for image, key in enumerate(keys):
            groups.setdefault(key, []).append(image)
        found: list[tuple[list[int], Any]] = []
        try:
            for images in groups.values():
                remora.image(images[0])
                found.append((images, function(model, _chosen(prompts, images), *args, **kwargs)))
        finally:
            remora.image(0)
        return _together(found, len(keys))

    return encode


def _chosen(prompts: Any, images: Sequence[int]) -> Any:
    """Some of the prompts, in a list of the same kind, which knows more than its items."""
    chosen = [prompts[image] for image in images]
    if type(prompts) is list:
        return chosen
    same = type(prompts)(chosen)
    vars(same).update(vars(prompts))
    return same


def _together(found: Sequence[tuple[list[int], Any]], count: int) -> Any:
    """The results of all groups as one: schedules in a list, or in the object that has them as its `batch`."""
    every: list[Any] = [None] * count
    for images, result in found:
        for image, one in zip(images, getattr(result, "batch", result), strict=True):
            every[image] = one
    first = found[0][1]
    if not hasattr(first, "batch"):
        return every
    return type(first)(shape=(count,), batch=every)
