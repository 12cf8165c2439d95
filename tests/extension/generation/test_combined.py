"""LoRA whose tags have one rule: one file is applied in their place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from extension.generation import combined_files
from extension.generation.activation import Activation
from extension.generation.request import USUAL, Settings
from extension.hosts import NotMadeError
from extension.text.prompt import parse
from lib_lora import Entry, Stack
from lib_lora.saving import combine_files
from tests.extension.generation.test_session import KEY, Setup, setup  # noqa: F401  # the fixture
from tests.fakes.files import pair, save

TIES = ":combine=ties:density=0.4"
SHARED = ":half=pos:start=2:rows=1,2"


def begun(of: Setup, *prompts: str, settings: Settings = USUAL, seeds: Sequence[int] = (1,), **more: Any) -> Activation:
    return of.session.begin_batch([parse(one).tags for one in prompts], settings, seeds=seeds, **more)


def files(of: Setup) -> list[Path]:
    folder = of.session.combiner._folder
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def pairs(setup: Setup) -> Setup:  # noqa: F811
    """Return the session with two LoRA of one rank, one of another, and one that depends on the base weight."""
    setup.save("a", seed=1)
    setup.save("b", seed=2)
    save(setup.folder / "large.safetensors", pair(KEY, (512, 128), 3, seed=3, size=0.3))
    norms = {f"{KEY}.dora_scale": setup.weight().detach().norm(dim=1, keepdim=True) * 1.5}
    save(setup.folder / "dora.safetensors", pair(KEY, (512, 128), 2, seed=4, size=0.3) | norms)
    setup.session.catalog.refresh()
    return setup


def test_a_rule_acts_as_the_file_that_combines_its_lora(pairs: Setup, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("combined")
    for name, rule, density, others in (
        ("b", "ties", 0.4, {}),
        ("b", "dare_linear", 0.4, {"seed": 3}),
        ("large", "ties_svd", 0.4, {}),
        ("dora", "magnitude_prune", 0.5, {}),
        ("large", "orthogonal", None, {}),
    ):
        given = "".join(f":{key}={value}" for key, value in ({"density": density} | others).items() if value)
        activation = begun(pairs, f"<lora:a:0.8:combine={rule}{given}> <lora:{name}:0.5:combine={rule}{given}>")
        live = pairs.output()
        assert len(activation.active) == 1, rule
        whole = (
            "a + dora: in 1 of 1 weights a file has no plain LoRA of the whole weight; there whole changes are merged",
        )
        assert activation.kept == (whole if name == "dora" else ()), rule
        assert [(one.name, one.state) for one in activation.outcomes] == [("a", "applied"), (name, "applied")]
        pairs.session.end()
        entries = [Entry(pairs.folder / "a.safetensors", 0.8), Entry(pairs.folder / f"{name}.safetensors", 0.5)]
        components = pairs.session.model.components
        path = folder / f"{rule}.safetensors"
        combine_files(entries, path, rule, density=density, components=components, **others)  # type: ignore[arg-type]
        plain = pairs.output()
        pairs.session.model.engine_with(USUAL.memory).activate(Stack([Entry(path)]))
        assert torch.equal(live, pairs.output()), rule
        assert not torch.equal(live, plain)
        pairs.session.end()
    assert len(files(pairs)) == 5


def test_a_lora_of_several_components_is_combined_as_the_file_with_its_factors(pairs: Setup) -> None:
    (pairs.folder / "sks" / "text_encoder").mkdir(parents=True)
    own = pairs.folder / "a.safetensors"
    (pairs.folder / "sks" / "text_encoder" / "adapter_model.safetensors").write_bytes(own.read_bytes())
    pairs.session.catalog.refresh()
    made = []
    for name in ("a", "sks"):
        activation = begun(pairs, f"<lora:{name}:0.8{TIES}> <lora:b:0.5{TIES}>")
        assert [(one.name, one.state) for one in activation.outcomes] == [(name, "applied"), ("b", "applied")]
        assert activation.kept == ()
        made.append(pairs.output())
        pairs.session.end()
    assert torch.equal(*made)


def test_what_cannot_be_combined_adds_up_and_one_sentence_says_why(pairs: Setup) -> None:
    begun(pairs, "<lora:a:0.8> <lora:b:0.5>")
    added = pairs.output()
    for a, b, why in (
        (":mask=left", "", "a and b differ in their steps, passes, prompts, images or regions"),
        ("", ":stop=4", "a and b differ in their steps, passes"),
        ("", ":density=0.5", "a: combine=ties is left out, and they add up: no other LoRA has the same rule"),
        (":unet=0@0,1@1", ":unet=0@0,1@1", "a has a schedule of strengths; write a number"),
    ):
        given = f":te=0.8{a}{TIES}", f":te=0.5{b}{TIES.removesuffix(':density=0.4') if 'density' in b else TIES}"
        activation = begun(pairs, f"<lora:a{given[0]}> <lora:b{given[1]}>")
        assert len(activation.active) == 2
        assert why in activation.kept[0], why
        if "mask" not in a:
            assert torch.equal(pairs.output(), added), why
    (note,) = begun(pairs, f"<lora:a:0.8{TIES}> <lora:large:0.5{TIES}>").kept
    assert note.startswith("a + large: combine=ties is left out, and they add up: ")
    assert note.endswith("combine=ties takes one rank, and the files have 2, 3; write combine=ties_svd")
    assert [note for note in pairs.session.warnings() if "combine=" in note] == [note]
    assert files(pairs) == []
    folder = pairs.session.combiner._folder
    folder.rmdir()
    folder.write_bytes(b"")  # no file can be made in it
    (note,) = begun(pairs, f"<lora:a:0.8{TIES}> <lora:b:0.5{TIES}>").kept
    assert note.startswith(f"a + b: combine=ties is left out, and they add up: {folder}: ")
    assert "Errno" not in note
    assert torch.equal(pairs.output(), added)


def test_lora_of_one_rule_share_what_limits_them_and_images_have_files_of_their_own(pairs: Setup) -> None:
    limits = ":half=pos:start=2:pass=base:mask=left"
    one = f"<lora:a:0.8{TIES}{limits}> <lora:b:0.5{TIES}{limits}>"
    other = f"<lora:large:0.3> <lora:a:1{TIES}{limits}> <lora:b:0.5{TIES}{limits}>"
    activation = begun(pairs, one, other, one, seeds=(1, 2, 3))
    assert [active.images for active in activation.active] == [(0, 2), (1,), (1,)]
    assert [active.name for active in activation.active] == ["a + b (ties)", "large", "a + b (ties)"]
    entry = pairs.session.model.engine_with(USUAL.memory).stack.entries[0]
    (alone,) = parse(f"<lora:x:1{limits}>").tags
    assert entry.of_image(0) == Entry("x", alone.multiplier).of_image(0)
    assert len(files(pairs)) == 2
    uses = pairs.session.record
    uses.made([(seed, None) for seed in (1, 2, 3)])
    assert [[lora.name for lora in one.loras] for one in uses.pictures()] == [
        ["a", "b"],
        ["large", "a", "b"],
        ["a", "b"],
    ]
    assert [lora.strength for lora in uses.pictures(seed=2)[0].loras] == ["0.3", "1", "0.5"]


def test_a_file_is_made_once_for_a_stack_and_the_oldest_goes(pairs: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combined_files, "_MOST_FILES", 2)
    outputs = {}
    for mode in ("live", "merged"):
        for strength in (0.8, 0.7, 0.8, 0.6, 0.8):
            settings = Settings(mode=mode)  # type: ignore[arg-type]
            begun(pairs, f"<lora:a:{strength}{TIES}> <lora:dora:0.5{TIES}>", settings=settings)
            stamps = {path: path.stat().st_mtime_ns for path in files(pairs)}
            outputs.setdefault((mode, strength), pairs.output())
            assert len(stamps) <= 2
    before = {path: path.stat().st_mtime_ns for path in files(pairs)}
    assert len(before) == 2
    begun(pairs, f"<lora:a:0.8{TIES}> <lora:dora:0.5{TIES}>")
    assert {path: path.stat().st_mtime_ns for path in files(pairs)} == before
    assert torch.equal(pairs.output(), outputs["live", 0.8])
    assert torch.allclose(outputs["merged", 0.8], outputs["live", 0.8], atol=1e-4)
    pairs.save("a", seed=9)  # another file of the name
    begun(pairs, f"<lora:a:0.8{TIES}> <lora:dora:0.5{TIES}>")
    assert not torch.equal(pairs.output(), outputs["live", 0.8])


def test_an_interruption_leaves_nothing_and_the_next_picture_is_made(pairs: Setup) -> None:
    prompt, combiner = f"<lora:a:0.8{TIES}> <lora:b:0.5{TIES}>", pairs.session.combiner
    skips: Settings = Settings(skip_bad=True)
    weight = pairs.weight().clone()
    for mode in ("live", "merged"):
        begun(pairs, f"<lora:large:0.{3 + len(mode)}>", settings=Settings(mode=mode))  # type: ignore[arg-type]
        former = pairs.output()
        for last in range(4):  # before anything, then once for each time that the layer is gone through
            said: list[tuple[str, object]] = []

            def goes_on(text: str, last: int = last, said: list[tuple[str, object]] = said) -> bool:
                said.append((text, combiner.progress))
                return len(said) <= last

            why = f"combining a \\+ b by ties was interrupted after {last // 3} of 1 layers, so that the picture is not"
            with pytest.raises(NotMadeError, match=why):
                begun(pairs, prompt, settings=skips, goes_on=goes_on)
            assert [text for text, _ in said] == [*["Combining LoRA: 0 of 1 layers"] * last, said[last][0], ""]
            assert said[last] == (f"Combining LoRA: {last // 3} of 1 layers", (last // 3, 1))
            assert said[-1] == ("", None)
            assert files(pairs) == []
            assert [one.sentence[:16] for one in pairs.session.outcomes] == ["combining a + b "]
            assert torch.equal(pairs.output(), former), "what was active stays until it ends"
        pairs.session.end()
        assert torch.equal(pairs.weight(), weight)
    begun(pairs, prompt)
    made, kept = pairs.output(), files(pairs)
    begun(pairs, prompt, goes_on=lambda text: False)  # of the file that is there
    assert torch.equal(pairs.output(), made)
    assert files(pairs) == kept
    assert len(kept) == 1
    assert pairs.session.failed == ()
