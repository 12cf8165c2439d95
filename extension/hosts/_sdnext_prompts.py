"""SD.Next's text encoders: each image of a batch is encoded with its own LoRA, and no stale result is used.

Where a pipeline encodes all prompts in one call, its rows are the images', which the engine knows.

Two caches hold encoded text. `PromptEmbedder` encodes the prompts of a batch one by one, copies the result of an equal
one, and has a cache whose key is all tags of one prompt. The key of `sd_hijack_te.prompt_cache` is the text alone.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

from ._extra_networks import of_others
from ._webui_modules import module
from ._wraps import Wraps
from .base import Remora

logger = logging.getLogger(__name__)

_NOTHING: Hashable = ()  # the key of text encoders without LoRA


class Prompts:
    """Wraps the host's `modules.prompt_parser_diffusers` and `modules.sd_hijack_te`.

    Args:
        remora: returns Remora, or None while the built-in applies the tags.
    """

    def __init__(self, remora: Callable[[], Remora | None]) -> None:
        self._remora = remora
        self._key = _NOTHING

    def wrap(self, wraps: Wraps) -> None:
        """Install the wrappers; idempotent."""
        embedder = importlib.import_module("modules.prompt_parser_diffusers").PromptEmbedder
        ours: dict[str, Callable[..., Any]] = {
            "checkcache": self._check_cache,
            "encode": self._encode,
            "clone_embeds": self._clone,
        }
        for name, around in ours.items():
            if hasattr(embedder, name):
                wraps.put(embedder, name, around)
            else:
                text = "remora: this SD.Next has no PromptEmbedder.%s; LoRA in text encoders may be stale"
                logger.warning(text, name)

    def in_force(self, key: Hashable = _NOTHING) -> None:
        """Set the key of what changes the text encoders from now on."""
        if key == self._key:
            return
        self._key = key
        hijack = module("modules.sd_hijack_te")
        if hijack is not None:
            hijack.prompt_cache.cache.clear()

    def _check_cache(self, original: Callable[..., Any], embedder: Any, p: Any) -> Any:
        remora = self._remora()
        return original(embedder, p if remora is None else _Keyed(p, remora.text_key()))

    def _encode(
        self, original: Callable[..., Any], embedder: Any, pipe: Any, positive: Any, negative: Any, image: int
    ) -> Any:
        remora = self._remora()
        if remora is None:
            return original(embedder, pipe, positive, negative, image)
        remora.image(image)
        try:
            return original(embedder, pipe, positive, negative, image)
        finally:
            remora.image(None)

    def _clone(self, original: Callable[..., Any], embedder: Any, image: int, like: int) -> Any:
        remora = self._remora()
        keys = (_NOTHING,) if remora is None else remora.text_keys()
        if len(keys) == 1 or keys[image] == keys[like]:
            return original(embedder, image, like)
        if embedder.scheduled_prompt:
            return embedder.scheduled_encode(embedder.pipe, image)
        return embedder.encode(embedder.pipe, embedder.prompts[image], embedder.negative_prompts[image], image)


class _Keyed:
    """A processing object that shows a cache a key in place of its LoRA tags."""

    def __init__(self, p: Any, key: Hashable) -> None:
        self._p = p
        others = of_others(p.network_data)
        self.network_data = {**others, "remora": [SimpleNamespace(items=[key])]}
        self.lora_apply_te = True  # the key tells it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._p, name)
