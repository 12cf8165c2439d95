"""An error at each place where Remora takes over from a web UI: what applies the tags then, and what the tab says.

`docs/trials.md` has the same table; a place that it lacks fails here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from torch import Tensor

import extension
from extension.generation.options import ENABLED
from extension.generation.state import state_of
from extension.guest import Guest
from extension.hosts._a1111_family import A1111FamilyHost
from extension.hosts._builtin_lora import BuiltinLora
from extension.hosts._conditionings import Conditionings
from extension.hosts._extra_networks import ExtraNetworks
from extension.hosts._sdnext_infotext import Infotexts
from extension.hosts._sdnext_prompts import Prompts
from extension.hosts._webui import WebUIHost
from extension.hosts._wraps import Wraps
from extension.standalone.demo import find_demo
from tests.fakes import forge
from tests.fakes.files import pair, save
from tests.fakes.webui.a1111 import A1111Fake
from tests.fakes.webui.a1111_model import LAYERS
from tests.fakes.webui.sdnext_session import started
from tests.fakes.webui.tags import applied_by

DOCS = Path(__file__).parents[3] / "docs" / "trials.md"


class InjectedError(Exception):
    """Raised in place of one of Remora's functions, or after it."""


@dataclass
class Running:
    """A web UI with Remora in it.

    Args:
        make: makes a picture with a LoRA.
        host: Remora's side of the web UI.
        wraps: the functions that Remora wraps beside the extra networks'.
        values: the web UI's settings.
        registered: returns what applies `<lora:...>` in the web UI.
        session: Remora.
    """

    make: Callable[[], Tensor]
    host: WebUIHost
    wraps: Wraps
    values: dict[str, Any]
    registered: Callable[[], Any]
    session: Any

    def told(self) -> list[str]:
        found = state_of(self.session)
        return [*found["notes"], *found["conflicts"]]

    def as_without(self) -> bool:
        return not isinstance(getattr(self.registered(), "remora", None), ExtraNetworks) and self.wraps._ours == {}


def _a1111(folder: Path, stack: ExitStack) -> Running:
    tensors: dict[str, Tensor] = {}
    for i, (layer, shape) in enumerate(LAYERS.items()):
        tensors |= pair(layer, shape, 2, alpha=2, seed=i, size=0.7)
    save(folder / "a.safetensors", tensors)
    web = stack.enter_context(A1111Fake(folder, extension.register).running())
    assert extension._session is not None
    return Running(
        lambda: torch.stack(web.generate("a cat<lora:a:1>").images),
        extension._session.host,  # type: ignore[arg-type]
        extension._session.host.wraps,  # type: ignore[attr-defined]
        web.shared.opts.data,
        lambda: web.extra_networks.extra_network_registry["lora"],
        extension._session,
    )


def _forge(folder: Path, stack: ExitStack) -> Running:
    save(folder / "a.safetensors", pair("lora_unet_input_blocks_1_1_transformer_blocks_0_attn2_to_q", (4, 4), 2))
    web = forge.FakeForge("forge_neo", folder)
    stack.enter_context(forge.running(web, stack.enter_context(pytest.MonkeyPatch.context())))
    extension.register()
    web.start(FastAPI())
    assert extension._session is not None
    stack.callback(extension.unregister)
    return Running(
        lambda: torch.stack(web.generate("a cat<lora:a:1>").images),
        extension._session.host,  # type: ignore[arg-type]
        extension._session.host.wraps,  # type: ignore[attr-defined]
        web.opts.data,
        lambda: web.modules["modules.extra_networks"].extra_network_registry["lora"],
        extension._session,
    )


def _sdnext(folder: Path, stack: ExitStack) -> Running:
    made = stack.enter_context(started(find_demo(), folder))
    return Running(
        lambda: made.picture("x<lora:zorp:0.8>"),
        made.host,
        made.host.wraps,
        made.web.opts.data,
        lambda: made.web.extra_networks.extra_network_registry["lora"],
        made.session,
    )


HOSTS = {"AUTOMATIC1111": _a1111, "Forge Neo": _forge, "SD.Next": _sdnext}

NOT_CONNECTED = "own LoRA", "is not connected"
HANDED_BACK = "own LoRA", "could not be taken off the model"
UNTOLD = "Remora", "the parameters text does not have the LoRA"
MAY_NOT_WORK = "own LoRA", "own LoRA may not work"
UNLOADED = "own LoRA", ""

Place = tuple[Any, str, tuple[str, str]]
"""The owner of a function, the function, and what follows from an error: what applies the tags, and what is said."""

