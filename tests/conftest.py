"""Fixtures, skips and the choice of tests that every test shares."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

# Before anything imports these libraries: no network, no telemetry.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TRANSFORMERS_OFFLINE="1",
    GRADIO_ANALYTICS_ENABLED="False",
    DO_NOT_TRACK="1",
)

import pytest
import torch

from lib_lora.compiler import misses_changes
from tests.selection import (
    pytest_addoption,
    pytest_configure,
    pytest_fixture_setup,
    pytest_runtest_setup,
    pytest_terminal_summary,
    pytest_testnodedown,
    select,
)

__all__ = [
    "pytest_addoption",
    "pytest_configure",
    "pytest_fixture_setup",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

torch.set_num_threads(1)  # the models here are small: more threads cost time, and bits would depend on the machine

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no window to draw, and takes two thirds of the time."""


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
MANY = 50  # modules
_IMPORTED: list[int] = []
"""How many modules there were when the garbage collector was told to pass over them."""
OF_LAYERS = ("addmm_impl_cpu_", r"slow_conv\w+", "compute_columns3d", "LayerNormKernelImpl", "GroupNormKernelImpl")
TOO_OLD = {
    rf"({'|'.join(OF_LAYERS)})\W+ not implemented for 'Half'": "torch before 2.3 computes no layers in fp16 on a CPU",
    r"`fused=True` requires all the params to be floating point": "training on a CPU needs torch 2.4",
}
"""What torch before 2.3 says -> why a test is skipped. Of what else it lacks, Remora takes care."""
TOO_OLD_BESIDE = {
    r"'torch.nn' has no attribute 'RMSNorm'": "torch before 2.4 has no norm that most transformers of diffusers have",
    r"kaiming_uniform_\(\) got an unexpected keyword argument 'generator'": "PEFT's kind needs a newer torch",
    r"cannot import name '\w+' from '(diffusers|transformers)'": "diffusers or transformers has no such model yet",
    r"module (diffusers|transformers) has no attribute": "diffusers or transformers has no such model yet",
    r"'dict' object has no attribute 'to_dict'": "transformers makes no such configuration yet",
    r"recompile_limit does|no attribute '(set_stance|start_ns|is_compiling)'": "another package needs a newer torch",
}
"""The same of a package beside Remora, which says it outside of Remora's code."""
OURS = tuple(str(ROOT / name) for name in ("lib_lora", "extension"))


def find_chromium() -> str | None:
    return os.environ.get("REMORA_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture
def names_of_every_family(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Let small models have the names of every family, though they are too narrow to be known for one."""
    from lib_lora.naming.architectures.base import Alias
    from lib_lora.naming.index import _name_tables

    monkeypatch.setattr(Alias, "only_names", True)
    _name_tables.cache_clear()
    yield
    _name_tables.cache_clear()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of devices to one of several processes, as each would start another one for them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/device" if nodeid.startswith("tests/device/") else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_what_cannot_run(items)
    select(config, items)


def pytest_collection_finish() -> None:
    pass_over_what_is_there()


@pytest.hookimpl(trylast=True)  # what fixtures of the file held has gone
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Pass over what the tests of a file imported, too."""
    if nextitem is not None and nextitem.path != item.path and len(sys.modules) > _IMPORTED[-1] + MANY:
        pass_over_what_is_there()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries report at the end that their objects leak


def pass_over_what_is_there() -> None:
    """Let the garbage collector look at what comes from now on, and pytest at fewer loggers.

    Imported modules and collected tests are over half a million objects. A full collection looks at each of them, and
    the code under test asks for many. To a logger that does not propagate, of which torch has eighty, pytest adds its
    handlers six times for each test.
    """
    gc.collect()
    gc.freeze()
    _IMPORTED.append(len(sys.modules))
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


def skip_what_cannot_run(items: list[pytest.Item]) -> None:
    if find_chromium() is not None:
        return
    skip = pytest.mark.skip(reason="no Chromium found; REMORA_CHROMIUM may name one")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(skip)


def why_too_old(error: BaseException) -> str | None:
    """Return what an error says that the oldest torch, or a package for it, cannot do; None where it is a fault."""
    if TORCH >= (2, 3):
        return None
    if several := getattr(error, "exceptions", ()):  # a group
        found = [why_too_old(one) for one in several]
        return found[0] if all(found) else None
    frames = traceback.extract_tb(error.__traceback__)
    beside = {} if frames and frames[-1].filename.startswith(OURS) else TOO_OLD_BESIDE
    return next((why for text, why in (TOO_OLD | beside).items() if re.search(text, str(error))), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what the oldest torch that is supported, or a package for it, cannot do."""
    why = None if call.excinfo is None else why_too_old(call.excinfo.value)
    if why is not None:
        try:
            pytest.skip(why)
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()
    return (yield)


@pytest.fixture(autouse=True)
def seed() -> None:
    # torch.manual_seed formats a stack for each kind of device that is not in use, which takes longer than many a test
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and TORCH < (2, 2):  # a reset of the compiler leaves the count as it is
        frames.FRAME_COUNTER = 0
    if misses_changes():  # of torch 2.9 to 2.11 on Python 3.13.0; Remora asks its users to set this, too
        torch._dynamo.config.use_recursive_dict_tags_for_guards = False


@pytest.fixture
def chromium() -> str:
    """Return the path of a Chromium; for tests marked `browser`."""
    found = find_chromium()
    assert found is not None, "mark this test `browser`"
    return found


def shared_folder(name: str) -> Path:
    """Return a folder of real files, or skip: they are too large, and not ours, to be part of the repository."""
    loras = Path(os.environ.get("REMORA_REAL_LORAS") or ROOT.parent / "shared" / "real-loras")
    folder = loras if name == "real-loras" else loras.with_name(name)
    if not folder.is_dir():
        pytest.skip(f"no folder {name}; REMORA_REAL_LORAS may name real-loras, with real-keys beside it")
    return folder


@pytest.fixture
def real_loras() -> Path:
    """Return the folder of real LoRA files."""
    return shared_folder("real-loras")


@pytest.fixture
def real_keys() -> Path:
    """Return the folder of key lists of real files and models."""
    return shared_folder("real-keys")
