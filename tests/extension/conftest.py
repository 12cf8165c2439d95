"""What the tests of the extension share: the demo model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from extension.hosts.standalone import STANDALONE
from extension.standalone.demo import Demo
from extension.standalone.jobs import Runner
from extension.standalone.model import load_model
from extension.standalone.studio import Studio, open_studio
from tests.fakes.demo import copied_demo

# diffusers' schedulers make arrays of tensors in a way that torch and NumPy 2 do not agree on yet
_SCHEDULERS = (
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    "ignore:__array_wrap__ must accept context and return_scalar arguments:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):  # of all tests of a run, so that it must be quick
            item.add_marker(pytest.mark.filterwarnings(*_SCHEDULERS))


@pytest.fixture(scope="session", autouse=True)
def search_beside_tests() -> Iterator[None]:
    """Let the search for copies have the usual priority: with the lowest one it waits for other processes of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extension.library.copies._LOWEST", 0)
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Return the demo's model and LoRAs, in a copy that tests may write to."""
    return copied_demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def studio(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Return the demo model, ready to make pictures."""
    model = load_model(demo.model, torch.float32)
    yield open_studio(model, torch.device("cpu"), [demo.loras], tmp_path_factory.mktemp("pictures"))
    STANDALONE.close()


@pytest.fixture(scope="module")
def runner(studio: Studio) -> Iterator[Runner]:
    """Yield a running job queue over the demo model."""
    runner = Runner(studio)
    yield runner
    runner.close()


@pytest.fixture
def lora_file(demo: Demo) -> Path:
    """Return a real, readable LoRA file to copy."""
    return demo.loras / "zorp.safetensors"