EVERYWHERE: dict[str, Place] = {
    "the handler of the tags is registered": (ExtraNetworks, "_register", NOT_CONNECTED),
    "the tags are taken over": (ExtraNetworks, "take_over", NOT_CONNECTED),
    "functions of the web UI are wrapped": (Wraps, "put", NOT_CONNECTED),
    "the clock of steps is set": (Guest, "clock", NOT_CONNECTED),
    "the axes of plots are added": (Guest, "axes", NOT_CONNECTED),
    "the web UI's own LoRA are taken off the model": ("host", "quiet_builtin", HANDED_BACK),
    "the parameters text is written": ("host", "tell", UNTOLD),
    "the web UI's own LoRA is woken": ("host", "wake_builtin", MAY_NOT_WORK),
    "Remora's LoRA are removed after a picture": (Guest, "generation_ended", MAY_NOT_WORK),
    "Remora's wrappers are removed when it is unloaded": (Wraps, "give_back", UNLOADED),
}
OF_ONE_HOST: dict[str, dict[str, Place]] = {
    "AUTOMATIC1111": {
        "the functions of conditionings are wrapped": (Conditionings, "wrap", NOT_CONNECTED),
        "the patches of the built-in's extension are undone": (BuiltinLora, "_take_callbacks", HANDED_BACK),
    },
    "Forge Neo": {"the functions of conditionings are wrapped": (Conditionings, "wrap", NOT_CONNECTED)},
    "SD.Next": {
        "the functions of prompts are wrapped": (Prompts, "wrap", NOT_CONNECTED),
        "the functions of parameters texts are wrapped": (Infotexts, "wrap", NOT_CONNECTED),
    },
}


@contextmanager
def _broken(running: Running, place: Place, after: bool) -> Iterator[None]:
    owner, name, _ = place
    owner = running.host if owner == "host" else owner
    function = getattr(owner, name)

    def raises(*args: Any, **kwargs: Any) -> Any:
        if after:
            function(*args, **kwargs)
        raise InjectedError("injected")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, raises)
        yield


def _fail_to_connect(running: Running, place: Place, after: bool, theirs: Tensor) -> None:
    running.host.restore()
    with _broken(running, place, after):
        running.host.begin()
    assert (applied_by(running.host), running.as_without()) == ("not connected", True)
    assert torch.equal(running.make(), theirs)
    assert ["InjectedError: injected" in one and place[2][1] in one for one in running.told()] == [True]
    running.host.begin()


def _fail_to_take_off(running: Running, place: Place, after: bool, theirs: Tensor) -> None:
    running.values[ENABLED] = False
    running.make()
    running.values[ENABLED] = True
    with _broken(running, place, after):
        assert torch.equal(running.make(), theirs)
    assert applied_by(running.host) == "handed back"
    assert any("InjectedError: injected" in one and place[2][1] in one for one in running.told())
    running.values[ENABLED] = False
    running.make()
    running.values[ENABLED] = True


def _fail_to_tell(running: Running, place: Place, after: bool, ours: Tensor) -> None:
    with _broken(running, place, after):
        assert torch.equal(running.make(), ours)
    assert any(place[2][1] in one for one in running.told())


def _fail_to_hand_back(running: Running, place: Place, after: bool, theirs: Tensor) -> None:
    running.values[ENABLED] = False
    # in AUTOMATIC1111 and Forge a generation ends with the same function, whose error is the request's
    ends_with_it = place[0] is Guest and isinstance(running.host, A1111FamilyHost)
    with _broken(running, place, after), pytest.raises(InjectedError) if ends_with_it else nullcontext():
        running.make()
    assert applied_by(running.host) == "handed back"
    assert any("InjectedError: injected" in one and place[2][1] in one for one in running.told())
    assert torch.equal(running.make(), theirs)
    running.values[ENABLED] = True


HOW = {
    NOT_CONNECTED: _fail_to_connect,
    HANDED_BACK: _fail_to_take_off,
    UNTOLD: _fail_to_tell,
    MAY_NOT_WORK: _fail_to_hand_back,
}


@pytest.mark.parametrize("name", HOSTS)
def test_an_error_at_each_place_leaves_a_web_ui_that_works_and_says_so(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        running = HOSTS[name](tmp_path, stack)
        ours = running.make()
        running.values[ENABLED] = False
        theirs = running.make()
        running.values[ENABLED] = True
        assert torch.equal(running.make(), ours)
        assert not torch.equal(ours, theirs)
        for title, place in (EVERYWHERE | OF_ONE_HOST[name]).items():
            if place[2] == UNLOADED:
                continue  # last
            for after in (False, True):
                caplog.clear()
                expected = ours if place[2][0] == "Remora" else theirs
                try:
                    HOW[place[2]](running, place, after, expected)
                    assert any(one.levelno == logging.ERROR for one in caplog.records)
                    assert torch.equal(running.make(), ours)
                    assert (applied_by(running.host), running.told()) == ("Remora", [])
                except BaseException as error:
                    raise AssertionError(f"{name}, {title}, {'after' if after else 'before'} it: {error}") from error
        with _broken(running, EVERYWHERE["Remora's wrappers are removed when it is unloaded"], after=True):
            running.host.unload()
        assert (applied_by(running.host), running.as_without()) == ("not connected", True)
        assert torch.equal(running.make(), theirs)


def test_the_documentation_has_the_table_of_places() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for name, places in {"": EVERYWHERE, **OF_ONE_HOST}.items():
        for title, (_, _, (maker, said)) in places.items():
            (row,) = (one for one in rows if one.startswith(f"| {title}") and (name in one or not name))
            assert maker in row, title
            assert said in row, title
