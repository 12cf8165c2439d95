"""`<lora:...>` in the web UIs that descend from AUTOMATIC1111's: their extra networks, taken over and given back.

They all keep a registry of objects with `activate` and `deactivate`, one per kind of tag, and ask each of them once per
batch, with the tags of one prompt only. What the other prompts of the batch say is lost there, and an exception is
printed and forgotten. So besides the object two functions are wrapped: `parse_prompts`, to keep the tags of every
prompt, and `activate`, to pass those on and to let a failure through. Both call what they found, return what it returns
but for one attribute, and can be taken off again whatever others did meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, ClassVar

KINDS = ("lora", "lyco")
"""Tags that name adapter files; LyCORIS files had one of their own once."""

Images = tuple[tuple[str, ...], ...]
"""For each image what stands between `<lora:` and `>` in its prompt."""


class ImageTags(defaultdict[str, list[Any]]):
    """What `parse_prompts` returns: the tags of one prompt by kind, and besides those of every prompt."""

    images: Images

    @classmethod
    def of(cls, tags: Mapping[str, list[Any]], images: Images) -> ImageTags:
        """Make one of what the host found and the tags of every prompt."""
        made = cls(list, tags)
        made.images = images
        return made

    def __copy__(self) -> ImageTags:
        return self.of(self, self.images)

    copy = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageTags.of, (dict(self), self.images)  # copies keep the images


class ExtraNetworks:
    """The host's `modules.extra_networks`, as long as Remora serves it.

    Args:
        module: that module.
        batch: called with the processing object, the tags of each image, and what the host says besides (`include`,
            `exclude`, `step`); it puts them in force and may raise.
        handed_back: asked before each batch; True lets the built-in serve it.
        ended: called with the processing object when the host is done with a generation.
    """

    _mine: ClassVar[str] = "remora_original"

    def __init__(
        self,
        module: ModuleType,
        *,
        batch: Callable[..., None],
        handed_back: Callable[[Any], bool],
        ended: Callable[..., None],
    ) -> None:
        self._module = module
        self._batch = batch
        self._handed_back = handed_back
        self._ended = ended
        self._images: Images | None = None  # of the `activate` that runs now
        self._inside = False
        self._failure: BaseException | None = None
        self._wrappers: dict[str, Callable[..., Any]] = {}
        self.network = self._network()
        self.replaced: Any = None
        """The built-in's object."""

    def take_over(self) -> None:
        """Stand in the registry in place of the built-in, under its aliases too; harmless when done already."""
        registry, aliases = self._registries()
        present = registry.get("lora")
        if present is not None and not isinstance(getattr(present, "remora", None), ExtraNetworks):
            self.replaced = present
        self._module.register_extra_network(self.network)
        for kind in KINDS[1:]:
            if aliases is not None:
                aliases[kind] = self.network
        self._wrap("parse_prompts", self._parse_prompts)
        self._wrap("activate", self._activate)

    def give_back(self) -> None:
        """Put the built-in's object back, and the functions; what others wrapped around ours stays and passes on."""
        registry, aliases = self._registries()
        if registry.get("lora") is self.network:
            if self.replaced is None:
                del registry["lora"]
            else:
                registry["lora"] = self.replaced
        for kind in KINDS[1:]:
            if aliases is not None and aliases.get(kind) is self.network:
                aliases.pop(kind) if self.replaced is None else aliases.update({kind: self.replaced})
        for name, ours in self._wrappers.items():
            if getattr(self._module, name) is ours:
                setattr(self._module, name, getattr(ours, self._mine))
        self._wrappers.clear()

    def _registries(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return self._module.extra_network_registry, getattr(self._module, "extra_network_aliases", None)

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        if name in self._wrappers:
            return
        original = getattr(self._module, name)

        @wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if self._wrappers.get(name) is not ours:  # given back, but somebody else still calls it
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        setattr(ours, self._mine, original)
        self._wrappers[name] = ours
        setattr(self._module, name, ours)

    def _parse_prompts(self, original: Callable[..., Any], prompts: Any, *args: Any, **kwargs: Any) -> Any:
        texts, tags = original(prompts, *args, **kwargs)
        images = tuple(self._arguments(self._module.parse_prompt(prompt)[1]) for prompt in prompts)
        if not any(images):
            # a second look at prompts that have lost their tags at the first: the host passes what it found then
            earlier = next((one for one in (*args, *kwargs.values()) if isinstance(one, ImageTags)), None)
            images = images if earlier is None else earlier.images
        return texts, ImageTags.of(tags or {}, images)

    def _activate(self, original: Callable[..., Any], p: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        tags = data if data is not None else getattr(p, "network_data", None)
        self._images, self._inside, self._failure = getattr(tags, "images", None), True, None
        try:
            result = original(p, data, *args, **kwargs)
            failure = self._failure
        finally:
            self._images, self._inside, self._failure = None, False, None
        if failure is not None:
            raise failure
        return result

    def _network(self) -> Any:
        """The object for the registry, of the host's own class."""
        outer = self

        class RemoraNetwork(self._module.ExtraNetwork):  # type: ignore[name-defined, misc]  # known only at run time
            """Lets Remora apply the LoRAs of a batch."""

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
                if outer.replaced is not None and outer._handed_back(p):
                    outer.replaced.deactivate(p, *args, **kwargs)
                else:
                    outer._ended(p, *args, **kwargs)

        return RemoraNetwork("lora")

    def _serve(
        self, p: Any, params: list[Any], include: Sequence[str], exclude: Sequence[str], *args: Any, **kwargs: Any
    ) -> None:
        if self.replaced is not None and self._handed_back(p):
            # a built-in is passed what it has asked for: SD.Next looks at the names in its signature
            both = {"include": include, "exclude": exclude} if include or exclude else {}
            self.replaced.activate(p, params, *args, **kwargs, **both)
            return
        images = self._images if self._images is not None else (self._arguments({"lora": params}),)
        try:
            self._batch(p, images, include=include, exclude=exclude)
        except BaseException as error:
            if not self._inside:
                raise
            self._failure = error  # the host would print it and make a picture without the LoRA

    @staticmethod
    def _arguments(tags: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
        return tuple(":".join(map(str, params.items)) for kind in KINDS for params in tags.get(kind, ()))
