"""The layers of a component under all their names: kind, logical shape, and the rows of the parameter they have.

Shapes come from a layer's declared sizes, never from `.weight.shape`: a quantized layer's weight is packed. Where a
layer declares no sizes (Forge's 4-bit and GGUF ones), the reader of its storage knows them.

Projections that diffusers has fused are found too: `to_qkv` is called, and `to_q`, which is still there, is not.
Source: huggingface/diffusers models/attention.py, `AttentionModuleMixin.fuse_projections`, and models/
attention_processor.py, `Attention.fuse_projections`; `pipe.fuse_qkv_projections()` calls them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TypeGuard, cast

from torch import nn
from torch.jit import ScriptModule

from ..errors import ComponentError
from ..registry import cached, version
from ..report import Family, Unused
from ..weights.readers.base import has_plain_weight, reader_of
from .architectures._checkpoint import components_of as components_of
from .architectures._checkpoint import prefixes_of
from .architectures._names import PARTS, joint_projections, places_of
from .architectures.base import fact, family_of, input_basis
from .places import Place, Target
from .structure import Structure, are_fused


def _fused_rows(attention: nn.Module) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield each fused projection in use, and the rows of the layers it was made of; these are equal where gone.

    Source: nunchaku-tech/nunchaku nunchaku/models/unets/unet_sdxl.py at 3a3cc3d, `NunchakuSDXLAttention`.
    """
    below, in_use = attention._modules, are_fused(attention)
    output = to_out[0] if isinstance(to_out := below.get("to_out"), nn.ModuleList) else None
    for name, parts in PARTS.items() if in_use or output is not None else ():
        layers = [layer for part in parts if (layer := below.get(part)) is not None]
        if in_use and below.get(name) is not None and len(layers) == len(parts):
            yield name, {part: targets_of(part, layer)[0].shape[0] for part, layer in zip(parts, layers, strict=True)}
        elif output is not None and below.keys().isdisjoint(parts):
            shape = _linear_shape(output)
            if shape is not None and getattr(below.get(name), "out_features", None) == shape[1] * len(parts):
                yield name, dict.fromkeys(parts, shape[1])


def targets_of(path: str, module: nn.Module) -> tuple[Target, ...]:
    """Return the adaptable weights of one module; empty when it has none of its own."""
    if type(module) is nn.Linear:  # most layers, without asking
        return (Target(_actual(module, (module.out_features, module.in_features)), path=path, name=path),)
    if isinstance(module, ScriptModule):  # torch computes it without a forward in Python
        return ()
    if isinstance(module, nn.MultiheadAttention):
        return _attention_targets(path, module)
    if hasattr(module, "_conv_forward") and not getattr(module, "transposed", False):
        conv = cast(nn.Conv2d, module)  # or a host's own class
        shape = _actual(module, (conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size))
        return (Target(shape, "conv", conv.groups, path=path, name=path),)
    entries, width = getattr(module, "num_embeddings", None), getattr(module, "embedding_dim", None)
    if isinstance(entries, int) and isinstance(width, int):
        return (Target(_actual(module, (entries, width)), "embedding", path=path, name=path),)
    norm = _norm_param(module)
    if norm is not None:
        takes_bias = "bias" in module._parameters
        shape = tuple(module.get_parameter(norm).shape)
        return (Target(shape, "norm", takes_bias=takes_bias, path=path, name=path, param=norm),)
    linear = _linear_shape(module)
    return tuple(_experts(path, module)) if linear is None else (Target(linear, path=path, name=path),)


