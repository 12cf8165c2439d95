"""Remora's nodes for ComfyUI, on stand-ins of its MODEL and CLIP (tests/extension/comfy/conftest.py)."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lib_lora import Entry, FileError, LoraError, Region, Row, Strength
from lib_lora.adapters.dora import DoRA
from tests.extension.comfy.conftest import (
    TEXT,
    UNET,
    BaseModel,
    Clip,
    CondStage,
    GGMLLinear,
    HookGroup,
    Patcher,
    Sampler,
    euler,
    heun,
    lora,
    other_loop,
)
from tests.fakes.coroutines import completed
from tests.fakes.files import save

ROOT = Path(__file__).resolve().parents[3]
SOCKETS = ("MODEL", "CLIP", "LATENT", "MASK", "REMORA_STACK")
SIGMAS = torch.tensor([9.0, 6.0, 3.0, 1.0, 0.0])
X = torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(3))


def rows(nodes: Any, name: str, strength: float = 1.0, clip: float = 1.0, **inputs: Any) -> tuple[Entry, ...]:
    given = {"start_percent": 0.0, "stop_percent": 1.0, "blocks": "", **inputs}
    (stack,) = nodes.RemoraLora.execute(name, strength, clip, **given)
    return stack


def applied(
    nodes: Any, model: Patcher, *names: str, strength: float = 1.0, clip: Clip | None = None, **inputs: Any
) -> Any:
    stack: tuple[Entry, ...] = ()
    for name in names:
        stack = rows(nodes, name, strength, stack=stack, **inputs)
    return nodes.RemoraApply.execute(model, stack, clip)


def expected(model: Patcher, x: Tensor, files: dict[Path, float]) -> Tensor:
    """Return the output of the denoiser in fp64, by the definition."""
    weight = model.model.diffusion_model.input_blocks[1][1]["transformer_blocks"][0].attn1["to_q"].weight.double()
    for file, strength in files.items():
        tensors = load_file(file)
        weight = (
            weight
            + strength * tensors[f"{UNET}.lora_up.weight"].double() @ tensors[f"{UNET}.lora_down.weight"].double()
        )
    return torch.einsum("oi,bihw->bohw", weight, x.double())


def test_a_stack_acts_while_its_clone_is_sampled(nodes: Any, model: Patcher, tmp_path: Path) -> None:
    before = model.sample(X, SIGMAS)
    with_lora, _ = applied(nodes, model, "a.safetensors", "b.safetensors", strength=0.5)
    want = expected(model, torch.cat([X, X]), {tmp_path / "a.safetensors": 0.5, tmp_path / "b.safetensors": 0.5})
    for out in with_lora.sample(X, SIGMAS):
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    assert all(map(torch.equal, model.sample(X, SIGMAS), before))


def test_two_branches_have_their_own_stacks(nodes: Any, model: Patcher) -> None:
    (one, _), (two, _) = applied(nodes, model, "a.safetensors"), applied(nodes, model, "b.safetensors")
    first, second = one.sample(X, SIGMAS)[0], two.sample(X, SIGMAS)[0]
    assert not torch.equal(first, second)
    assert torch.equal(one.sample(X, SIGMAS)[0], first)
    assert torch.equal(two.clone().sample(X, SIGMAS)[0], second)


def test_a_compiled_module_that_another_clone_left_is_not_taken_for_the_denoiser(nodes: Any, model: Patcher) -> None:
    (alone, _), compiled = applied(nodes, model, "a.safetensors"), model.clone()
    want = alone.sample(X, SIGMAS)
    compiled.object_patches["diffusion_model"] = torch.compile(model.model.diffusion_model, backend="eager")
    assert not torch.equal(compiled.sample(X, SIGMAS)[0], want[0])
    (beside, _), (on_it, _) = applied(nodes, model, "a.safetensors"), applied(nodes, compiled, "a.safetensors")
    for one in (on_it, alone, on_it):
        assert all(map(torch.equal, one.sample(X, SIGMAS), want))
    assert not torch.equal(compiled.sample(X, SIGMAS)[0], want[0])
    model.patch_model()
    del compiled, on_it, one
    gc.collect()  # ComfyUI forgets the clone
    assert all(map(torch.equal, beside.sample(X, SIGMAS), want))
    torch._dynamo.reset()  # or the class counts as compiled in other tests


def test_a_stack_replaces_the_former_one(nodes: Any, model: Patcher) -> None:
    alone, _ = applied(nodes, model, "b.safetensors")
    one, _ = applied(nodes, model, "a.safetensors")
    two, _ = applied(nodes, one, "b.safetensors")
    assert torch.equal(two.sample(X, SIGMAS)[0], alone.sample(X, SIGMAS)[0])
    none, _ = nodes.RemoraApply.execute(two)  # as its only Remora LoRA is bypassed
    assert torch.equal(none.sample(X, SIGMAS)[0], model.sample(X, SIGMAS)[0])


def test_nothing_is_left_after_an_interruption(nodes: Any, model: Patcher) -> None:
    before = model.sample(X, SIGMAS)[0]
    with_lora, _ = applied(nodes, model, "a.safetensors")

    def interrupt(error: type[BaseException], *_: object) -> None:
        raise error

    for error in (KeyboardInterrupt, RuntimeError):
        stopped = with_lora.clone()
        stopped.add_wrapper_with_key("apply_model", "other", partial(interrupt, error))
        with pytest.raises(error):
            stopped.sample(X, SIGMAS)
        assert torch.equal(model.sample(X, SIGMAS)[0], before)
        assert not torch.equal(with_lora.sample(X, SIGMAS)[0][:2], before[:2])


def test_a_schedule_knows_the_step(nodes: Any, model: Patcher) -> None:
    before, (full, _) = model.sample(X, SIGMAS), applied(nodes, model, "a.safetensors")
    late, _ = applied(nodes, model, "a.safetensors", start_percent=0.5)
    outs, whole = late.sample(X, SIGMAS), full.sample(X, SIGMAS)
    assert [torch.equal(out, one) for out, one in zip(outs, before, strict=True)] == [True, True, False, False]
    assert [torch.allclose(out, one, atol=1e-6) for out, one in zip(outs, whole, strict=True)] == [
        False,
        False,
        True,
        True,
    ]


def acting(with_lora: Patcher, model: Patcher, sampler: Sampler, sigmas: Tensor = SIGMAS) -> list[bool]:
    """Return whether a LoRA changes the output of each call of a sampler."""
    outs, before = with_lora.sample(X, sigmas, sampler=sampler), model.sample(X, sigmas, sampler=sampler)
    return [not torch.equal(out, one) for out, one in zip(outs, before, strict=True)]


def test_the_second_call_of_a_step_is_of_the_same_step(nodes: Any, model: Patcher) -> None:
    late, _ = applied(nodes, model, "a.safetensors", start_percent=0.5)
    assert acting(late, model, heun) == [False, False, False, False, True, True, True]
    assert acting(late, model, other_loop) == [False, False, True, True]


def test_a_rule_of_the_noise_goes_by_the_step(nodes: Any, model: Patcher, clip: Clip) -> None:
    for rule in ("1:sigma=7-2", "0@700,1@600,1@200,0@150:by=timestep"):
        ruled, *_ = nodes.RemoraFromPrompt.execute(model, clip, f"<lora:a:{rule}>")
        assert acting(ruled, model, euler) == [False, True, True, False]
        assert acting(ruled, model, heun) == [False, False, True, True, True, True, False]


class OnDevice(Tensor):
    """A tensor of which no number is read."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.__name__ not in ("item", "tolist", "__float__", "__bool__"), f"{func.__name__} waits for the device"
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_schedule_reads_nothing_off_the_device_in_a_step(nodes: Any, model: Patcher, clip: Clip) -> None:
    def sampler(predict: Callable[[Tensor], None], sigmas: Tensor) -> None:
        for i in range(len(sigmas) - 1):
            predict(sigmas[i].as_subclass(OnDevice))

    for rule in ("1:start=0.5", "1:sigma=3-0", "0@400,1@300:by=timestep"):
        late, *_ = nodes.RemoraFromPrompt.execute(model, clip, f"<lora:a:{rule}>")
        assert acting(late, model, sampler) == [False, False, True, True]


