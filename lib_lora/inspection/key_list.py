"""What of an adapter file may be shown to others: its keys, shapes and the metadata that tell how to read it.

Other metadata may hold captions, names of folders and of people, and pictures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import nn

from ..files.file import AdapterFile
from ..naming.index import walk
from ..report import NetworkReport

_TOLD = re.compile(
    r"ss_(base_model_version|v2|network_(module|dim|alpha|args|dropout))"
    r"|modelspec\.(architecture|implementation|prediction_type)"
    r"|lora_adapter_metadata|lycoris_config|format|software|rank|alpha"
)
_PATH = re.compile(r"""(?<![^\s"'=:,(\[])(~?/|\.{1,2}/|[A-Za-z]:[\\/]|\\\\|file:)[^"',\]}\n]*""")
_LONGEST = 20_000
"""Characters of a value that is kept."""


def key_list(
    files: Mapping[str, AdapterFile], report: NetworkReport, components: Mapping[str, nn.Module] | None
) -> dict[str, object]:
    """Return what a report of a fault needs, as plain data for `json.dumps`; no weight, path, caption or picture.

    Args:
        files: of the LoRA, by what its keys begin with in the list; only the headers are read.
        report: of the LoRA.
        components: of the model that the file was resolved against, by diffusers' names, if there was one.
    """
    kept = {
        prefix + key: _PATH.sub("(path)", value)
        for prefix, file in files.items()
        for key, value in file.metadata.items()
        if len(value) <= _LONGEST and (_TOLD.fullmatch(key) or key in file.infos)  # some trainers write a note for each
    }
    model = None if components is None else {name: _shapes(module) for name, module in components.items()}
    return {
        "version": 1,
        "keys": {
            prefix + key: [str(info.dtype).removeprefix("torch."), list(info.shape)]
            for prefix, file in files.items()
            for key, info in file.infos.items()
        },
        "metadata": kept,
        "metadata_left_out": sorted(
            {prefix + key for prefix, file in files.items() for key in file.metadata} - set(kept)
        ),
        "family": report.architecture,
        "model_family": None if report.model is None else report.model.name,
        "format": report.format,
        "layers": report.layers,
        "hit": report.hit if report.resolved else None,
        "unused": report.reasons(),
        "model": model,
    }


def _shapes(module: nn.Module) -> dict[str, list[int]]:
    return {target.name: list(target.shape) for _, _, targets in walk(module) for target in targets}
