"""Tags with a rule in ComfyUI: one file is applied in the place of their LoRA."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from extension.generation import combined_files
from lib_lora import AdapterFile, Entry, LoraError, Strength, combine_files
from lib_lora.saving.merging import RULES
from tests.extension.comfy.conftest import UNET, Clip, InterruptProcessingException, Interrupts, Patcher, lora
from tests.extension.comfy.test_nodes import SIGMAS, X
from tests.fakes.files import save

TIES = "combine=ties:density=0.5"


def entries(nodes: Any, text: str) -> tuple[Entry, ...]:
    return tuple(nodes.read_prompt(text, nodes._names(), nodes._path)[1])


def outputs(applied: tuple[Patcher, Clip]) -> list[Tensor]:
    model, clip = applied
    return [*model.sample(X, SIGMAS), clip.encode_from_tokens(clip.tokenize("abc"))]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def kept(tmp_path: Path) -> set[Path]:
    folder = tmp_path / "temp" / "remora"
    return set(folder.iterdir()) if folder.exists() else set()


@pytest.fixture
def components(nodes: Any, model: Patcher, clip: Clip) -> Mapping[str, nn.Module]:
    return {**nodes.denoiser_of(model), **nodes.text_encoders_of(clip.cond_stage_model)}


def test_lora_of_a_rule_act_as_the_file_that_combines_them(
    nodes: Any, model: Patcher, clip: Clip, components: Mapping[str, nn.Module], tmp_path: Path
) -> None:
    added = outputs(nodes._apply(model, clip, entries(nodes, "<lora:a:0.8> <lora:b:te=0.2:unet=0.5>")))
    for rule in (*RULES, "orthogonal", "ties_svd"):
        density = None if rule in ("linear", "orthogonal") else 0.5
        given = f"combine={rule}" + ("" if density is None else f":density={density}")
        prompt = f"<lora:a:0.8:{given}> <lora:b:te=0.2:unet=0.5:{given}>"
        found = outputs(nodes._apply(model, clip, entries(nodes, prompt)))
        assert Interrupts.shown[-1] == (2, 2)
        sources = [
            Entry(tmp_path / "a.safetensors", Strength({"unet": 0.8, "text_encoder": 0.8})),
            Entry(tmp_path / "b.safetensors", Strength({"unet": 0.5, "text_encoder": 0.2})),
        ]
        path = tmp_path / "one.safetensors"
        combine_files(sources, path, rule, density=density, components=components, replace=True)  # type: ignore[arg-type]
        assert same(found, outputs(nodes._apply(model, clip, (Entry(path),)))), rule
        assert not same(found, added)
        shown = len(Interrupts.shown)
        assert same(found, outputs(nodes._apply(model, clip, entries(nodes, prompt))))
        assert len(Interrupts.shown) == shown, "the file is there"


def test_what_limits_all_of_a_rule_limits_its_file(
    nodes: Any, model: Patcher, clip: Clip, components: Mapping[str, nn.Module], tmp_path: Path
) -> None:
    path = tmp_path / "one.safetensors"
    sources = [Entry(tmp_path / "a.safetensors", 0.8), Entry(tmp_path / "b.safetensors", 0.5)]
    combine_files(sources, path, "ties", density=0.5, components=components)
    limited = f"<lora:a:0.8:start=0.5:{TIES}> <lora:b:0.5:start=0.5:{TIES}> <lora:b:0.1>"
    found = outputs(nodes._apply(model, clip, entries(nodes, limited)))
    late = nodes.entry_of(path, 1.0, 1.0, 0.5, 1.0, "", None)
    assert same(found, outputs(nodes._apply(model, clip, (*entries(nodes, "<lora:b:0.1>"), late))))
    off = f"<lora:a:0:{TIES}> <lora:b:0.5:{TIES}>"
    assert same(
        outputs(nodes._apply(model, clip, entries(nodes, off))),
        outputs(nodes._apply(model, clip, entries(nodes, "<lora:b:0.5>"))),
    )


def test_what_cannot_be_combined_is_one_sentence(nodes: Any, model: Patcher, clip: Clip, tmp_path: Path) -> None:
    lora(tmp_path / "c.safetensors", 2, [UNET])
    tensors = load_file(tmp_path / "c.safetensors")
    tensors[f"{UNET}.lora_down.weight"] = torch.ones(3, 8)
    tensors[f"{UNET}.lora_up.weight"] = torch.ones(8, 3)
    save(tmp_path / "c.safetensors", tensors)
    for prompt, why in (
        (f"<lora:a:1:{TIES}> <lora:b:1>", "a: combine=ties is not possible: no other LoRA has the same rule, density"),
        (f"<lora:a:1:{TIES}> <lora:b:1:start=0.5:{TIES}>", "a + b: combine=ties is not possible: a and b differ in"),
        (f"<lora:a:1@0,0@1:{TIES}> <lora:b:1:{TIES}>", "a + b: combine=ties is not possible: a has a schedule"),
        (f"<lora:a:1:{TIES}> <lora:c:1:{TIES}>", "takes one rank, and the files have 2, 3; write combine=ties_svd"),
    ):
        with pytest.raises(LoraError) as caught:
            nodes._apply(model, clip, entries(nodes, prompt))
        assert why in str(caught.value)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
    assert kept(tmp_path) == set()


def test_an_interruption_leaves_nothing(
    nodes: Any, model: Patcher, clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = entries(nodes, f"<lora:a:0.8:{TIES}> <lora:b:0.5:{TIES}>")
    before = outputs((model, clip))
    with monkeypatch.context() as user:
        user.setattr(Interrupts, "wanted", True)
        with pytest.raises(InterruptProcessingException):
            nodes._apply(model, clip, stack)
    assert kept(tmp_path) == set()
    assert same(outputs((model, clip)), before)
    assert not same(outputs(nodes._apply(model, clip, stack)), before)
    assert len(kept(tmp_path)) == 1


def test_files_that_a_clone_needs_stay(
    nodes: Any, model: Patcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combined_files, "_MOST_FILES", 1)
    stacks = [entries(nodes, f"<lora:a:0.{i}:{TIES}> <lora:b:0.5:{TIES}>") for i in range(1, 4)]
    first, _ = nodes._apply(model, None, stacks[0])
    (made, *_), (file,) = first.sample(X, SIGMAS), kept(tmp_path)
    for stack in stacks[1:]:
        nodes._apply(model, None, stack)
        gc.collect()
    assert len(kept(tmp_path)) == 2
    assert torch.equal(first.sample(X, SIGMAS)[0], made)
    del first
    model.sample(X, SIGMAS)  # which is loaded in its place
    gc.collect()
    nodes._apply(model, None, stacks[1])
    assert file not in kept(tmp_path)
    nodes._apply(model, None, (*stacks[0], *entries(nodes, "<lora:a:1:combine=linear> <lora:b:1:combine=linear>")))
    assert {entry.path for entry in nodes.combined(stacks[0], {})} <= kept(tmp_path), (
        "both rules of a stack have theirs"
    )


def test_a_stack_with_a_rule_is_saved_as_it_acts(nodes: Any, model: Patcher, clip: Clip, tmp_path: Path) -> None:
    stack = entries(nodes, f"<lora:a:0.8:{TIES}> <lora:b:0.5:{TIES}>")
    found = outputs(nodes._apply(model, clip, stack))
    nodes.RemoraSave.execute(model, stack, "mine", 0, clip)
    (path,) = (tmp_path / "output").glob("mine*.safetensors")
    assert AdapterFile.open(path).metadata["ss_output_name"] == path.stem
    saved = outputs(nodes._apply(model, clip, (Entry(path),)))
    assert all((one - other).abs().max() <= 1e-6 * one.abs().max() for one, other in zip(found, saved, strict=True))