def test_a_half_of_the_prompt_is_told_by_the_conditioning(nodes: Any, model: Patcher, clip: Clip) -> None:
    before = model.sample(X, SIGMAS, chunks=(1, 0))[0]
    with_lora, *_ = nodes.RemoraFromPrompt.execute(model, clip, "a cat <lora:a:1:half=pos>")
    out = with_lora.sample(X, SIGMAS, chunks=(1, 0))[0]
    torch.testing.assert_close(out[:2], before[:2])
    assert (out[2:] - before[2:]).abs().max() > 1e-4
    three = ("negative", "middle", "positive")  # as DualCFGGuider numbers them
    before = model.sample(X, SIGMAS, chunks=(2, 1, 0), prompts=three)[0]
    out = with_lora.sample(X, SIGMAS, chunks=(2, 1, 0), prompts=three)[0]
    torch.testing.assert_close(out[2:], before[2:])
    assert (out[:2] - before[:2]).abs().max() > 1e-4


def test_rows_are_of_the_conditionings_that_the_guider_has(nodes: Any) -> None:
    from extension.comfy.applied import SamplerCalls

    conds = {"positive": [{"uuid": 1}, {"uuid": 2}], "negative": [{"uuid": 3}]}  # two of ConditioningCombine
    calls = SamplerCalls(SIGMAS, SIGMAS[:-1], euler.__code__, SimpleNamespace(conds=conds))
    calls.begin({"cond_or_uncond": [1, 0, 0, 0], "uuids": [3, 2, 1, None]})
    assert calls.rows(4) == [Row(0, negative=True), Row(0, part=1), Row(0, part=0), Row(0)]
    calls.begin({"cond_or_uncond": [1, 0]})  # of a sampler that names no conditioning
    assert calls.rows(4) == [Row(0, negative=True), Row(1, negative=True), Row(0), Row(1)]


