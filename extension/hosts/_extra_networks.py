"""`<lora:...>` in the web UIs that descend from AUTOMATIC1111's: their extra networks, taken over and given back.

They keep a registry of objects with `activate` and `deactivate`, one per kind of tag, and call each once per batch,
with the tags of one prompt only. The tags of the other prompts are lost, and an exception is printed and ignored. So
two functions are wrapped too: `parse_prompts`, to keep the tags of every prompt, and `activate`, to pass them on and to
raise failures. Both call the original, change one attribute of its result, and can be removed whatever others wrapped.
"""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from types import ModuleType
from typing import Any, ClassVar

from ..text.spelling import KINDS
from ._prompt_tags import Images, PromptTags
from ._wraps import Wraps

logger = logging.getLogger(__name__)


_OWN_TAGS = ("extra_network_data", "hr_extra_network_data", "network_data")
"""Where a processing object stores the tags of its prompts: of the first pass, the second, and SD.Next's."""

_EXTENSIONS = "extensions"
"""The hosts' folder of extensions that the user installed."""


def written(images: Images) -> str:
    """Return the tags of a batch as in its prompts, each once."""
    return " ".join(dict.fromkeys(f"<lora:{one}>" for image in images for one in image))


def _extension_of(network: Any) -> str:
    """Return the name of the extension that defines a handler of tags; empty for the web UI's own."""
    code = getattr(getattr(type(network), "activate", None), "__globals__", {})
    parts = PurePath(str(code.get("__file__") or "")).parts
    return parts[parts.index(_EXTENSIONS) + 1] if _EXTENSIONS in parts[:-1] else ""


