"""SD.Next's stand-in with Remora in it, on the demo's model and LoRA."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extension.generation.options import TABLE
from extension.generation.session import Session
from extension.guest import Guest
from extension.hosts.sdnext import SDNextHost
from extension.standalone.demo import Demo
from tests.fakes.demo import demo_pipeline

from . import sdnext as fake
from .sdnext_lora import OwnLora


@dataclass
class Setup:
    """The program with Remora in it."""

    web: fake.SDNext
    host: SDNextHost
    session: Session
    loras: Path

    def picture(self, *prompts: str, **values: Any) -> Tensor:
        return torch.stack(self.web.generate(*prompts, **values).images)

    def unload(self) -> None:
        self.session.close()


@contextmanager
def started(demo: Demo, folder: Path, lora: type[OwnLora] = OwnLora) -> Iterator[Setup]:
    """Start the program with the demo's LoRA in its folder."""
    for path in demo.loras.iterdir():
        shutil.copy(path, folder)
    torch.manual_seed(3)
    web = fake.SDNext(new_pipeline(), folder, lora, lora_fuse_native=True)
    host = SDNextHost()
    with web.running():
        session = Session(host)
        made = Setup(web, host, session, folder)

        def load_scripts() -> None:
            assert host.is_current()
            host.add_options(TABLE)
            host.connect(Guest(host, session, made.unload))

        web.start(load_scripts)
        yield made
        host.unload()
        session.catalog.close()


def new_pipeline() -> Any:
    """Return the demo's pipeline as the program has it."""
    pipe = demo_pipeline()
    pipe.unet.eval().requires_grad_(False)
    pipe.text_encoder.eval().requires_grad_(False)
    return pipe
