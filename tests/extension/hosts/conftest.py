"""A Forge with Remora in it, for the tests of the hosts and of their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

import extension
from extension.library import Scanner
from extension.outputs import Outputs
from lib_lora import uninstall
from tests.fakes import forge
from tests.fakes.files import pair, save
from tests.fakes.forge import CHANNELS, WIDTH, FakeForge

QUERY = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_q"
TEXT = "lora_te_text_model_encoder_layers_0_mlp_fc1"


@pytest.fixture(autouse=True, scope="module")
def _classes_as_torch_has_them() -> None:
    """Whatever ran before in this process: what these tests find is what must be there again afterwards."""
    uninstall()


@pytest.fixture(autouse=True)
def _no_scan_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the watchers, which would ask a host that is gone for its folders and log that during other tests."""
    with ExitStack() as ends:
        for kind, end in ((Scanner, Scanner.stop), (Outputs, Outputs.close)):
            _end_after(kind, end, ends, monkeypatch)
        yield


def _end_after(kind: type[Any], end: Callable[[Any], None], ends: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    start = kind.start

    def noted(watcher: Any) -> None:
        ends.callback(end, watcher)
        start(watcher)

    monkeypatch.setattr(kind, "start", noted)


@pytest.fixture
def loras(tmp_path: Path) -> Path:
    folder = tmp_path / "Lora"
    folder.mkdir()
    unet, text = (CHANNELS, CHANNELS), (WIDTH, WIDTH)
    for seed, name in enumerate(("a", "b"), 1):
        both = pair(QUERY, unet, 2, seed=seed, size=0.8) | pair(TEXT, text, 2, seed=seed + 9, size=0.8)
        both |= pair("lora_unet_conv_in", (CHANNELS, CHANNELS, 3, 3), 2, seed=seed + 3, size=0.4)
        save(folder / f"{name}.safetensors", both)
    save(folder / "unet.safetensors", pair(QUERY, unet, 2, seed=5, size=0.8))
    save(folder / "text.safetensors", pair(TEXT, text, 2, seed=6, size=0.8))
    return folder


@pytest.fixture
def kind() -> str:
    return "forge"


@pytest.fixture
def web(kind: str, loras: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForge]:
    """Yield the web UI with Remora in it."""
    fake = FakeForge(kind, loras)
    with forge.running(fake, monkeypatch):
        assert extension.register() is not None
        fake.start(FastAPI())
        yield fake
        fake.unload()
        extension.unregister()
        assert fake.printed == []  # exceptions that the host forgot