def test_a_lora_is_for_some_images_of_a_batch(nodes: Any, model: Patcher, clip: Clip, tmp_path: Path) -> None:
    with_lora, encoder, *_, stack = nodes.RemoraFromPrompt.execute(model, clip, "<lora:a:1:rows=2>")
    out, files = with_lora.sample(X, SIGMAS)[0], {tmp_path / "a.safetensors": 1.0}
    for at, image in enumerate([*X, *X]):
        want = expected(model, image[None], files if at % 2 else {})
        torch.testing.assert_close(out[at : at + 1].double(), want, rtol=1e-5, atol=1e-5)
    tokens = clip.tokenize("abc")
    assert torch.equal(encoder.encode_from_tokens(tokens), clip.encode_from_tokens(tokens))
    first, *_ = nodes.RemoraFromPrompt.execute(model, clip, "<lora:a:1:rows=1>")
    torch.testing.assert_close(first.sample(X, SIGMAS)[0][1::2], model.sample(X, SIGMAS)[0][1::2])
    with pytest.raises(LoraError, match="a file cannot say that a LoRA is for some images only"):
        nodes.RemoraSave.execute(model, stack, "mine", 0, clip)


def test_a_mask_limits_a_lora_to_a_region(nodes: Any, model: Patcher) -> None:
    mask = torch.zeros(1, 64, 64)
    mask[:, :, :32] = 1
    before, (full, _) = model.sample(X, SIGMAS)[0], applied(nodes, model, "a.safetensors")
    left, _ = applied(nodes, model, "a.safetensors", mask=mask)
    out = left.sample(X, SIGMAS)[0]
    torch.testing.assert_close(out[..., 2:], before[..., 2:])
    torch.testing.assert_close(out[..., :2], full.sample(X, SIGMAS)[0][..., :2])
    (entry,) = rows(nodes, "a.safetensors", mask=torch.ones(2, 3000, 16))  # which is scaled down
    assert isinstance(entry.multiplier, Strength)
    assert entry.multiplier.region == Region(16, 1024, b"\xff" * 16 * 1024)


def test_text_encoders_have_the_stack_of_their_clone(nodes: Any, model: Patcher, clip: Clip) -> None:
    before = clip.encode_from_tokens(clip.tokenize("abc"))
    _, with_lora = applied(nodes, model, "a.safetensors", clip=clip)
    out = with_lora.clone().encode_from_tokens_scheduled(clip.tokenize("abc"))[0][0]
    assert not torch.equal(out, before)
    assert torch.equal(clip.encode_from_tokens(clip.tokenize("abc")), before)
    assert torch.equal(
        applied(nodes, model, "a.safetensors", clip=with_lora)[1].encode_from_tokens(clip.tokenize("abc")), out
    )


def test_a_prompt_names_its_lora(nodes: Any, model: Patcher, clip: Clip) -> None:
    with_lora, encoder, conditioning, text, stack = nodes.RemoraFromPrompt.execute(model, clip, "a cat <lora:a:0.5>")
    same, _ = applied(nodes, model, "a.safetensors", strength=0.5, clip=clip)
    assert text == "a cat "
    assert [entry.name for entry in stack] == ["a"]
    assert torch.equal(with_lora.sample(X, SIGMAS)[0], same.sample(X, SIGMAS)[0])
    assert torch.equal(conditioning[0][0], encoder.encode_from_tokens(clip.tokenize(text)))


def test_a_file_for_one_part_leaves_the_other_alone(nodes: Any, model: Patcher, clip: Clip, tmp_path: Path) -> None:
    lora(tmp_path / "model.safetensors", layers=[UNET])
    before = clip.encode_from_tokens(clip.tokenize("abc"))
    _, encoder = applied(nodes, model, "model.safetensors", "a.safetensors", clip=clip)
    assert not torch.equal(encoder.encode_from_tokens(clip.tokenize("abc")), before)
    report = nodes.RemoraReport.execute(clip=encoder)[0]
    assert "model: nothing in it is for this part" in report


AT_FAULT = {
    "<lora:aa:1>": "aa: there is no such LoRA file; did you mean a",
    "<lora:a:1:low>": "a: each expert is a MODEL of its own in ComfyUI",
    "<lora:a:1:wrong=2>": "is not a setting of a LoRA tag",
}