class _OfBuiltinError(Exception):
    """An error of the object that tags are passed on to."""

    def __init__(self, own: Exception) -> None:
        super().__init__()
        self.own = own


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
        ended: called with the processing object when a generation ends; not where the host says `force=False`, as its
            detailer comes later.
        not_applied: called with the processing object, the tags of each image, and one sentence if nothing applied
            these; it is empty if the built-in applied them.
        grammar: returns whether brackets around tags mean something; None while Remora applies no tags.
        has_parts: whether each part of a prompt that AND divides has its own rows in a model call.
    """

    _asked: ClassVar[str] = "remora_asked"  # attribute of a processing object whose tags reached `activate`

    def __init__(
        self,
        module: ModuleType,
        *,
        batch: Callable[..., None],
        handed_back: Callable[[Any], bool],
        ended: Callable[[Any], None],
        not_applied: Callable[[Any, Images, str], None] = lambda p, images, failure: None,
        grammar: Callable[[], bool | None] = lambda: False,
        has_parts: bool = False,
    ) -> None:
        self._module = module
        self._batch = batch
        self._handed_back = handed_back
        self._ended = ended
        self._not_applied = not_applied
        self._in_force = False
        self._images: Images | None = None  # of the running `activate`
        self._inside = False
        self._called = False  # whether the host called `network` in the running `activate`
        self._depth = 0  # of calls that are passed on
        self._in_region = False  # while the tags of a region end
        self._failure: BaseException | None = None
        self._wraps = Wraps()
        self.network = self._network()
        self.tags = PromptTags(module, self._is_ours, grammar, has_parts=has_parts)
        """Reads the tags of prompts."""
        self._others: list[Any] = []  # what the registry had before, the latest last; one of each class
        self._conflicts: dict[str, str] = {}
        self._aliased: dict[str, Any] = {}  # the host's own objects of other kinds

    @property
    def in_force(self) -> bool:
        """Return whether the tags were taken over and not given back."""
        return self._in_force

    @property
    def replaced(self) -> Any:
        """Return the object that the registry had before, such as the built-in's, or None."""
        return self._others[-1] if self._others else None

    @property
    def conflicts(self) -> Sequence[str]:
        """Return one sentence for each other extension that took the tags."""
        return tuple(self._conflicts.values())

    def take_over(self) -> None:
        """Replace the built-in in the registry, under its aliases too; idempotent."""
        self._register(self._note)
        self._wraps.put(self._module, "parse_prompts", self._parse_prompts)
        self._wraps.put(self._module, "activate", self._activate)
        self._wraps.put(self._module, "deactivate", self._deactivate)
        self._in_force = True

    def _register(self, note: Callable[[Any], None]) -> None:
        registry, aliases = self._registries()
        present = registry.get("lora")
        if present is not None and not isinstance(getattr(present, "remora", None), ExtraNetworks):
            note(present)
        self._module.register_extra_network(self.network)
        for kind in KINDS[1:]:
            if aliases is not None:
                if kind in aliases and aliases[kind] is not self.network:
                    self._aliased[kind] = aliases[kind]
                aliases[kind] = self.network

    def _note(self, present: Any) -> None:
        """Remember a replaced object, of each class the latest, and whether another extension defines it."""
        self._others = [one for one in self._others if type(one) is not type(present)] + [present]
        if extension := _extension_of(present):
            self._conflict(extension)

    def _note_late(self, present: Any) -> None:
        """Note while pictures are made who took the tags: another one than the web UI registered itself."""
        extension = _extension_of(present)
        name = extension or type(present).__module__
        # the first one without an extension's file is the built-in's, which may register after Remora
        is_known = not extension and (not self._others or any(type(one) is type(present) for one in self._others))
        is_told = name in self._conflicts
        self._note(present)
        if not is_known and not is_told:
            self._conflict(name)
            logger.warning("remora: %s", self._conflicts[name])

    def _conflict(self, name: str) -> None:
        self._conflicts[name] = (
            f"the extension {name} also handles <lora:...> tags: Remora takes the tags back before each picture, "
            "so that handler has no effect; turn one of the two extensions off"
        )

    def give_back(self) -> None:
        """Restore the built-in's object and the functions; others' wrappers around Remora's stay and pass calls on."""
        self._in_force = False
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
        self._wraps.give_back()

    def check_served(self, p: Any) -> None:
        """Report, once, the tags of a picture that is about to be made, if the host activates none of them."""
        if getattr(p, self._asked, False) or getattr(p, "disable_extra_networks", False):
            return
        setattr(p, self._asked, True)
        images: Images = next((tags.images for tags in map(vars(p).get, _OWN_TAGS) if isinstance(tags, ImageTags)), ())
        if any(images):
            why = f"nothing applied {written(images)}: something makes the web UI skip its extra networks"
            self._not_applied(p, images, why)

    def _registries(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return self._module.extra_network_registry, getattr(self._module, "extra_network_aliases", None)

    def _parse_prompts(self, original: Callable[..., Any], prompts: Any, *args: Any, **kwargs: Any) -> Any:
        texts, tags = original(self.tags.for_host(prompts), *args, **kwargs)
        images = tuple(map(self.tags.of, prompts))
        if not any(images):
            # prompts that lost their tags when they were parsed first: the host passes the first result
            earlier = next((one for one in (*args, *kwargs.values()) if isinstance(one, ImageTags)), None)
            images = images if earlier is None else earlier.images
        return texts, ImageTags.of(tags or {}, images, tuple(filter(self._is_ours, KINDS)))

    def _activate(self, original: Callable[..., Any], p: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if getattr(p, "disable_extra_networks", False):
            return original(p, data, *args, **kwargs)
        setattr(p, self._asked, True)
        tags = data if data else getattr(p, "network_data", data)
        ours = self._is_registered(p)
        images = getattr(tags, "images", None)
        self._images, self._inside, self._called, self._failure = images, True, False, None
        try:
            result = original(p, data, *args, **kwargs)
            failure, called = self._failure, self._called
        finally:
            self._images, self._inside, self._failure = None, False, None
        if failure is not None:
            raise failure
        if ours and not called and images is not None and any(images):
            why = f"nothing applied {written(images)}: the web UI did not call Remora, which is registered"
            self._not_applied(p, images, why)
        return result

    def _is_registered(self, p: Any) -> bool:
        """Tell whether the host will call Remora; takes the tags back where another extension replaced it."""
        if self._registries()[0].get("lora") is self.network:
            return True
        if self._handed_back(p):
            return False  # the built-in, or the other extension on top of it, works as without Remora
        self._register(self._note_late)
        return True

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
            self._batch(p, self.tags.with_negatives(p, again.images), include=(), exclude=())
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
                if outer._is_handed_back(p):
                    outer._pass_on("deactivate", p, *args, **kwargs)
                elif not outer._in_region and kwargs.get("force", True):
                    outer._ended(p)

        return RemoraNetwork("lora")

    def _serve(
        self, p: Any, params: list[Any], include: Sequence[str], exclude: Sequence[str], *args: Any, **kwargs: Any
    ) -> None:
        self._called = True
        with self._kept_failure():
            self._serve_or_pass_on(p, params, include, exclude, *args, **kwargs)

    @contextmanager
    def _kept_failure(self) -> Iterator[None]:
        """Raise errors where the host would not print them and go on: at the end of its `activate`."""
        try:
            yield
        except _OfBuiltinError as error:
            raise error.own from None  # as without Remora
        except BaseException as error:
            if not self._inside:
                raise
            self._failure = error

    def _serve_or_pass_on(
        self, p: Any, params: list[Any], include: Sequence[str], exclude: Sequence[str], *args: Any, **kwargs: Any
    ) -> None:
        images = self._images if self._images is not None else (self.tags.told({"lora": params}),)
        if self._is_handed_back(p):
            named = {**kwargs, "include": include, "exclude": exclude}
            if self._pass_on("activate", p, params, *args, **named):
                if self._in_force:
                    self._not_applied(p, images, "")
            elif params:
                self._not_applied(p, images, f"nothing applied {written(images)}: the web UI has no LoRA of its own")
            return
        self._batch(p, self.tags.with_negatives(p, images), include=include, exclude=exclude)

    def _is_handed_back(self, p: Any) -> bool:
        return not self._in_force or self._depth > 0 or self._handed_back(p)

    def _pass_on(self, method: str, *args: Any, **named: Any) -> bool:
        """Call what the registry had before, with the arguments of its signature; tell whether there is one.

        Another extension's object may itself call Remora's, which it replaced. Then the next earlier one is called.
        """
        if self._depth >= len(self._others):
            return False
        self._depth += 1
        try:  # its errors are its own
            function = getattr(self._others[-self._depth], method)
            takes = inspect.signature(function).parameters
            every = any(one.kind is one.VAR_KEYWORD for one in takes.values())
            function(*args, **{name: value for name, value in named.items() if every or name in takes})
        except Exception as error:  # noqa: BLE001  # passed on, marked
            raise (_OfBuiltinError(error) if method == "activate" else error) from None
        finally:
            self._depth -= 1
        return True

    def _is_ours(self, kind: str) -> bool:
        """Tell whether Remora applies tags of this kind; an older extension has its own for `lyco`."""
        return kind == self.network.name or self._registries()[0].get(kind) in (None, self.network)
