"""The session between a host and the engine: what is in force, and what a failure leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from extension.catalog import CatalogError
from extension.hosts.standalone import StandaloneHost
from extension.prompt import Tag
from extension.session import Session, Settings
from extension.standalone.demo_model import Demo, make_pipeline
from lib_lora import ActivationError, PickleError


@dataclass
class Setup:
    """A session over a text encoder, with a folder of LoRAs."""

    host: StandaloneHost
    session: Session
    encoder: nn.Module
    folder: Path

    def output(self) -> Tensor:
        with torch.no_grad():
            return self.encoder(torch.arange(10)[None]).last_hidden_state


@pytest.fixture
def setup(demo: Demo, tmp_path: Path) -> Iterator[Setup]:
    for path in demo.loras.iterdir():
        shutil.copy(path, tmp_path)
    pipeline = make_pipeline()
    host = StandaloneHost()
    host.open([tmp_path], {})
    host.set_components(pipeline.components)
    session = Session(host)
    yield Setup(host, session, pipeline.text_encoder.eval(), tmp_path)
    session.close()


def test_a_generation_has_its_loras_and_the_end_takes_them_off(setup: Setup) -> None:
    before = setup.output()
    activation = setup.session.begin([Tag("demo-linear", 0.8, 0.8)])
    assert activation.active[0].report.hit == 172
    assert activation.active[0].file.name == "demo-linear"
    assert not torch.equal(setup.output(), before)
    setup.session.end()
    assert torch.equal(setup.output(), before)


def test_no_wishes_switch_all_off(setup: Setup) -> None:
    before = setup.output()
    setup.session.begin([Tag("demo-linear")])
    assert setup.session.begin([]).active == ()
    assert torch.equal(setup.output(), before)
    assert setup.session.last.active == ()


def test_rank_and_multiplier_reach_the_engine(setup: Setup) -> None:
    whole = setup.session.begin([Tag("demo-linear")]) and setup.output()
    cut = setup.session.begin([Tag("demo-linear", rank=1)]) and setup.output()
    weak = setup.session.begin([Tag("demo-linear", 0.5, 1.0)]) and setup.output()
    setup.session.end()
    assert not torch.equal(whole, cut)
    assert not torch.equal(whole, weak)
    assert not torch.equal(cut, weak)


def test_a_failure_leaves_in_force_what_was(setup: Setup) -> None:
    setup.session.begin([Tag("demo-linear")])
    before = setup.output()
    (setup.folder / "old.pt").write_bytes(b"PK\x03\x04")
    (setup.folder / "bad.safetensors").write_bytes(b"\xff" * 32)
    setup.session.catalog.refresh()
    for name, kind in (("nope", CatalogError), ("old", ActivationError), ("bad", ActivationError)):
        with pytest.raises(kind, match=name):
            setup.session.begin([Tag("demo-locon"), Tag(name)])
        assert torch.equal(setup.output(), before)


def test_what_fails_is_skipped_with_its_reason(setup: Setup) -> None:
    (setup.folder / "old.pt").write_bytes(b"PK\x03\x04")
    (setup.folder / "bad.safetensors").write_bytes(b"\xff" * 32)
    setup.session.catalog.refresh()
    wishes = [Tag("bad"), Tag("demo-linear"), Tag("nope"), Tag("old"), Tag("demo-locon")]
    activation = setup.session.begin(wishes, Settings(skip_bad=True))
    assert [active.name for active in activation.active] == ["demo-linear", "demo-locon"]
    assert len(activation.skipped) == 3
    for name in ("bad.safetensors", "'nope'", "old.pt"):
        assert sum(name in reason for reason in activation.skipped) == 1
    alone = setup.output()
    setup.session.begin([Tag("demo-linear"), Tag("demo-locon")])
    assert torch.equal(setup.output(), alone)


def test_a_pickle_is_refused_with_the_way_to_convert_it(setup: Setup) -> None:
    (setup.folder / "old.ckpt").write_bytes(b"PK\x03\x04")
    with pytest.raises(ActivationError, match="convert it") as caught:
        setup.session.begin([Tag("old")])
    assert isinstance(caught.value.__cause__, PickleError)


def test_a_new_model_is_followed_and_the_old_one_is_clean(setup: Setup) -> None:
    before = setup.output()
    setup.session.begin([Tag("demo-linear")])
    other = make_pipeline()
    setup.host.set_components(other.components)
    setup.session.model_changed()
    assert torch.equal(setup.output(), before)
    old, setup.encoder = setup.encoder, other.text_encoder.eval()
    fresh = setup.output()
    setup.session.begin([Tag("demo-linear")])
    assert not torch.equal(setup.output(), fresh)
    setup.encoder = old
    assert torch.equal(setup.output(), before)


def test_closing_takes_everything_off_and_a_later_begin_starts_anew(setup: Setup) -> None:
    before = setup.output()
    setup.session.begin([Tag("demo-linear")])
    with_lora = setup.output()
    setup.session.close()
    assert torch.equal(setup.output(), before)
    setup.session.begin([Tag("demo-linear")])
    assert torch.equal(setup.output(), with_lora)
