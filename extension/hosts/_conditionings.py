"""A1111's conditionings of prompts: each image's under its own LoRA, and cached while these stay the same.

The host encodes the prompts of a batch at once, each text once, and caches the result under a key with the tags of
the first prompt only. Here the key has the tags of all images, as far as they change text encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any

from ..text.tag import Pass
from ._extra_networks import of_others
from ._prompt_tags import without_negative
from ._wraps import Wraps
from .base import Remora


class Conditionings:
    """Wraps the host's function that encodes prompts.

    Args:
        remora: returns Remora, or None while the host applies the tags itself.
        depends: returns what else a conditioning depends on.
        pass_of: returns the present pass of a processing object.
        check: called with the processing object before its prompts are encoded; may raise.
        woken: returns whether the host's own LoRA works; used while the host applies the tags.
    """

    def __init__(
        self,
        remora: Callable[[], Remora | None],
        depends: Callable[[], Hashable],
        pass_of: Callable[[Any], Pass],
        check: Callable[[Any], None],
        woken: Callable[[], bool],
    ) -> None:
        self._remora = remora
        self._depends = depends
        self._check = check
        self._pass_of = pass_of
        self._woken = woken

    def wrap(self, wraps: Wraps, processing: ModuleType) -> None:
        """Install the wrapper."""
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
        elif not self._woken():
            extra_network_data = (extra_network_data, object())  # equal to no other: it is not used again
        return original(p, prompts, steps, extra_network_data, *args, **kwargs)

    def _conditionings(
        self, original: Callable[..., Any], p: Any, function: Any, prompts: Any, *args: Any, **kwargs: Any
    ) -> Any:
        remora = self._remora()
        if remora is not None:
            self._check(p)
            remora.follow_model(self._pass_of(p))  # the prompts of a refiner are encoded before it is called
            if getattr(prompts, "is_negative_prompt", False):
                prompts = _without_tags(prompts, remora)
            keys = remora.text_keys()
            if len(set(keys)) > 1 and len(keys) == len(prompts):
                function = _by_stack(function, keys, remora)
        return original(p, function, prompts, *args, **kwargs)


def _by_stack(function: Callable[..., Any], keys: Sequence[Hashable], remora: Remora) -> Callable[..., Any]:
    """Return a function that encodes the prompts of images with equal LoRA together."""

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
            remora.image(None)
        return _together(found, len(keys))

    return encode


def _chosen(prompts: Any, images: Sequence[int]) -> Any:
    """Return some of the prompts, in a list of the same class, which has attributes."""
    return _alike(prompts, [prompts[image] for image in images])


def _without_tags(prompts: Any, remora: Remora) -> Any:
    """Return negative prompts without their tags, if these mean something."""
    found = without_negative(prompts, on=bool(remora.grammar))
    return prompts if found == list(prompts) else _alike(prompts, found)


def _alike(prompts: Any, texts: list[str]) -> Any:
    if type(prompts) is list:
        return texts
    same = type(prompts)(texts)
    vars(same).update(vars(prompts))
    return same


def _together(found: Sequence[tuple[list[int], Any]], count: int) -> Any:
    """Return the results of all groups as one: schedules in a list, or an object with a `batch` of them."""
    every: list[Any] = [None] * count
    for images, result in found:
        for image, one in zip(images, getattr(result, "batch", result), strict=True):
            every[image] = one
    first = found[0][1]
    if not hasattr(first, "batch"):
        return every
    return type(first)(shape=(count,), batch=every)
