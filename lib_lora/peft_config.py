"""Alpha where PEFT keeps it: not among the tensors but in a configuration, in the header or beside the file.

Sources: huggingface/peft tuners/lora/config.py (`lora_alpha`, `alpha_pattern`, `use_rslora`) and its
`utils/other.py:get_pattern_key`; huggingface/diffusers loaders/lora_base.py, which packs one configuration per
component into the header's `lora_adapter_metadata` as `unet.lora_alpha`, `text_encoder.r` and so on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from .adapters.base import Alpha
from .errors import FileError
from .file import AdapterFile, adapter_config

HEADER_KEY = "lora_adapter_metadata"


class PeftConfig:
    """The configurations that belong to one file."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    @classmethod
    def of(cls, file: AdapterFile) -> PeftConfig:
        """The header's configuration, else `adapter_config.json` beside the file, else an empty one.

        Raises:
            FileError: one is there but cannot be read.
        """
        text = file.metadata.get(HEADER_KEY)
        if text is None:
            return cls(adapter_config(file.path) or {})
        try:
            values = json.loads(text)
        except ValueError as error:
            raise FileError(file.path, f"metadata {HEADER_KEY} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise FileError(file.path, f"metadata {HEADER_KEY} is no JSON object")
        return cls(values)

    def values(self, component: str | None) -> Mapping[str, object]:
        """What the configuration says of one component, without the component's name."""
        start = f"{component}."
        own = {key[len(start) :]: value for key, value in self._values.items() if key.startswith(start)}
        return own or self._values

    def alpha(self, component: str | None, module: str) -> Alpha:
        """Alpha of one layer; `Alpha(None)` where no configuration speaks of it."""
        prefix = "" if component is None or "lora_alpha" in self._values else f"{component}."
        value = self._values.get(f"{prefix}lora_alpha")
        patterns = self._values.get(f"{prefix}alpha_pattern")
        if isinstance(patterns, dict):
            for pattern, special in patterns.items():
                if _matches(str(pattern), module):
                    value = special
                    break
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Alpha()
        return Alpha(float(value), rank_stabilized=self._values.get(f"{prefix}use_rslora") is True)


def _matches(pattern: str, module: str) -> bool:
    try:
        return re.fullmatch(rf"(.*\.)?({pattern})", module) is not None
    except re.error:
        return module == pattern or module.endswith(f".{pattern}")
