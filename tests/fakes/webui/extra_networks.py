"""`modules.extra_networks` as A1111's descendants have it, and as SD.Next has it.

What matters of them here: tags of one prompt of the batch count only; a registered object is asked once per batch,
also without tags, and again without tags if it raises; what it raises is shown and forgotten; SD.Next looks at the
names in its signature.

Source: `modules/extra_networks.py` of AUTOMATIC1111/stable-diffusion-webui at 82a973c, which Forge Neo 2.26 has too
(exo101/sd-webui-forge-neo-v3 at 5692d2d), and of vladmandic/sdnext at 058a7f0.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

_TAG = re.compile(r"<(\w+):([^>]+)>")


class ExtraNetworkParams:
    def __init__(self, items: list[str]) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtraNetworkParams) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]


class ExtraNetwork:
    def __init__(self, name: str) -> None:
        self.name = name


class Builtin(ExtraNetwork):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__("lora")
        self.calls: list[list[str]] = []
        self.deactivated = 0

    def activate(self, p: Any, params_list: list[ExtraNetworkParams]) -> None:
        self.calls.append([":".join(params.items) for params in params_list])

    def deactivate(self, p: Any) -> None:
        self.deactivated += 1


class BuiltinOfSdNext(Builtin):
    """The same with SD.Next's arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.excluded: list[list[str]] = []

    def activate(
        self,
        p: Any,
        params_list: list[ExtraNetworkParams],
        step: int = 0,
        include: list[str] | None = None,
        exclude: list[str] | None = None,
    ) -> None:
        super().activate(p, params_list)
        self.excluded.append(exclude or [])

    def deactivate(self, p: Any, force: bool = False) -> None:
        self.deactivated += 1


def _parse_prompt(prompt: str) -> tuple[str, defaultdict[str, list[ExtraNetworkParams]]]:
    found: defaultdict[str, list[ExtraNetworkParams]] = defaultdict(list)
    for match in _TAG.finditer(prompt):
        found[match[1]].append(ExtraNetworkParams(match[2].split(":")))
    return _TAG.sub("", prompt), found


def a1111() -> ModuleType:
    """Return the module of A1111 1.10.1 and Forge: the first prompt's tags count, and there are aliases."""
    module = ModuleType("modules.extra_networks")
    registry: dict[str, Any] = {}
    aliases: dict[str, Any] = {}
    shown: list[BaseException] = []

    def parse_prompts(prompts: list[str]) -> tuple[list[str], Any]:
        parsed = [_parse_prompt(prompt) for prompt in prompts]
        return [text for text, _ in parsed], parsed[0][1] if parsed else None

    def lookup(data: dict[str, list[Any]]) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for name, params in list(data.items()):
            network = registry.get(name) or aliases.get(name)
            if network is not None:
                found.setdefault(network, []).extend(params)
        return found

    def attempt(function: Callable[..., None], *args: Any) -> bool:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001  # as the web UIs do
            shown.append(error)
            return False
        return True

    def activate(p: Any, extra_network_data: dict[str, list[Any]]) -> None:
        wanted = lookup(extra_network_data)
        done = [network for network, params in wanted.items() if attempt(network.activate, p, params)]
        for network in registry.values():
            if network not in done:  # one that failed, too
                attempt(network.activate, p, [])
        if getattr(p, "scripts", None) is not None:
            p.scripts.after_extra_networks_activate(p, extra_network_data=extra_network_data)

    def deactivate(p: Any, extra_network_data: dict[str, list[Any]]) -> None:
        wanted = lookup(extra_network_data)
        for network in (*wanted, *(one for one in registry.values() if one not in wanted)):
            attempt(network.deactivate, p)

    def initialize() -> None:
        registry.clear()
        aliases.clear()

    vars(module).update(
        extra_network_registry=registry,
        extra_network_aliases=aliases,
        register_extra_network=lambda network: registry.update({network.name: network}),
        register_extra_network_alias=lambda network, alias: aliases.update({alias: network}),
        initialize=initialize,
        ExtraNetwork=ExtraNetwork,
        ExtraNetworkParams=ExtraNetworkParams,
        parse_prompt=_parse_prompt,
        parse_prompts=parse_prompts,
        activate=activate,
        deactivate=deactivate,
        shown=shown,
    )
    return module