def _actual(module: nn.Module, declared: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a layer's weight, which may have been resized behind the sizes that the layer declares.

    A weight that is packed, taken away or absent does not tell.
    """
    weight = module._parameters.get("weight")
    is_plain = type(weight) is nn.Parameter and weight.is_floating_point() and weight.numel()
    return tuple(weight.shape) if weight is not None and is_plain and weight.ndim == len(declared) else declared


def _experts(path: str, module: nn.Module) -> Iterator[Target]:
    """Yield the weights of experts of a module, in its order: parameters of three dimensions, of no convolution.

    `is_transposed` is transformers' word, which PEFT reads, too.
    """
    transposed = getattr(module, "is_transposed", False) is True
    for name, weight in module._parameters.items() if path and not hasattr(module, "kernel_size") else ():
        if weight is not None and weight.ndim == 3 and weight.shape[0] > 1 and has_plain_weight(module, name):
            shape = tuple(weight.shape)
            yield Target(shape, "experts", transposed=transposed, path=path, name=f"{path}.{name}", param=name)


def _linear_shape(module: nn.Module) -> tuple[int, ...] | None:
    """Return (out, in) of a linear layer, by its attributes and not by class: Forge's Linear is no nn.Linear."""
    out, inside = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if isinstance(out, int) and isinstance(inside, int):
        return _actual(module, (out, inside))
    if module._parameters.get("weight") is None or hasattr(module, "num_embeddings"):
        return None
    reader = reader_of(module, "weight")
    shape = None if reader is None else reader.shape(module, "weight")
    return shape if shape is not None and len(shape) == 2 else None


def _norm_param(module: nn.Module) -> str | None:
    """Return the name of the weight of a norm: one number per channel, an epsilon, nothing below.

    Flux' own code calls it `scale` and writes the epsilon into the forward (Forge, reForge), so there its class tells.
    """
    param = "scale" if module._parameters.get("weight") is None else "weight"
    weight = module._parameters.get(param)
    if weight is None or module._modules or weight.ndim != 1:
        return None
    named = param == "scale" and type(module).__name__.endswith("Norm")
    return param if named or any(hasattr(module, name) for name in ("eps", "epsilon", "variance_epsilon")) else None


def _attention_targets(path: str, module: nn.MultiheadAttention) -> tuple[Target, ...]:
    """Return the weights of torch's attention, one layer: it multiplies by them itself and never calls `out_proj`.

    None are returned where keys have another width than queries: no trainer makes an adapter for these.
    """
    if module.in_proj_weight is None:
        return ()
    width, dot = module.embed_dim, f"{path}." if path else ""
    output = Target((width, width), "attention", path=path, name=f"{dot}out_proj", bias="out_proj.bias")
    inputs = replace(output, shape=(3 * width, width), name=f"{dot}in_proj", bias="in_proj_bias")
    inputs, output = replace(inputs, param="in_proj_weight"), replace(output, param="out_proj.weight")
    return (output, inputs, *_windows(inputs, dict.fromkeys(("q_proj", "k_proj", "v_proj"), width)))


def walk(component: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[Target, ...]]]:
    """Yield (path, module, targets) of every adaptable layer; a shared module once under each of its names.

    Paths are without what torch and PEFT put into them.
    """
    inside_attention: set[int] = set()
    fused: dict[str, dict[str, int]] = {}
    for path, module in _named(component):
        if id(module) in inside_attention:
            continue
        if isinstance(module, nn.MultiheadAttention):
            inside_attention.update(id(child) for child in module.children())
        below = module._modules
        for name, rows in () if below.keys().isdisjoint(PARTS) else _fused_rows(module):
            inside_attention.update(id(module._modules.get(part)) for part in rows)  # if there, never called
            fused[f"{path}.{name}" if path else name] = rows
        targets = targets_of(path, module) if _INNER.isdisjoint(below) else ()  # no wrapper's
        if path in fused:
            targets = (*targets, *_windows(targets[0], fused[path]))
        if targets:
            yield path, module, targets


def _windows(target: Target, rows: Mapping[str, int]) -> Iterator[Target]:
    """Yield the windows of a fused layer under the names of the layers it was made of."""
    parent = target.name.rpartition(".")[0]
    for (name, count), stop in zip(rows.items(), accumulate(rows.values()), strict=True):
        yield replace(target.window(stop - count, stop), name=f"{parent}.{name}" if parent else name, base=None)


