"""diffusers' own names for LoRA, so that a script for `load_lora_weights` runs with one more line.

Source of the names and of what they do: huggingface/diffusers src/diffusers/loaders/lora_base.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from ..errors import ArgumentError, ComponentError, StackError, check_type, shown, texts
from ..files.sources import Source
from .attached import PipelineEngine, attach
from .wishes import Wish, multiplier_of, scaled

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = TypeVar("P")

_FUSED = " (fused)"
"""Behind the name of a LoRA that was unloaded while it was fused."""


class LoadOptions(TypedDict, total=False):
    """diffusers' options of `load_lora_weights`; all but the first two are without effect."""

    weight_name: str | None
    subfolder: str | None
    cache_dir: str | PathLike[str] | None
    force_download: bool
    local_files_only: bool | None
    low_cpu_mem_usage: bool
    prefix: str | None
    proxies: dict[str, str] | None
    return_lora_metadata: bool
    revision: str | None
    token: bool | str | None
    use_safetensors: bool | None


class FuseOptions(TypedDict, total=False):
    """diffusers' former options of `fuse_lora`, without effect."""

    fuse_unet: bool
    fuse_text_encoder: bool
    fuse_transformer: bool


class UnfuseOptions(TypedDict, total=False):
    """diffusers' former options of `unfuse_lora`, without effect."""

    unfuse_unet: bool
    unfuse_text_encoder: bool
    unfuse_transformer: bool


def _check_options(given: Collection[str], known: type, call: str) -> None:
    """Raise ArgumentError where a call has options that diffusers does not have."""
    unknown = set(given) - set(known.__annotations__)
    if unknown:
        raise ArgumentError(f"{call} has no argument {', '.join(sorted(unknown))}")


