"""`<lora:...>` in the web UIs that descend from AUTOMATIC1111's: their extra networks, taken over and given back.

They keep a registry of objects with `activate` and `deactivate`, one per kind of tag, and call each once per batch,
with the tags of one prompt only. The tags of the other prompts are lost, and an exception is printed and ignored. So
two functions are wrapped too: `parse_prompts`, to keep the tags of every prompt, and `activate`, to pass them on and to
raise failures. Both call the original, change one attribute of its result, and can be removed whatever others wrapped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, ClassVar

KINDS = ("lora", "lyco", "loractl")
"""Kinds of tag for LoRA files; LyCORIS files and schedules once had their own."""

_AND = re.compile(r"\bAND\b")
"""The word between the parts of a prompt, each of which has its own rows in a model call."""
_MASK = re.compile(r":\s*mask\s*=")

_OWN_TAGS = ("extra_network_data", "hr_extra_network_data", "network_data")
"""Where a processing object stores the tags of its prompts: of the first pass, the second, and SD.Next's."""

Images = tuple[tuple[str, ...], ...]
"""For each image, the texts between `<lora:` and `>` in its prompt."""


def _in_part(arguments: str, number: int) -> str:
    return f"{arguments}:part={number}" if _MASK.search(arguments) and ":part=" not in arguments else arguments


class ImageTags(defaultdict[str, list[Any]]):
    """The result of `parse_prompts`: the tags of one prompt by kind, with the tags of every prompt."""

    images: Images
    ours: tuple[str, ...]
    """The kinds that Remora applies."""

    @classmethod
    def of(cls, tags: Mapping[str, list[Any]], images: Images, ours: tuple[str, ...] = KINDS) -> ImageTags:
        """Make one from the host's result and the tags of every prompt."""
        made = cls(list, tags)
        made.images, made.ours = images, ours
        return made

    def __copy__(self) -> ImageTags:
        return self.of(self, self.images, self.ours)

    copy = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageTags.of, (dict(self), self.images, self.ours)  # copies keep the images


def of_others(tags: Mapping[str, list[Any]] | None) -> dict[str, list[Any]]:
    """Return the tags of one prompt that Remora does not apply."""
    ours = getattr(tags, "ours", KINDS)
    return {kind: params for kind, params in (tags or {}).items() if kind not in ours}