class LayerIndex:
    """The layers of one component, found by any of their names.

    Holds the modules weakly, so an index never keeps a model alive.
    """

    def __init__(self, component: str, module: nn.Module) -> None:
        self.component = component
        self.root = weakref.ref(module)
        self.layers: dict[str, weakref.ref[nn.Module]] = {}
        """By path. A reference to a layer that is gone returns None."""
        targets: list[Target] = []
        weights: dict[nn.Module, dict[str, None]] = {}
        for path, layer, of_layer in walk(module):
            self.layers[path] = weakref.ref(layer)
            targets.extend(of_layer)
            for target in of_layer:
                weights.setdefault(layer, {})[target.param] = None
        self._structure = Structure(module, weights)
        self.targets = tuple(targets)
        self.facts = [fact(component, one.name, one.shape[1] if len(one.shape) > 1 else None) for one in targets]
        """What signs of families are searched in; see `architectures.base.fact`."""
        self.signature = component, hash((self.targets, input_basis(module)))
        """Equal for components with the same layers, shapes and names."""
        self.dotted, self.flat = _name_tables(component, self.targets, version())
        """Every name that a layer is found by, in any spelling the architectures know, and its meaning."""

    def holds(self, module: nn.Module, *, quick: bool = False) -> bool:
        """Return whether `module` is built as it was when it was indexed; see `Structure.holds`."""
        return self.root() is module and self._structure.holds(quick=quick)

    def exchanged(self, module: nn.Module) -> tuple[list[str], list[nn.Module]]:
        """Return the paths at which `module` has another layer now, or none; and the layers that it did not have."""
        now = {path: layer for path, layer, _ in walk(module)}
        former = {path: ref() for path, ref in self.layers.items()}
        lost = [path for path, layer in former.items() if layer is None or now.get(path) is not layer]
        known = set(former.values())
        return lost, [layer for layer in now.values() if layer not in known]

    def serves(self, now: LayerIndex) -> bool:
        """Return whether the layers of a later index are the same, and follow its structure then."""
        own, its = ((one.targets, one.layers, one._structure.classes) for one in (self, now))
        if own == its:  # references to the same layers are equal
            self._structure = now._structure
        return own == its

    def module(self, path: str) -> nn.Module:
        """Return the layer at `path`; raise ComponentError where it is gone."""
        module = self.layers[path]()
        if module is None:
            raise ComponentError(f"{self.component}.{path} is gone; the model was unloaded")
        return module

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Return the path of each layer -> every name of it, or of the whole it is a part of, in any spelling."""
        found: dict[str, list[str]] = {}
        for name, place in self.dotted.items():
            for path in dict.fromkeys([window.path for window in place.windows]):
                found.setdefault(path, []).append(name)
        return found

    def find(self, name: str, *, flattened: bool = False) -> Place | None:
        """Return the meaning of `name` in any known spelling, also with dots for underscores; None without one."""
        found = (None if flattened else self.dotted.get(name)) or self.flat.get(name.replace(".", "_"))
        # TheLastBen's files have an underscore behind some names
        return self.find(name[:-1], flattened=flattened) if found is None and name.endswith("_") else found

    def other_layer(self, name: str, *, flattened: bool = False) -> Unused | None:
        """Return that a layer has weights of a kind that no adapter is defined for; None without such a layer."""
        found = self._others.get(name.replace(".", "_") if flattened else name)
        text = "of a layer of a class that no adapter kind is defined for"
        return None if found is None else Unused("", "layer_kind", text, f"{self.component}.{found}")

    @cached_property
    def _others(self) -> dict[str, str]:
        """Return the layers that are none of the targets, by their paths, dotted and flattened, with their classes."""
        root = self.root()
        named = () if root is None else _named(root)
        own = {path: layer for path, layer in named if layer._parameters and path not in self.dotted}
        texts = {path: f"{path}: {type(layer).__name__}" for path, layer in own.items()}
        return {path.replace(".", "_"): text for path, text in texts.items()} | texts


def parameter_of(index: LayerIndex, key: str) -> tuple[str, str] | None:
    """Return the path and the parameter of the layer that a checkpoint's key is of; None where there is none."""
    for prefix in (*prefixes_of(index.component), ""):
        if key.startswith(prefix):
            path, _, param = key.removeprefix(prefix).rpartition(".")
            place = index.find(path)
            target = None if place is None or len(place.windows) > 1 else place.windows[0]
            if target is not None and target.rows is None and target.name == target.path:
                return target.path, param
    return None