class LoraCalls:
    """diffusers' calls for LoRA, which Remora serves: put it before a class of pipelines.

    They raise LoraError as `PipelineEngine` does; then nothing has changed.
    """

    def load_lora_weights(
        self,
        pretrained_model_name_or_path_or_dict: Source,
        adapter_name: str | None = None,
        hotswap: bool = False,
        **options: Unpack[LoadOptions],
    ) -> None:
        """Load a LoRA and use it alone; `set_adapters` uses several. Nothing is downloaded.

        Args:
            pretrained_model_name_or_path_or_dict: see `PipelineEngine.load`.
            adapter_name: what to call it; `default_0` and so on, where none is given.
            hotswap: whether it takes the place of the LoRA of that name.
            options: `weight_name` and `subfolder` choose a file of a folder. diffusers' other options are without
                effect.

        Raises:
            LoraError: see `PipelineEngine.load`.
        """
        engine = attach(self)
        _check_options(options, LoadOptions, "load_lora_weights")
        check_type(hotswap, bool, "hotswap", "True or False")
        check_type(adapter_name, (str, type(None)), "adapter_name", "a text")
        source = pretrained_model_name_or_path_or_dict
        subfolder = options.get("subfolder")
        if subfolder:
            check_type(subfolder, str, "subfolder", "a text")
            check_type(source, str, "a repository with a subfolder", "the path of a folder")
            source = f"{source}/{subfolder}"
        names = engine.names
        default = next(f"default_{i}" for i in range(len(names) + 1) if f"default_{i}" not in names)
        if hotswap and adapter_name not in names:
            raise StackError(f"hotswap replaces a LoRA, and none is called {shown(adapter_name)}")
        if not hotswap and adapter_name in names:
            text = f"a LoRA {shown(adapter_name)} is loaded already"
            raise StackError(f"{text}; give another adapter_name, or write hotswap=True")
        former = {entry.name: entry for entry in engine.stack}
        name = adapter_name or default
        strength = former[name].multiplier if hotswap and name in former else 1.0
        engine.load(source, name=name, strength=strength, weight_name=options.get("weight_name"), replace=hotswap)
        if not hotswap:
            engine.use(*_fused(engine), name)
            engine.disabled = None

    def set_adapters(
        self,
        adapter_names: Sequence[str] | str,
        adapter_weights: Wish | Sequence[Wish | None] | None = None,
    ) -> None:
        """Use these LoRA at these strengths; a component that a dict does not name has the strength 1.

        Args:
            adapter_names: one name, or several.
            adapter_weights: one strength for all of them, or a list with one for each; see `PipelineEngine.set`.

        Raises:
            LoraError: no such LoRA, or not as many strengths; nothing has changed.
        """
        engine = attach(self)
        names = _names(adapter_names)
        weights: list[Any] = [adapter_weights] * len(names)
        if isinstance(adapter_weights, list | tuple):
            weights = list(adapter_weights)
        if len(names) != len(weights):
            raise StackError(f"{len(names)} adapters and {len(weights)} weights; give as many, or one for all")
        wanted = [_whole(1.0 if weight is None else weight, engine) for weight in weights]
        engine.use_at({**dict.fromkeys(_fused(engine)), **dict(zip(names, wanted, strict=True))})
        engine.disabled = None

    def get_active_adapters(self) -> list[str]:
        """Return the names of the LoRA in use."""
        engine = attach(self)
        names = [entry.name for entry in engine.stack] if engine.disabled is None else list(engine.disabled)
        return [name for name in names if not name.endswith(_FUSED)]

    def get_list_adapters(self) -> dict[str, list[str]]:
        """Return component -> the names of the LoRA that change it."""
        engine = attach(self)
        found: dict[str, list[str]] = {}
        for name, report in engine.loaded.items():
            for component in sorted(report.components):
                found.setdefault(component, []).append(name)
        return found

    def delete_adapters(self, adapter_names: Sequence[str] | str) -> None:
        """Take LoRA off, and forget them."""
        engine = attach(self)
        names = _names(adapter_names)
        if names:
            engine.unload(*names)
        for name in names:
            engine.fused.pop(name, None)

    def unload_lora_weights(self) -> None:
        """Take all LoRA off but the fused ones, and forget them."""
        engine = attach(self)
        fused = {name: name if name.endswith(_FUSED) else f"{name}{_FUSED}" for name in _fused(engine)}
        kept = [replace(entry, name=fused[entry.name]) for entry in engine.stack if entry.name in fused]
        if engine.stack:
            engine._change(replace(engine.stack, entries=kept))
        gone = [name for name in engine.names if not name.endswith(_FUSED)]
        if gone:
            engine.unload(*gone)
        engine.fused, engine.disabled = {}, None

    def disable_lora(self) -> None:
        """Use no LoRA until `enable_lora`; fused ones stay."""
        engine = attach(self)
        if engine.disabled is None:
            before = tuple([entry.name for entry in engine.stack])
            engine.use(*_fused(engine))
            engine.disabled = before

    def enable_lora(self) -> None:
        """Use the LoRA again that were in use before `disable_lora`."""
        engine = attach(self)
        if engine.disabled is not None:
            engine._use({name: None for name in engine.disabled if name in engine.names})
            engine.disabled = None

    def fuse_lora(
        self,
        components: Sequence[str] | None = None,
        lora_scale: float = 1.0,
        safe_fusing: bool = False,
        adapter_names: Sequence[str] | None = None,
        **options: Unpack[FuseOptions],
    ) -> None:
        """Merge LoRA into the weights, until `unfuse_lora` restores these bit for bit.

        Args:
            components: whose weights; None for all that the LoRA change.
            lora_scale: a factor of their strengths.
            safe_fusing: without effect, as numbers of a file that are not finite are never applied.
            adapter_names: which LoRA; None for the ones in use.
            options: diffusers' former ones, without effect.

        Raises:
            LoraError: no such LoRA or component, or the strength cannot be merged; nothing has changed.
        """
        engine = attach(self)
        _check_options(options, FuseOptions, "fuse_lora")
        names = [entry.name for entry in engine.stack if not entry.name.endswith(_FUSED)]
        names = names if adapter_names is None else list(texts(adapter_names, "adapter_names"))
        check_type(lora_scale, (int, float), "lora_scale", "a number")
        multiplier_of(lora_scale, {})
        chosen = None if components is None else texts(components, "components")
        for component in chosen or ():
            if component not in engine.components:
                raise ComponentError(f"there is no {component!r}; there are {', '.join(engine.components)}")
        engine.use(*dict.fromkeys([*[entry.name for entry in engine.stack], *names]))
        entries, fused = list(engine.stack), dict(engine.fused)
        for i, entry in enumerate(entries):
            if entry.name in names and entry.name not in fused:
                fused[entry.name] = entry
                multiplier = scaled(entry.multiplier, lora_scale, engine.components, chosen)
                entries[i] = replace(entry, multiplier=multiplier)
        engine.activate(replace(engine.stack, entries=entries, mode="merged"))
        engine.fused = fused

    def unfuse_lora(self, components: Sequence[str] | None = None, **options: Unpack[UnfuseOptions]) -> None:
        """Restore the weights of all components bit for bit; LoRA that are still loaded act beside them.

        Args:
            components: without effect.
            options: diffusers' former ones, without effect.

        Raises:
            ArgumentError: diffusers has no such option.
        """
        engine = attach(self)
        _check_options(options, UnfuseOptions, "unfuse_lora")
        kept = [engine.fused.get(entry.name, entry) for entry in engine.stack if not entry.name.endswith(_FUSED)]
        engine._change(replace(engine.stack, entries=kept, mode="live"))
        engine.fused = {}

    @property
    def num_fused_loras(self) -> int:
        """Return how many LoRA are merged."""
        engine = attach(self)
        return len(engine.stack) if engine.stack.mode == "merged" else 0


