"""Which weight of a module of experts a LoRA of PEFT's `target_parameters` is for: its keys name the module alone.

`base_model.model.mlp.experts.base_layer.lora_A.weight`   (gate_up_proj, the first one)
`base_model.model.mlp.experts.lora_A.weight`              (down_proj, the last one)

PEFT wraps the module once for each parameter, in the order in which the module has them, so the last one is outermost.
`adapter_config.json` lists the parameters. Without it, a file has all of the module's, or their shapes must tell.

Source: huggingface/peft tuners/tuners_utils.py, `_inject_parameters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from .base import Layer, Layers, NumberingError

INNER = ".base_layer"
Shape = tuple[int, ...]


def names_of(
    model: Layers, shapes: Mapping[str, Shape | None], _: str | None, config: Mapping[str, object]
) -> dict[str, str | NumberingError]:
    """Name the weights of experts; any other layer of the file has its own name. See `NamesOf`."""
    found: dict[str, str | NumberingError] = {module: module for module in shapes if model.find(module) is not None}
    nested: dict[str, list[str]] = {}
    for module in sorted(shapes.keys() - found.keys(), key=len, reverse=True):  # the innermost first
        nested.setdefault(re.sub(r"(?<!\.base_layer)(\.base_layer)+$", "", module), []).append(module)
    said = config.get("target_parameters") if nested else None
    targets = frozenset(map(str, said)) if isinstance(said, list) else frozenset[str]()  # once, as a file may list many
    parameters: dict[str, dict[str, Layer]] = {}
    for name in model.dotted if nested else ():
        layer = model.find(name)
        if layer is not None and layer.kind == "experts":
            parameters.setdefault(name.rpartition(".")[0], {})[name] = layer
    for outer in nested.keys() & parameters.keys():
        wrappers, own = nested[outer], parameters[outer]
        try:
            if wrappers != [outer + INNER * i for i in reversed(range(len(wrappers)))]:
                raise NumberingError("for a module of experts, and others beside it are missing", "")
            chosen = _chosen([shapes[one] for one in wrappers], own, targets)
            found.update(zip(wrappers, chosen, strict=True))
        except NumberingError as error:
            detail = f"{model.component}.{outer}: {', '.join(name.rpartition('.')[2] for name in own)}"
            found.update(dict.fromkeys(wrappers, NumberingError(error.reason, detail)))
    return found


def _chosen(shapes: Sequence[Shape | None], own: Mapping[str, Layer], targets: frozenset[str]) -> list[str]:
    """Return the names of the weights that the LoRA are for, in the order of the module; there are as many as shapes.

    `targets` has PEFT's `target_parameters`, each the end of a name; none where no configuration tells.
    """
    if targets:
        listed = [name for name in own if not targets.isdisjoint(_ends(name))]
        if len(listed) != len(shapes):
            raise NumberingError("for other weights of experts than its target_parameters name in this model", "")
        return listed
    if len(own) == len(shapes):
        return list(own)
    fits = {name: (layer.shape[1:], layer.shape[:0:-1]) for name, layer in own.items()}
    found = [
        list(names)
        for names in combinations(own, len(shapes))
        if all(shape in fits[name] for name, shape in zip(names, shapes, strict=True))
    ]
    if len(found) != 1:
        text = "for some weights of a module of experts, and nothing tells which"
        raise NumberingError(f"{text}; put PEFT's adapter_config.json beside the file", "")
    return found[0]


def _ends(name: str) -> Iterator[str]:
    """Yield a dotted name, and each end of it."""
    while name:
        yield name
        name = name.partition(".")[2]
