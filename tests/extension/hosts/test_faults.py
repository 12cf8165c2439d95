"""Exceptions in Forge: who applies the tags then, and what the user is told. `test_fault_places` has each place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import extension
from extension.generation.options import ENABLED, FAIL, ON_BAD_LORA
from extension.generation.state import state_of
from extension.guest import Guest
from extension.hosts import _webui
from extension.hosts._extra_networks import ExtraNetworks
from extension.hosts._wraps import Wraps
from lib_lora import LoraError
from tests.fakes import forge
from tests.fakes.forge import FakeForge
from tests.fakes.webui.tags import applied_by

ALL = pytest.mark.parametrize("kind", forge.KINDS)
PROMPT = "cat<lora:a:1.0>"


class InjectedError(Exception):
    """Raised in place of, or after, one of Remora's functions."""


def raising(function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function that raises, after a call of another one."""

    def raises(*args: Any, **kwargs: Any) -> Any:
        if function is not None:
            function(*args, **kwargs)
        raise InjectedError("injected")

    return raises


def picture(p: Any) -> Tensor:
    return torch.stack(p.images)


def host() -> Any:
    assert extension._session is not None
    return extension._session.host


def told() -> list[str]:
    """Return the sentences in the tab."""
    assert extension._session is not None
    found = state_of(extension._session)
    return [*found["notes"], *found["conflicts"]]


@pytest.fixture(autouse=True)
def _off_again(web: FakeForge) -> Iterator[None]:
    yield
    web.printed.clear()


@pytest.fixture
def built_in(web: FakeForge) -> Tensor:
    """Return the built-in's picture."""
    web.opts.data[ENABLED] = False
    made = picture(web.generate(PROMPT))
    web.opts.data[ENABLED] = True
    return made


@pytest.fixture
def ours(web: FakeForge) -> Tensor:
    return picture(web.generate(PROMPT))


@ALL
@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_where_the_built_in_cannot_be_taken_off_it_applies_the_tags_as_the_setting_says(
    web: FakeForge, ours: Tensor, built_in: Tensor, monkeypatch: pytest.MonkeyPatch, after: bool, fails: bool
) -> None:
    if fails:
        web.opts.data[ON_BAD_LORA] = FAIL
    with monkeypatch.context() as patch:
        patch.setattr(host(), "quiet_builtin", raising(host().quiet_builtin if after else None))
        if fails:
            with pytest.raises(LoraError, match="InjectedError: injected"):
                web.generate(PROMPT)
        else:
            assert torch.equal(picture(web.generate(PROMPT)), built_in)
    assert applied_by(host()) == "handed back"
    assert any("could not be taken off the model" in sentence for sentence in told())
    p = web.generate(PROMPT)
    assert torch.equal(picture(p), built_in)
    assert "could not be taken off" in p.infotexts[0]["Remora warnings"]
    web.opts.data[ENABLED] = False
    web.generate("cat")
    web.opts.data[ENABLED] = True
    assert torch.equal(picture(web.generate(PROMPT)), ours)
    assert (applied_by(host()), told()) == ("Remora", [])


@ALL
@pytest.mark.parametrize("place", ["generation_ended", "wake_builtin"])
@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
def test_where_handing_back_fails_the_tab_says_so(
    web: FakeForge, ours: Tensor, monkeypatch: pytest.MonkeyPatch, place: str, fails: bool
) -> None:
    web.opts.data[ENABLED] = False
    web.opts.data.update({ON_BAD_LORA: FAIL} if fails else {})
    owner: Any = Guest if place == "generation_ended" else host()
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, raising())
        # a generation ends with the same function, whose error is the picture's
        with pytest.raises((InjectedError, LoraError)) if fails or owner is Guest else nullcontext():
            web.generate(PROMPT)
    assert any("own LoRA may not work (InjectedError: injected)" in sentence for sentence in told())
    assert applied_by(host()) == "handed back"
    web.opts.data[ENABLED] = True
    assert torch.equal(picture(web.generate(PROMPT)), ours)
    assert told() == []


@ALL
@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
def test_where_the_parameters_text_fails_the_picture_has_its_lora(
    web: FakeForge, ours: Tensor, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    web.opts.data.update({ON_BAD_LORA: FAIL} if fails else {})
    with monkeypatch.context() as patch:
        patch.setattr(host(), "tell", raising())
        if fails:
            with pytest.raises(LoraError, match="the parameters text does not have the LoRA"):
                web.generate(PROMPT)
        else:
            assert torch.equal(picture(web.generate(PROMPT)), ours)
    assert any("the parameters text does not have the LoRA" in sentence for sentence in told()), told()
    assert torch.equal(picture(web.generate(PROMPT)), ours)
    assert told() == []


@ALL
def test_what_fails_in_unloading_does_not_keep_the_rest_from_it(
    web: FakeForge, ours: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_webui, "add_axes", raising())
        patch.setattr(Wraps, "give_back", raising(Wraps.give_back))
        patch.setattr(ExtraNetworks, "give_back", raising(ExtraNetworks.give_back))
        here = host()
        web.unload()
    assert applied_by(here) == "not connected"
    assert web.modules["modules.extra_networks"].extra_network_registry == {"lora": web.builtin}
    web.generate(PROMPT)
    assert web.builtin.activated == [["a"]]
    assert web.printed == []


@ALL
def test_an_error_of_the_built_in_is_the_hosts_own(web: FakeForge, ours: Tensor) -> None:
    web.opts.data[ENABLED] = False
    web.builtin.activate = raising()
    web.generate(PROMPT)
    assert [type(error) for error in web.printed] == 2 * [InjectedError]  # it is asked again, without tags


@ALL
def test_lora_that_other_code_activates_before_a_generation_are_off_after_it(web: FakeForge) -> None:
    web.modules["modules.extra_networks"].activate(web.generate("dog<lora:b>"), {})
    web.generate(PROMPT)
    assert extension._session is not None
    assert extension._session.model.engine is not None
    assert not extension._session.model.engine.stack.entries
    assert [one.name for one in extension._session.last.active] == ["a"], "what the tab tells is of the picture"