def _names(adapter_names: Sequence[str] | str) -> list[str]:
    return [adapter_names] if isinstance(adapter_names, str) else list(texts(adapter_names, "adapter_names"))


def _whole(weight: Wish, engine: PipelineEngine) -> Wish:
    """Return a strength by component with the strength 1 for components that it does not name."""
    if not isinstance(weight, Mapping):
        return weight
    for name in weight:
        check_type(name, str, "the name of a component", "a text, as 'unet'")
    return {**dict.fromkeys(engine.components, 1.0), **weight}


def _fused(engine: PipelineEngine) -> list[str]:
    """Return the names of the LoRA that stay in the weights until `unfuse_lora`."""
    return [name for name in engine.names if name in engine.fused or name.endswith(_FUSED)]


def replace_lora_calls(pipeline: P) -> P:
    """Have a pipeline's `load_lora_weights`, `set_adapters`, `fuse_lora` and the like served by Remora; return it.

    The pipeline gets a class of the same name that has `LoraCalls` before its own class.

    Raises:
        ComponentError: it is no pipeline, or has LoRA that diffusers loaded, which no call would take off any more.
        ArgumentError: its class cannot be changed.
    """
    components = attach(pipeline).components
    own = type(pipeline)
    if issubclass(own, LoraCalls):
        return pipeline
    if loaded := [name for name, module in components.items() if getattr(module, "peft_config", None)]:
        text = f"{', '.join(loaded)} of this pipeline has LoRA that diffusers loaded"
        raise ComponentError(f"{text}; call pipe.unload_lora_weights() first")
    made = type(own.__name__, (LoraCalls, own), {"__module__": own.__module__, "__qualname__": own.__qualname__})
    try:
        pipeline.__class__ = made
    except TypeError as error:
        text = f"the class of {shown(pipeline)} cannot be changed"
        raise ArgumentError(f"{text}; write class Pipeline(LoraCalls, {own.__name__}): ...") from error
    return pipeline
