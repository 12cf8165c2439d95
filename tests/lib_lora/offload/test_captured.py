"""Forwards that hooks captured before the class patch was there, or under one that is gone, are reached."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from lib_lora import Engine, install, uninstall
from lib_lora.execution.hooks import CLASSES
from tests.fakes.models import (
    tiny_unet,
)
from tests.fakes.offloading import (
    CAPTURING,
    Expected,
    assert_same,
    same_function,
)
from tests.fakes.schemes import (
    SCHEMES,
    call,
    sequential_offload,
)


class TestForwardCapturedEarly:
    """A hook keeps the forward it found; whichever that was, the adapters must be reached."""

    @pytest.fixture(autouse=True)
    def _installed_afterwards(self) -> Iterator[None]:
        uninstall()
        found = {cls: dict(vars(cls)) for cls in CLASSES}
        yield
        uninstall()
        left = {cls.__name__: set(vars(cls)) ^ set(attributes) for cls, attributes in found.items()}
        for cls, attributes in found.items():  # so that no other test pays for what is found wrong here
            for name in set(vars(cls)) - set(attributes):
                delattr(cls, name)
            cls.forward = attributes["forward"]
        install()
        assert not any(left.values()), left

    @pytest.mark.parametrize("scheme", CAPTURING)
    def test_before_the_class_patch(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        with SCHEMES[scheme](unet, accelerator):
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
        assert_same(call(unet, expected.inputs), expected.full)
        engine.deactivate()
        assert_same(call(unet, expected.inputs), expected.base)

    @pytest.mark.parametrize("scheme", CAPTURING)
    def test_under_a_patch_that_was_undone(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        install()
        unet = tiny_unet(0)
        with SCHEMES[scheme](unet, accelerator):
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            uninstall()  # a UI reload: the model stays, the extension comes again
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
            engine.deactivate()
            assert_same(call(unet, expected.inputs, accelerator), expected.base)

    def test_under_a_patch_that_another_extension_put_back(
        self, expected: Expected, accelerator: torch.device, caplog: pytest.LogCaptureFixture
    ) -> None:
        theirs = {cls: cls.forward for cls in (nn.Linear, nn.Conv2d)}
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        with sequential_offload(unet, accelerator):
            for cls, forward in theirs.items():
                cls.forward = forward
            engine.activate(expected.stack)
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
        assert "patched again" in caplog.text
        engine.deactivate()
        assert_same(call(unet, expected.inputs), expected.base)

    def test_by_hooks_that_are_gone(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            pass
        assert "forward" in unet.conv_in.__dict__  # accelerate leaves what it once found, on the layer itself
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs), expected.full)
        engine.deactivate()
        assert_same(call(unet, expected.inputs), expected.base)

    def test_is_given_back_by_uninstall(self, accelerator: torch.device, expected: Expected) -> None:
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            found = unet.conv_in._old_forward
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert unet.conv_in._old_forward != found
            uninstall()
            assert unet.conv_in._old_forward == found

    def test_is_not_given_back_to_hooks_that_are_gone(self, accelerator: torch.device, expected: Expected) -> None:
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            Engine({"unet": unet}).activate(expected.stack)
        uninstall()
        assert not hasattr(unet.conv_in, "_old_forward")
        assert same_function(unet.conv_in.forward, nn.Conv2d.forward)

    def test_does_not_keep_the_model_alive(self, accelerator: torch.device, expected: Expected) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        uninstall()
        with sequential_offload(unet, accelerator):
            engine.activate(expected.stack)
            call(unet, expected.inputs, accelerator)
        layer = weakref.ref(unet.conv_in)
        del unet
        gc.collect()
        assert layer() is None