def sdnext(opts: Mapping[str, Any]) -> ModuleType:
    """Return the module of SD.Next: there are no aliases.

    Args:
        opts: the values of the settings.
    """
    module = ModuleType("modules.extra_networks")
    registry: dict[str, Any] = {}
    shown: list[BaseException] = []

    def parse_prompts(prompts: list[str], extra_data: Any = None) -> tuple[list[str], Any]:
        extra_data = extra_data or defaultdict(list)
        texts = []
        for prompt in prompts:
            text, tags = _parse_prompt(prompt)
            extra_data = tags or extra_data
            texts.append(text)
        return texts, extra_data

    def ask(network: Any, p: Any, params: list[Any], **said: Any) -> None:
        names = inspect.signature(network.activate).parameters
        both = said if "include" in names and "exclude" in names else {}
        try:
            network.activate(p, params, **both)
        except Exception as error:  # noqa: BLE001  # as the web UIs do
            shown.append(error)

    def activate(
        p: Any, extra_network_data: Any = None, step: int = 0, include: Any = None, exclude: Any = None
    ) -> None:
        if p.disable_extra_networks:
            return
        data = extra_network_data or p.network_data
        for name, params in data.items():
            if name in registry:
                ask(registry[name], p, params, step=step, include=include or [], exclude=exclude or [])
        for name, network in registry.items():
            if data.get(name) is None:
                ask(network, p, [], include=include or [], exclude=exclude or [])
        p.network_data = data

    def activate_filtered(p: Any, extra_network_data: Any = None, step: int = 0) -> None:
        apply_te = opts.get("lora_apply_te") if p.lora_apply_te is None else p.lora_apply_te
        exclude = [] if apply_te else ["text_encoder", "text_encoder_2", "text_encoder_3"]
        module.activate(p, extra_network_data, step=step, exclude=exclude)

    def deactivate(p: Any, extra_network_data: Any = None, force: bool | None = None) -> None:
        if p.disable_extra_networks:
            return
        force = bool(opts.get("lora_force_reload")) if force is None else force
        data = extra_network_data or p.network_data
        for name in (*(one for one in data if one in registry), *(one for one in registry if data.get(one) is None)):
            try:
                registry[name].deactivate(p, force=force)
            except Exception as error:  # noqa: BLE001  # as the web UIs do
                shown.append(error)

    vars(module).update(
        extra_network_registry=registry,
        register_extra_network=lambda network: registry.update({network.name: network}),
        initialize=registry.clear,
        ExtraNetwork=ExtraNetwork,
        ExtraNetworkParams=ExtraNetworkParams,
        parse_prompt=_parse_prompt,
        parse_prompts=parse_prompts,
        activate=activate,
        activate_filtered=activate_filtered,
        deactivate=deactivate,
        shown=shown,
    )
    return module


def processing(**more: Any) -> SimpleNamespace:
    """Return a processing object with the attributes that extra networks read."""
    return SimpleNamespace(disable_extra_networks=False, lora_apply_te=True, network_data={}, **more)


class Loractl:
    """cheald/sd-webui-loractl: its script replaces the object of `lora` before each picture, as its page's box says.

    Its handler gives the built-in below it strengths of its own, and calls it.
    """

    FILE = "/webui/extensions/sd-webui-loractl/loractl/lib/lora_ctl_network.py"

    def __init__(self, networks: ModuleType, builtin: type[Any]) -> None:
        code = {"__name__": "loractl.lib.lora_ctl_network", "__file__": self.FILE, "builtin": builtin, "script": self}
        exec(_LORACTL, code)  # so that the functions are of that file
        self.networks, self.handler, self.builtin = networks, code["LoraCtlNetwork"], builtin
        self.original: Any = None
        self.active: list[list[str]] = []
        """The names that its handler was called with."""

    def process(self, p: Any, enable: bool = True) -> None:
        registry = self.networks.extra_network_registry
        if enable and type(registry["lora"]) is not self.handler:
            self.original = registry["lora"]
            handler = self.handler()
            self.networks.register_extra_network(handler)
            if hasattr(self.networks, "register_extra_network_alias"):
                self.networks.register_extra_network_alias(handler, "loractl")
        elif not enable and type(registry["lora"]) is not self.builtin:
            self.networks.register_extra_network(self.original)
            self.original = None


_LORACTL = """
class LoraCtlNetwork(builtin):
    def activate(self, p, params_list):
        script.active.append([params.items[0] for params in params_list])
        return super().activate(p, params_list)
"""