class ExtraNetworks:
    """The host's `modules.extra_networks` while Remora applies LoRA.

    Args:
        module: that module.
        batch: called with the processing object, the tags of each image, and the host's arguments (`include`,
            `exclude`, `step`); activates the LoRA and may raise.
        handed_back: called before each batch; True lets the built-in apply it.
        ended: called with the processing object when a generation ends.
        passed_over: called with the processing object, `include` and `exclude` before a pass for which the host
            activates no networks.
    """

    _mine: ClassVar[str] = "remora_original"

    def __init__(
        self,
        module: ModuleType,
        *,
        batch: Callable[..., None],
        handed_back: Callable[[Any], bool],
        ended: Callable[..., None],
        passed_over: Callable[..., None] = lambda p, include, exclude: None,
    ) -> None:
        self._module = module
        self._batch = batch
        self._handed_back = handed_back
        self._ended = ended
        self._passed_over = passed_over
        self._images: Images | None = None  # of the running `activate`
        self._inside = False
        self._in_region = False  # while the tags of a region end
        self._failure: BaseException | None = None
        self._wrappers: dict[str, Callable[..., Any]] = {}
        self.network = self._network()
        self.replaced: Any = None
        """The built-in's object."""
        self._aliased: dict[str, Any] = {}  # the host's own objects of other kinds

    def take_over(self) -> None:
        """Replace the built-in in the registry, under its aliases too; idempotent."""
        registry, aliases = self._registries()
        present = registry.get("lora")
        if present is not None and not isinstance(getattr(present, "remora", None), ExtraNetworks):
            self.replaced = present
        self._module.register_extra_network(self.network)
        for kind in KINDS[1:]:
            if aliases is not None:
                if kind in aliases and aliases[kind] is not self.network:
                    self._aliased[kind] = aliases[kind]
                aliases[kind] = self.network
        self._wrap("parse_prompts", self._parse_prompts)
        self._wrap("activate", self._activate)
        self._wrap("deactivate", self._deactivate)

    def give_back(self) -> None:
        """Restore the built-in's object and the functions; others' wrappers around Remora's stay and pass calls on."""
        registry, aliases = self._registries()
        if registry.get("lora") is self.network:
            if self.replaced is None:
                del registry["lora"]
            else:
                registry["lora"] = self.replaced
        for kind in KINDS[1:]:
            if aliases is not None and aliases.get(kind) is self.network:
                del aliases[kind]
                if kind in self._aliased:
                    aliases[kind] = self._aliased[kind]
        for name, ours in self._wrappers.items():
            if getattr(self._module, name) is ours:
                setattr(self._module, name, getattr(ours, self._mine))
        self._wrappers.clear()

    def tags_of(self, prompt: str) -> tuple[str, ...]:
        """Return the texts between `<lora:` and `>` in a prompt; in a prompt of parts, a region tag gets its part."""
        parts = _AND.split(prompt)
        if len(parts) == 1:
            return self._arguments(self._module.parse_prompt(prompt)[1])
        found = [self._arguments(self._module.parse_prompt(part)[1]) for part in parts]
        return tuple(_in_part(one, number) for number, own in enumerate(found, 1) for one in own)

    def _registries(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return self._module.extra_network_registry, getattr(self._module, "extra_network_aliases", None)

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        if name in self._wrappers:
            return
        original = getattr(self._module, name)

        @wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if self._wrappers.get(name) is not ours:  # removed, but a wrapper of others still calls it
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        setattr(ours, self._mine, original)
        self._wrappers[name] = ours
        setattr(self._module, name, ours)

    def _parse_prompts(self, original: Callable[..., Any], prompts: Any, *args: Any, **kwargs: Any) -> Any:
        texts, tags = original(prompts, *args, **kwargs)
        images = tuple(map(self.tags_of, prompts))
        if not any(images):
            # prompts that lost their tags when they were parsed first: the host passes the first result
            earlier = next((one for one in (*args, *kwargs.values()) if isinstance(one, ImageTags)), None)
            images = images if earlier is None else earlier.images
        return texts, ImageTags.of(tags or {}, images, tuple(filter(self._is_ours, KINDS)))

    def _activate(self, original: Callable[..., Any], p: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if getattr(p, "disable_extra_networks", False):
            self._passed_over(p, include=kwargs.get("include") or (), exclude=kwargs.get("exclude") or ())
            return original(p, data, *args, **kwargs)
        tags = data if data else getattr(p, "network_data", data)
        self._images, self._inside, self._failure = getattr(tags, "images", None), True, None
        try:
            result = original(p, data, *args, **kwargs)
            failure = self._failure
        finally:
            self._images, self._inside, self._failure = None, False, None
        if failure is not None:
            raise failure
        return result

    def _deactivate(self, original: Callable[..., Any], p: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        """End a generation; or only a region's tags, which tiled diffusion activates within a step."""
        own = [getattr(p, name, None) for name in _OWN_TAGS]
        if data is None or any(data is one for one in own):
            return original(p, data, *args, **kwargs)
        self._in_region = True
        try:
            result = original(p, data, *args, **kwargs)
        finally:
            self._in_region = False
        again = own[1] if getattr(p, "is_hr_pass", False) else own[0]
        if isinstance(again, ImageTags) and not self._handed_back(p):
            self._batch(p, again.images, include=(), exclude=())
        return result

    def _network(self) -> Any:
        """Return the object for the registry, of the host's own class."""
        outer = self

        class RemoraNetwork(self._module.ExtraNetwork):  # type: ignore[name-defined, misc]  # known only at run time
            """Applies the LoRA of a batch with Remora."""

            remora = outer

            def activate(
                self,
                p: Any,
                params_list: Iterable[Any],
                *args: Any,
                include: Any = None,
                exclude: Any = None,
                **kwargs: Any,
            ) -> None:
                outer._serve(p, list(params_list), include or (), exclude or (), *args, **kwargs)

            def deactivate(self, p: Any, *args: Any, **kwargs: Any) -> None:
                if outer._handed_back(p):
                    if outer.replaced is not None:
                        outer.replaced.deactivate(p, *args, **kwargs)
                elif not outer._in_region:
                    outer._ended(p, *args, **kwargs)

        return RemoraNetwork("lora")

    def _serve(
        self, p: Any, params: list[Any], include: Sequence[str], exclude: Sequence[str], *args: Any, **kwargs: Any
    ) -> None:
        if self._handed_back(p):
            if self.replaced is None:
                return
            # pass a built-in the arguments of its signature, as SD.Next does
            both = {"include": include, "exclude": exclude} if include or exclude else {}
            self.replaced.activate(p, params, *args, **kwargs, **both)
            return
        images = self._images if self._images is not None else (self._arguments({"lora": params}),)
        try:
            self._batch(p, images, include=include, exclude=exclude)
        except BaseException as error:
            if not self._inside:
                raise
            self._failure = error  # the host would print it and go on without the LoRA

    def _arguments(self, tags: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
        kinds = [kind for kind in KINDS if self._is_ours(kind)]
        return tuple(":".join(map(str, params.items)) for kind in kinds for params in tags.get(kind, ()))

    def _is_ours(self, kind: str) -> bool:
        """Tell whether Remora applies tags of this kind; an older extension has its own for `lyco`."""
        return kind == self.network.name or self._registries()[0].get(kind) in (None, self.network)