def test_a_tag_at_fault_is_one_sentence_before_anything_runs(
    nodes: Any, model: Patcher, clip: Clip, tmp_path: Path
) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"no file")
    for text, reason in [*AT_FAULT.items(), ("<lora:broken:1>", "broken")]:
        with pytest.raises(LoraError) as caught:
            nodes.RemoraFromPrompt.execute(model, clip, text)
        with pytest.raises(LoraError) as in_rows:
            nodes.RemoraStack.execute(f"<lora:a:1>\n{text}")
        assert all(reason in str(one.value) and "\n" not in str(one.value) for one in (caught, in_rows))
        if text in AT_FAULT:  # the content of a file is read when the node runs
            assert nodes.RemoraFromPrompt.validate_inputs(text) == str(caught.value)
            assert nodes.RemoraStack.validate_inputs(f"<lora:a:1>\n{text}") == str(in_rows.value)
    with pytest.raises(LoraError, match="a: combine=ties is not possible: no other LoRA has the same rule"):
        nodes.RemoraFromPrompt.execute(model, clip, "<lora:a:1:combine=ties>")
    for fine in ("a cat <lora:a:1>", None):  # None where another node makes the text
        assert nodes.RemoraFromPrompt.validate_inputs(fine) is True


def test_rows_are_the_lora_of_a_stack(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(nodes, "a.safetensors")
    text = "<lora:b:0.5:start=0.5>\n # <lora:none:1>\n\n<lora:a:1:mask=left>"
    (stack,) = nodes.RemoraStack.execute(text, before)
    (alone,) = rows(nodes, "b.safetensors", 0.5, 0.5, start_percent=0.5)
    assert stack[:2] == (*before, alone)
    assert [entry.name for entry in stack] == ["a", "b", "a"]
    assert nodes.RemoraStack.execute("# <lora:none:1>\n")[0] == ()
    both = {nodes.RemoraLora.fingerprint_inputs(f"{name}.safetensors") for name in "ab"}
    for given in (text, None):
        assert set(nodes.RemoraStack.fingerprint_inputs(given).splitlines()) == both
    said = "line 2: 'a cat' is no LoRA tag; write <lora:name:1>, or # before it"
    assert nodes.RemoraStack.validate_inputs("<lora:a:1>\na cat <lora:b:1>") == said
    assert (
        nodes.RemoraStack.validate_inputs("\n<lora:a:1") == "line 2: <lora:a:1: the tag is not closed, '>' is missing"
    )

    def gone(name: str) -> Path:
        raise FileNotFoundError(f"{name} not found")

    monkeypatch.setattr(nodes, "_path", gone)  # a link to nothing is in ComfyUI's list
    assert nodes.RemoraStack.validate_inputs("<lora:a:1>") == "a.safetensors not found"


def test_rows_name_the_masks_of_their_node(nodes: Any, model: Patcher) -> None:
    left, right = torch.zeros(1, 64, 64), torch.zeros(1, 64, 64)
    left[:, :, :32], right[:, :, 48:] = 1, 1
    text = "<lora:a:1:mask=mask_1:outside=0.5>\n<lora:b:1:mask=!mask_1+mask_3>"
    assert nodes.RemoraStack.validate_inputs(text) is True
    (stack,) = nodes.RemoraStack.execute(text, mask_1=left, mask_3=right)
    (alone,), (beside,), (others,) = (rows(nodes, "a.safetensors", mask=mask) for mask in (left, right, 1 - left))
    first, second = (entry.multiplier for entry in stack)
    assert (first.region, first.outside) == (alone.multiplier.region, 0.5)
    assert second.region == others.multiplier.region | beside.multiplier.region
    (stack,) = nodes.RemoraStack.execute("<lora:a:1:mask=mask_2>", mask_2=left)
    of_rows, of_node = (nodes.RemoraApply.execute(model, one)[0].sample(X, SIGMAS)[0] for one in (stack, (alone,)))
    assert torch.equal(of_rows, of_node)
    faults = {
        "mask_2": "mask_2: a row has mask=mask_2, so connect a MASK to this input",
        "!mask_4": "mask_4: a row has mask=mask_4",
        "mask_1": "mask_1: it is empty",
    }
    for name, reason in faults.items():
        assert nodes.RemoraStack.validate_inputs(f"<lora:a:1:mask={name}>") is True  # it is known when the node runs
        with pytest.raises(LoraError, match=reason):
            nodes.RemoraStack.execute(f"<lora:a:1:mask={name}>", mask_1=0 * left)
    assert "there is no region 'mask_9'; did you mean mask_" in nodes.RemoraStack.validate_inputs(
        "<lora:a:1:mask=mask_9>"
    )
    assert nodes.RemoraStack.execute("<lora:a:1>", mask_1=0 * left)[0] == rows(nodes, "a.safetensors")


def test_inputs_at_fault_are_refused(nodes: Any, model: Patcher, tmp_path: Path) -> None:
    with pytest.raises(LoraError, match="would act in no step"):
        rows(nodes, "a.safetensors", start_percent=0.5, stop_percent=0.5)
    with pytest.raises(LoraError, match=r"^blocks: 'NOSUCH' is neither a number nor block weights"):
        rows(nodes, "a.safetensors", blocks="NOSUCH")
    with pytest.raises(LoraError, match="mask: it is empty"):
        rows(nodes, "a.safetensors", mask=torch.zeros(1, 8, 8))
    with pytest.raises(LoraError, match="mask: a MASK has"):
        rows(nodes, "a.safetensors", mask=torch.zeros(8))
    lora(tmp_path / "text.safetensors", layers=[TEXT])
    with pytest.raises(FileError):
        applied(nodes, model, "text.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no file")
    with pytest.raises(FileError):
        rows(nodes, "broken.safetensors")
    with pytest.raises(LoraError, match="put Remora Apply after the node that copies it"):
        copy.deepcopy(applied(nodes, model, "a.safetensors")[0].attachments)  # as a node of KJNodes does


def test_a_list_of_block_weights_reaches_the_text_encoders(nodes: Any, model: Patcher, clip: Clip) -> None:
    _, plain = applied(nodes, model, "a.safetensors", clip=clip, strength=1.0)
    tokens = clip.tokenize("abc")
    before, full = clip.encode_from_tokens(tokens), plain.encode_from_tokens(tokens)
    same, _ = applied(nodes, model, "a.safetensors")
    for base in (0.0, 0.5):
        blocks = f"{base},1"  # of the text encoders and of the only block
        with_lora, encoder = applied(nodes, model, "a.safetensors", clip=clip, blocks=blocks)
        torch.testing.assert_close(encoder.encode_from_tokens(tokens), before + base * (full - before))
        torch.testing.assert_close(with_lora.sample(X, SIGMAS), same.sample(X, SIGMAS))


def test_a_changed_file_runs_again_and_a_changed_strength_reads_nothing(
    nodes: Any, model: Patcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.safetensors"
    version = nodes.RemoraLora.fingerprint_inputs("a.safetensors")
    assert nodes.RemoraLora.fingerprint_inputs("a.safetensors", strength_model=0.5) == version
    first, _ = applied(nodes, model, "a.safetensors")
    one = first.sample(X, SIGMAS)[0]
    opened = list[object]()
    monkeypatch.setattr("lib_lora.naming.network.Network.__init__", lambda *_, **__: opened.append(_))
    monkeypatch.setattr("lib_lora.engine.make_plan", None)  # what is placed stays
    second, _ = applied(nodes, model, "a.safetensors", strength=0.5)
    assert not torch.equal(second.sample(X, SIGMAS)[0], one)
    assert not opened
    monkeypatch.undo()
    lora(file, 7)
    os.utime(file, ns=(1, 1))
    assert nodes.RemoraLora.fingerprint_inputs("a.safetensors") != version
    for linked in (
        nodes.RemoraFromPrompt.fingerprint_inputs(text=None),
        nodes.RemoraLora.fingerprint_inputs(lora_name=None),
    ):
        assert nodes.RemoraLora.fingerprint_inputs("a.safetensors") in linked.splitlines()
    assert nodes.RemoraFromPrompt.fingerprint_inputs(text="<lora:a:1>") != nodes.RemoraFromPrompt.fingerprint_inputs(
        text="<lora:b:1>"
    )


def test_unloading_a_model_frees_former_stacks(nodes: Any, model: Patcher, clip: Clip) -> None:
    with_lora, encoder = applied(nodes, model, "a.safetensors", clip=clip)
    out, engine = with_lora.sample(X, SIGMAS)[0], with_lora.get_attachment("remora").engine
    encoder.encode_from_tokens(clip.tokenize("abc"))
    encoders = encoder.remora_applied.engine
    assert min(engine.memory().parked, encoders.memory().parked) > 0
    with_lora.detach()
    encoder.patcher.detach()
    assert (engine.memory().parked, encoders.memory().parked) == (0, 0)
    assert torch.equal(with_lora.sample(X, SIGMAS)[0], out)
    clip.encode_from_tokens(clip.tokenize("abc"))
    model.sample(X, SIGMAS)  # a clone without a stack takes the place
    assert (engine.memory().parked, encoders.memory().parked) == (0, 0)


def test_dora_reads_the_weights_once_also_of_gguf(
    nodes: Any, model: Patcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = load_file(lora(tmp_path / "dora.safetensors", layers=[UNET]))
    save(tmp_path / "dora.safetensors", tensors | {f"{UNET}.dora_scale": torch.ones(8, 1)})
    read = list[Tensor]()
    sigma = DoRA._sigma
    monkeypatch.setattr(DoRA, "_sigma", lambda self, weight, *rest: read.append(weight) or sigma(self, weight, *rest))
    attention = model.model.diffusion_model.input_blocks[1][1]["transformer_blocks"][0].attn1
    with torch.no_grad():
        attention["to_q"] = packed = GGMLLinear.of(attention["to_q"])
        with_lora, _ = applied(nodes, model, "dora.safetensors")
        assert not read
        before, out = model.sample(X, SIGMAS)[0], with_lora.sample(X, SIGMAS)[0]
    base = packed.get_weight(packed.weight, torch.float64)
    assert len(read) == 1
    torch.testing.assert_close(read[0].double(), base, atol=1e-7, rtol=0)
    whole = base + tensors[f"{UNET}.lora_up.weight"].double() @ tensors[f"{UNET}.lora_down.weight"].double()
    change = whole / whole.norm(dim=1, keepdim=True) - base
    wanted = torch.einsum("oi,bihw->bohw", change, torch.cat([X, X]).double())
    torch.testing.assert_close((out - before).double(), wanted, atol=1e-6, rtol=1e-5)
    monkeypatch.setattr(packed, "get_weight", lambda *_: base.float() + 1, raising=False)  # as Load LoRA patches it
    with_lora.sample(X, SIGMAS)
    torch.testing.assert_close(read[-1].double(), base + 1, atol=1e-6, rtol=0)


def test_norms_are_computed_once_for_weights_that_stay_and_again_for_others(
    nodes: Any, model: Patcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = load_file(lora(tmp_path / "dora.safetensors", layers=[UNET]))
    save(tmp_path / "dora.safetensors", tensors | {f"{UNET}.dora_scale": torch.full((8, 1), 2.0)})
    read, sigma = list[Tensor](), DoRA._sigma
    monkeypatch.setattr(DoRA, "_sigma", lambda self, weight, *rest: read.append(weight) or sigma(self, weight, *rest))
    layer = model.model.diffusion_model.input_blocks[1][1]["transformer_blocks"][0].attn1["to_q"].requires_grad_(False)

    def right(out: Tensor, strength: float, base: Tensor) -> bool:
        base = base.double()
        whole = base + tensors[f"{UNET}.lora_up.weight"].double() @ tensors[f"{UNET}.lora_down.weight"].double()
        weight = base + strength * (2 * whole / whole.norm(dim=1, keepdim=True) - base)
        return torch.allclose(
            out.double(), torch.einsum("oi,bihw->bohw", weight, torch.cat([X, X]).double()), atol=1e-4
        )

    def runs(strength: float, reads: int) -> Patcher:
        read.clear()
        with_lora, _ = applied(nodes, model, "dora.safetensors", strength=strength)
        assert all(right(out, strength, layer.weight) for out in with_lora.sample(X, SIGMAS))
        assert len(read) == reads
        return with_lora

    runs(1.0, reads=1)
    runs(0.5, reads=0)
    applied(nodes, model, "a.safetensors")[0].sample(X, SIGMAS)  # another branch
    runs(0.5, reads=0)
    loaded = layer.weight
    layer.weight.data.copy_(2 * layer.weight)  # Load LoRA writes so, or puts another parameter there
    runs(0.5, reads=1)
    layer.weight = torch.nn.Parameter(loaded / 2, requires_grad=False)
    last = runs(0.5, reads=1)
    hooked = [layer.weight * factor for factor in (1, 2, 2, 3)]

    def with_hook(patcher: Patcher, predict: Callable[[Tensor], None], sigmas: Tensor) -> None:
        for factor, sigma in zip((0, 2, 2, 3), sigmas, strict=False):
            patcher.patch_hooks(HookGroup(layer, factor) if factor else None)
            predict(sigma)
        patcher.patch_hooks(None)

    read.clear()
    out = last.sample(X, SIGMAS, sampler=partial(with_hook, last))
    assert all(right(one, 0.5, weight) for one, weight in zip(out, hooked, strict=True))
    assert len(read) == 2  # of the second call and the fourth
    runs(0.5, reads=1)
    last.detach()
    runs(0.5, reads=1)  # it was unloaded
    compiled = last.clone()
    compiled.object_patches["diffusion_model"] = torch.compile(model.model.diffusion_model, backend="eager")
    out = compiled.sample(X, SIGMAS, sampler=partial(with_hook, compiled))
    assert all(right(one, 0.5, weight) for one, weight in zip(out, hooked, strict=True))
    torch._dynamo.reset()  # or the class counts as compiled in other tests


def test_the_norms_of_a_text_encoder_are_of_the_hooks_that_it_is_loaded_with(
    nodes: Any, model: Patcher, clip: Clip, tmp_path: Path
) -> None:
    tensors = load_file(lora(tmp_path / "dora.safetensors", layers=[TEXT]))
    save(tmp_path / "dora.safetensors", tensors | {f"{TEXT}.dora_scale": torch.full((8, 1), 2.0)})
    layer = clip.cond_stage_model.clip_l.transformer.text_model["encoder"]["layers"][0]["self_attn"]["q_proj"]
    layer.requires_grad_(False)
    (_, plain), tokens, base = (
        applied(nodes, model, "dora.safetensors", clip=clip),
        clip.tokenize("abc"),
        layer.weight.double(),
    )
    for factor in (1, 2, 1, 3, 2, 1):
        encoder = plain.clone()
        encoder.patcher.forced_hooks = HookGroup(layer, factor) if factor > 1 else None
        whole = (
            base * factor + tensors[f"{TEXT}.lora_up.weight"].double() @ tensors[f"{TEXT}.lora_down.weight"].double()
        )
        want = tokens.double() @ (2 * whole / whole.norm(dim=1, keepdim=True)).T
        torch.testing.assert_close(encoder.encode_from_tokens(tokens).double(), want, atol=1e-4, rtol=1e-4)


def test_comfyui_counts_the_adapters_among_what_a_run_needs(nodes: Any, model: Patcher) -> None:
    model.sample(X, SIGMAS)
    with_lora, _ = applied(nodes, model, "a.safetensors")
    with_lora.sample(X, SIGMAS)
    without, with_adapters = model.model.estimated
    assert with_adapters - without == 4 * (8 * 2 + 2 * 8 + 1)  # fp32, rank 2, one layer of 8 x 8, its alpha
    assert "memory_required" not in vars(model.model)
    ours = vars(model.model)["memory_required"] = lambda input_shape: 1.0
    with_lora.sample(X, SIGMAS)
    assert model.model.estimated[-1] == 1.0 + 4 * 33
    assert vars(model.model)["memory_required"] is ours


def test_a_saved_stack_acts_as_the_stack(nodes: Any, model: Patcher, clip: Clip, shown: dict[str, str]) -> None:
    stack = (*rows(nodes, "a.safetensors", 0.5, 0.25), *rows(nodes, "b.safetensors", -2))
    of_stack, text_of_stack = nodes.RemoraApply.execute(model, stack, clip)
    save = nodes.RemoraSave.numbered("7").execute
    (summary,) = save(model, stack, "loras/mine", 0, clip)
    path = Path(summary.partition(": ")[0])
    assert (path.parent.name, path.name) == ("loras", "mine_00001_.safetensors")
    assert shown == {"7": summary}
    saved, text_of_saved = nodes.RemoraApply.execute(model, (Entry(path),), clip)
    torch.testing.assert_close(saved.sample(X, SIGMAS)[0], of_stack.sample(X, SIGMAS)[0], rtol=1e-5, atol=1e-4)
    texts = [one.encode_from_tokens(clip.tokenize("abc")) for one in (text_of_saved, text_of_stack)]
    torch.testing.assert_close(*texts, rtol=1e-5, atol=1e-4)
    assert "rank 1 to 1" in save(model, stack, "loras/mine", 1)[0]
    assert len(list(path.parent.iterdir())) == 2


def test_a_stack_that_no_file_can_say_is_not_saved(nodes: Any, model: Patcher, clip: Clip, tmp_path: Path) -> None:
    mask = torch.zeros(1, 64, 64)
    mask[:, :, :32] = 1
    stacks = {
        "steps": rows(nodes, "a.safetensors", start_percent=0.5),
        "picture": rows(nodes, "a.safetensors", mask=mask),
    }
    stacks["one prompt"] = nodes.RemoraFromPrompt.execute(model, clip, "<lora:a:1:half=pos>")[-1]
    for reason, stack in stacks.items():
        with pytest.raises(LoraError, match=f"a: a file cannot say .*{reason}"):
            nodes.RemoraSave.execute(model, stack, "mine", 0, clip)
    assert not (tmp_path / "output").exists()


def test_a_report_is_a_picture_also_where_comfyui_shows_no_text_on_nodes(nodes: Any, model: Patcher) -> None:
    text, picture = nodes.RemoraReport.numbered("3").execute(model)
    assert text == "no LoRA"
    assert torch.equal(picture, nodes.picture_of(text))
    short, tall = nodes.picture_of("a: 1 of 1 layers"), nodes.picture_of("a: 1 of 1 layers\n" * 9)
    assert short.shape == (1, short.shape[1], short.shape[2], 3)
    assert tall.shape[1] > 4 * short.shape[1]
    assert tall.shape[2] == short.shape[2]
    assert (short.min(), short.max(), short.dtype) == (0, 1, torch.float32)
    assert nodes.picture_of("a" * 5000).shape[2] < 4000


def test_the_report_tells_what_acted(nodes: Any, model: Patcher, clip: Clip, shown: dict[str, str]) -> None:
    assert nodes.RemoraReport.execute(model)[0] == "no LoRA"
    with_lora, encoder = applied(nodes, model, "a.safetensors", clip=clip)
    with_lora.sample(X, SIGMAS)
    answer = nodes.RemoraReport.numbered("3").execute(with_lora, encoder)
    assert answer.ui["text"] == [answer[0]]
    assert shown == {"3": answer[0]}
    assert torch.equal(answer[1], nodes.picture_of(answer[0]))
    assert answer[0].startswith("model: a: ")
    assert "text encoders: a: " in answer[0]
    assert "unused" not in answer[0]
    assert nodes.RemoraReport.fingerprint_inputs() != nodes.RemoraReport.fingerprint_inputs()


def test_the_report_of_text_encoders_has_no_word_of_steps(nodes: Any, model: Patcher, clip: Clip) -> None:
    mask = torch.zeros(1, 64, 64)
    mask[:, :, :32] = 1
    _, late = applied(nodes, model, "a.safetensors", clip=clip, start_percent=0.5, mask=mask)
    _, full = applied(nodes, model, "a.safetensors", clip=clip)
    texts = [one.encode_from_tokens(clip.tokenize("abc")) for one in (late, full)]
    assert torch.equal(*texts)
    assert nodes.RemoraReport.execute(clip=late)[0].endswith("sd1)")


def schemas(nodes: Any) -> dict[str, Any]:
    """Return the schemas of the nodes by their ids."""
    found = [node.define_schema() for node in completed(completed(nodes.comfy_entrypoint()).get_node_list())]
    return {schema.node_id: schema for schema in found}


def test_every_input_and_output_has_a_tooltip(nodes: Any) -> None:
    for name, schema in schemas(nodes).items():
        assert schema.display_name.replace(" ", "").lower() == name.lower()
        assert all(one.tooltip.endswith(".") for one in (*schema.inputs, *schema.outputs))
        assert schema.category == "Remora"


WORKFLOWS = sorted((ROOT / "example_workflows").glob("*.json"))


def test_workflows_fit_the_nodes(nodes: Any) -> None:
    known, used = schemas(nodes), set[str]()
    for path in WORKFLOWS:
        workflow = json.loads(path.read_text("utf-8"))
        assert path.with_suffix(".jpg").is_file(), path  # ComfyUI's page asks for it
        by_id = {node["id"]: node for node in workflow["nodes"]}
        for number, origin, slot, target, place, kind in workflow["links"]:
            assert number in by_id[origin]["outputs"][slot]["links"]
            assert by_id[target]["inputs"][place]["link"] == number
            assert by_id[target]["inputs"][place]["type"] == by_id[origin]["outputs"][slot]["type"] == kind
        for node in workflow["nodes"]:
            assert node.keys() >= {"flags", "order", "mode", "properties"}, path  # without them the page warns
            if node["type"] not in known:
                continue
            schema = known[node["type"]]
            used.add(node["type"])
            sockets = {one.id: one.io_type for one in schema.inputs if one.io_type in SOCKETS}
            assert {one["name"]: one["type"] for one in node["inputs"]} == sockets
            assert [one["type"] for one in node["outputs"]] == [one.io_type for one in schema.outputs]
            assert len(node["widgets_values"]) == len(schema.inputs) - len(sockets)
    assert used == known.keys() - {"RemoraSave"}


def test_the_entry_does_nothing_outside_of_comfyui() -> None:
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("node", {str(ROOT / "__init__.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert not hasattr(module, "comfy_entrypoint")
assert not {{"torch", "remora", "lib_lora"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_entry_gives_comfyui_the_nodes(tmp_path: Path) -> None:
    code = f"""
import importlib.util, sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
sys.path.insert(0, {str(ROOT)!r})
from tests.fakes import comfy_api
comfy_api.put()
from tests.fakes.coroutines import completed
sys.path.remove({str(ROOT)!r})
for name in ("comfy", "comfy.sd", "comfy.patcher_extension", "folder_paths", "server"):
    sys.modules[name] = ModuleType(name)
static = []
routes = SimpleNamespace(static=lambda *route: static.append(route))
sys.modules["server"].PromptServer = SimpleNamespace(instance=SimpleNamespace(routes=routes))
sys.modules["comfy.patcher_extension"].WrappersMP = sys.modules["comfy.patcher_extension"].CallbacksMP = object
name = "/custom_nodes/remora"  # as ComfyUI names it
spec = importlib.util.spec_from_file_location(name, {str(ROOT / "__init__.py")!r})
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
nodes = completed(completed(module.comfy_entrypoint()).get_node_list())
assert sorted(node.__name__ for node in nodes) == [
    "RemoraApply", "RemoraFromPrompt", "RemoraLora", "RemoraReport", "RemoraSave", "RemoraStack"
]
assert static == [("/remora", Path({str(ROOT / "javascript" / "remora")!r}))]
assert (Path({str(ROOT)!r}) / module.WEB_DIRECTORY / "remora.js").is_file()
assert sys.modules["remora"]._session is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_model_that_comfyui_gives_up_is_freed(nodes: Any) -> None:
    mine, other = Patcher(BaseModel()), Clip(CondStage())
    parts = [weakref.ref(mine.model.diffusion_model), weakref.ref(other.cond_stage_model)]
    with_lora, encoder = applied(nodes, mine, "a.safetensors", clip=other)
    with_lora.sample(X, SIGMAS)
    encoder.encode_from_tokens(other.tokenize("abc"))
    del mine, other, with_lora, encoder
    gc.collect()
    assert [part() for part in parts] == [None, None]