def family_of_model(indexes: Iterable[LayerIndex]) -> Family | None:
    """Return the family of a model, by the names and widths of its own layers."""
    return _family(tuple([one for index in indexes for one in index.facts]))


_family = cached(family_of)


@lru_cache(maxsize=32)
def _name_tables(
    component: str, targets: tuple[Target, ...], _plugins: int
) -> tuple[Mapping[str, Place], Mapping[str, Place]]:
    own: dict[str, Place] = {}
    for target in targets:
        own.setdefault(target.name, Place((target,)))
    for target in targets:
        if target.param == "in_proj_weight" and target.rows is None:  # PEFT calls it by the attention's own name
            own.setdefault(target.path, Place((target,)))
    dotted = places_of(component, own)
    dotted |= {name: place for name, place in joint_projections(dotted).items() if name not in dotted}
    return dotted, {name.replace(".", "_"): place for name, place in reversed(dotted.items())}


_INNER = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"})
"""Names that torch's compiler, FSDP, checkpointing and PEFT give the module that they wrap."""
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
"""These call it `module`, as others call layers of their own."""


def _named(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """List a module and all below it with their paths; a wrapped module has the path of its wrapper."""
    named, left = list[tuple[str, nn.Module]](), [("", root)]
    while left:
        path, module = left.pop()
        named.append((path, module))
        for name, child in reversed(module._modules.items()):
            if child is not None and not isinstance(child, ScriptModule):
                inner = name in _INNER or (name == "module" and isinstance(module, _WRAPPERS))
                left.append((path if inner else f"{path}.{name}" if path else name, child))
    return named


def modules_of(pipeline: object) -> dict[str, nn.Module]:
    """Return the modules of a diffusers pipeline by their names, ScriptModules aside, which no adapter can change.

    Raises:
        ComponentError: it has no components, or none of them is a module; the text says what to write.
    """
    parts = getattr(pipeline, "components", None)
    named = parts.items() if isinstance(parts, Mapping) else ()
    modules = {str(name): part for name, part in named if _is_plain(part)}
    if not modules:
        wrong = f"for_pipeline takes a diffusers pipeline that is loaded, not a {type(pipeline).__name__}"
        raise ComponentError(f"{wrong}; of a single model write Engine({{'unet': model}})")
    return modules


def _is_plain(part: object) -> TypeGuard[nn.Module]:
    return isinstance(part, nn.Module) and not isinstance(part, ScriptModule)


def check_named(components: object, call: str) -> None:
    """Refuse anything but a mapping of names to modules. `call` is what the user writes, with `{}` in their place.

    Raises:
        ComponentError: it is something else, or holds something else; the text says what to write.
    """
    wrong = f"a {type(components).__name__}"
    if isinstance(components, Mapping):
        others = [one for one in components.items() if not (isinstance(one[0], str) and _is_plain(one[1]))]
        wrong = ", ".join([f"{name!r}: {type(part).__name__}" for name, part in others])
    if wrong:
        name, example = call.partition("(")[0], call.format("{'unet': pipe.unet}")
        raise ComponentError(f"{name} takes the model's torch modules by name, not {wrong}; write {example}")
