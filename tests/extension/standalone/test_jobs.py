"""Pictures: what they depend on, and that a job leaves nothing behind however it ends."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from extension.generation.combined import _FileProgress
from extension.generation.options import ALWAYS, FAIL, IN_ORDER, MERGE, ON_BAD_LORA, SKIP
from extension.generation.state import state_of
from extension.hosts.txt2img import Hires, Picture, RequestError, Source, Txt2Img
from extension.library.catalog import CatalogError
from extension.library.hashes import Hashes
from extension.standalone import render, shown
from extension.standalone.encode import encode_skipping
from extension.standalone.jobs import Runner
from extension.standalone.sdapi import SdApi
from extension.standalone.studio import Studio
from extension.text.infotext import parse_infotext
from extension.text.prompt import PromptError
from tests.fakes.coroutines import completed

SMALL = Txt2Img("a red fox", steps=2, width=64, height=64, seed=7)
BLANK = Image.new("RGB", (64, 64))
WITH_LORA = replace(SMALL, prompt="a red fox <lora:zorp:0.8>")


def pixels(picture: Picture) -> np.ndarray:
    return np.asarray(picture.image).astype(int)


def one(runner: Runner, request: Txt2Img) -> np.ndarray:
    return pixels(runner.submit(request).result(60).pictures[0])


def test_the_same_job_gives_the_same_bits(runner: Runner) -> None:
    assert np.array_equal(one(runner, SMALL), one(runner, SMALL))
    assert not np.array_equal(one(runner, SMALL), one(runner, replace(SMALL, seed=8)))
    assert not np.array_equal(one(runner, SMALL), one(runner, replace(SMALL, prompt="a house")))


def test_a_lora_changes_the_picture_and_leaves_no_trace(runner: Runner) -> None:
    without, with_lora = one(runner, SMALL), one(runner, WITH_LORA)
    assert np.abs(without - with_lora).max() > 30
    assert np.array_equal(one(runner, SMALL), without)
    assert np.array_equal(one(runner, WITH_LORA), with_lora)


def test_text_encoder_and_unet_multipliers_act_apart(runner: Runner) -> None:
    without, whole = one(runner, SMALL), one(runner, replace(SMALL, prompt="a red fox <lora:zorp:1>"))
    for multipliers in ("1:0", "0:1"):
        part = one(runner, replace(SMALL, prompt=f"a red fox <lora:zorp:{multipliers}>"))
        assert not np.array_equal(part, without)
        assert not np.array_equal(part, whole)


def test_a_multiplier_of_zero_equals_no_tag(runner: Runner) -> None:
    text = replace(SMALL, prompt="a red fox ")
    zero = replace(SMALL, prompt="a red fox <lora:zorp:0>")
    assert np.array_equal(one(runner, text), one(runner, zero))


def test_a_tag_written_twice_applies_twice(runner: Runner) -> None:
    twice = one(runner, replace(SMALL, prompt="a red fox <lora:zorp:0.4><lora:zorp:0.4>"))
    assert np.abs(twice - one(runner, WITH_LORA)).max() <= 1  # the sum is rounded differently


@pytest.mark.parametrize("sampler", ["Euler a", "DPM++ 2M SDE", "DDIM"])
def test_a_picture_does_not_depend_on_its_batch(runner: Runner, sampler: str) -> None:
    request = replace(WITH_LORA, sampler=sampler, batch_size=2, n_iter=2)
    batches = runner.submit(request).result(60)
    assert [picture.seed for picture in batches.pictures] == [7, 8, 9, 10]
    for picture in batches.pictures:
        alone = one(runner, replace(request, batch_size=1, n_iter=1, seed=picture.seed))
        assert np.abs(alone - pixels(picture)).max() <= 1  # matrices of another size are summed in another order


def test_the_parameters_text_says_how_to_make_the_picture(runner: Runner, studio: Studio) -> None:
    result = runner.submit(replace(WITH_LORA, negative_prompt="bad", clip_skip=2, batch_size=2)).result(60)
    info = parse_infotext(result.pictures[1].infotext)
    assert (info.prompt, info.negative_prompt) == (WITH_LORA.prompt, "bad")
    digest = studio.session.catalog.hashes.short(studio.session.catalog.find("zorp"))
    assert info.settings == {
        "Steps": "2",
        "Sampler": "Euler a",
        "Schedule type": "Uniform",
        "CFG scale": "7",
        "Seed": "8",
        "Size": "64x64",
        "Model hash": studio.model.shorthash,
        "Model": "remora-shapes",
        "Clip skip": "2",
        "Lora hashes": f"zorp: {digest}",
    }
    assert "264 of 264 layers" in result.lora_reports[0]


def test_a_file_that_cannot_be_hashed_costs_its_hash_and_no_picture(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: object) -> str:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Hashes, "short", gone)
    result = runner.submit(WITH_LORA).result(60)
    assert "zorp: " not in parse_infotext(result.pictures[0].infotext).settings.get("Lora hashes", "")
    assert "no hash of zorp for the parameters text: the disk is gone" in caplog.text


def test_without_a_lora_nothing_is_said_of_how_it_is_stacked(runner: Runner) -> None:
    result = runner.submit(replace(SMALL, settings={IN_ORDER: True})).result(60)
    assert "Remora" not in result.pictures[0].infotext


def test_a_merged_job_leaves_the_weights_as_they_were(runner: Runner, studio: Studio) -> None:
    unet = studio.model.pipeline.unet
    before = {key: value.clone() for key, value in unet.state_dict().items()}
    runner.submit(replace(WITH_LORA, settings={MERGE: ALWAYS})).result(60)
    assert all(torch.equal(value, before[key]) for key, value in unet.state_dict().items())


def test_minus_one_draws_a_seed_and_says_which(runner: Runner) -> None:
    first, second = (runner.submit(replace(SMALL, seed=-1)).result(60) for _ in range(2))
    assert first.seed != second.seed
    assert np.array_equal(pixels(first.pictures[0]), one(runner, replace(SMALL, seed=first.seed)))


def test_clip_skip_changes_the_picture(runner: Runner) -> None:
    assert not np.array_equal(one(runner, SMALL), one(runner, replace(SMALL, clip_skip=2)))


def test_progress_counts_every_step_and_shows_a_preview(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("extension.standalone.jobs.Job._report", lambda job, progress: seen.append(progress))
    runner.submit(replace(SMALL, steps=3, n_iter=2)).result(60)
    assert [(progress.step, progress.steps) for progress in seen] == [(step, 6) for step in range(1, 7)]
    assert seen[0].preview is not None
    assert seen[0].preview.size == (64, 64)
    assert seen[-1].fraction == 1.0


def test_a_picture_of_a_series_is_as_alone_with_weights_drawn_for_its_seed(runner: Runner) -> None:
    drawn = replace(SMALL, prompt=f"a fox <lora:zorp:1:lbw={','.join('R' * 17)}>")
    series = runner.submit(replace(drawn, n_iter=2)).result(60)
    alone = one(runner, replace(drawn, seed=SMALL.seed + 1))
    assert np.array_equal(pixels(series.pictures[1]), alone)


def test_cancel_stops_at_the_next_step_and_leaves_nothing(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    before = one(runner, SMALL)
    steps = count_steps(runner, monkeypatch)
    job = runner.submit(replace(WITH_LORA, steps=50))
    while not steps and not job.done:
        time.sleep(0.001)
    job.cancel()
    result = job.result(60)
    assert result.cancelled
    assert result.pictures == ()
    assert len(steps) < 50
    monkeypatch.undo()
    assert np.array_equal(one(runner, SMALL), before)


def test_a_cancelled_job_keeps_the_batches_it_finished(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    original = render._batch

    def cancel_in_the_second(studio, plan, tags, batch, told, watch):
        if batch == 1:
            job.cancel()
        return original(studio, plan, tags, batch, told, watch)

    monkeypatch.setattr(render, "_batch", cancel_in_the_second)
    ready = threading.Event()
    runner._worker.submit(ready.wait)
    job = runner.submit(replace(SMALL, n_iter=3))
    ready.set()
    result = job.result(60)
    assert result.cancelled
    assert [picture.seed for picture in result.pictures] == [7]


def test_a_rule_shows_how_far_it_is_and_ends_with_the_job(
    runner: Runner, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, seen, press = "combine=orthogonal", list[tuple[str, object]](), ""
    request = replace(SMALL, prompt=f"a red fox <lora:stripes:0.8:{rule}> <lora:night:0.7:{rule}>", n_iter=2)
    told, plain = _FileProgress.__call__, one(runner, SMALL)

    def tell(self: _FileProgress, done: int, layers: int) -> None:
        nonlocal press
        job = runner.current
        assert job is not None
        if done == 2 and press:
            getattr(job, press)()
            press = ""
        told(self, done, layers)
        seen.append((shown.bar(job.progress), SdApi(runner).progress(skip_current_image=True)["textinfo"]))
        assert state_of(studio.session)["combining"] == {"done": done, "layers": layers}

    monkeypatch.setattr(_FileProgress, "__call__", tell)
    for button, made in (("interrupt", 0), ("cancel", 0), ("skip", 1)):
        press = button
        result = runner.submit(request).result(120)
        assert (len(result.pictures), result.cancelled) == (made, not made), button
        assert result.notes[0].startswith("combining stripes + night by orthogonal was interrupted after 2 of ")
        state = state_of(studio.session)
        assert state["combining"] is None
        assert (state["notes"] == [result.notes[0]]) is not bool(made)
        assert np.array_equal(one(runner, SMALL), plain)
    bar, text = seen[0]
    assert str(text).startswith("Combining LoRA: 0 of ")
    assert f"<span>{text}</span>" in bar
    second = one(runner, replace(request, n_iter=1, seed=8))
    assert np.array_equal(pixels(result.pictures[0]), second)
    assert not np.array_equal(second, one(runner, replace(SMALL, seed=8)))


def test_a_job_cancelled_while_it_waits_does_nothing(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count_steps(runner, monkeypatch)
    ready = threading.Event()
    runner._worker.submit(ready.wait)
    job = runner.submit(SMALL)
    assert job.progress.waiting
    assert runner.current is job
    job.cancel()
    over = job.done, job.wait(0), runner.current
    ready.set()
    assert over == (True, True, None), "the job before it still ran"
    assert job.result(60).cancelled
    completed(runner.call(lambda: None))
    assert steps == []


def test_jobs_run_one_at_a_time(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [], []
    original = render._batch

    def counted(*arguments):
        inside.append(1)
        most.append(len(inside))
        try:
            return original(*arguments)
        finally:
            inside.pop()

    monkeypatch.setattr(render, "_batch", counted)
    jobs = [runner.submit(replace(SMALL, steps=1, seed=seed)) for seed in range(4)]
    assert [job.result(60).seed for job in jobs] == [0, 1, 2, 3]
    assert max(most) == 1


def test_after_a_job_the_model_is_as_without_a_lora(runner: Runner, studio: Studio) -> None:
    encoder, tokens = studio.model.pipeline.text_encoder, torch.arange(10)[None]
    before = encoder(tokens).last_hidden_state
    runner.submit(WITH_LORA).result(60)
    assert torch.equal(encoder(tokens).last_hidden_state, before)


def test_a_failure_in_the_middle_leaves_nothing_applied(
    runner: Runner, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = one(runner, SMALL)
    with_lora = one(runner, WITH_LORA)
    original = studio.model.pipeline.vae.decode

    def fails(*arguments, **named):
        raise torch.cuda.OutOfMemoryError("no memory left")

    monkeypatch.setattr(studio.model.pipeline.vae, "decode", fails)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no memory left"):
        runner.submit(WITH_LORA).result(60)
    monkeypatch.setattr(studio.model.pipeline.vae, "decode", original)
    assert np.array_equal(one(runner, SMALL), before)
    assert np.array_equal(one(runner, WITH_LORA), with_lora)


def test_a_bad_lora_fails_the_job_or_is_skipped_as_the_setting_says(runner: Runner, studio: Studio) -> None:
    request = replace(SMALL, prompt="a red fox <lora:zorp:0.8><lora:no-such:1>")
    with pytest.raises(CatalogError, match="no-such"):
        runner.submit(request).result(60)
    studio.host.set_option(ON_BAD_LORA, SKIP)
    try:
        result = runner.submit(request).result(60)
    finally:
        studio.host.set_option(ON_BAD_LORA, FAIL)
    assert "no-such" in result.notes[0]
    assert np.array_equal(pixels(result.pictures[0]), one(runner, WITH_LORA))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 60}, "width is 60; it must be a multiple of 8"),
        ({"height": 4096}, "height is 4096"),
        ({"steps": 0}, "steps is 0; it must be from 1 to 150"),
        ({"steps": 151}, "steps is 151"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"batch_size": 17}, "batch size is 17"),
        ({"n_iter": 0}, "batch count is 0"),
        ({"cfg_scale": float("nan")}, "CFG scale is nan"),
        ({"seed": -2}, "seed is -2"),
        ({"seed": 2**63}, "seed is"),
        ({"clip_skip": 0}, "clip skip is 0"),
        ({"sampler": "Eulr"}, "sampler 'Eulr' is unknown; known are"),
        ({"hires": Hires(4096, 64)}, "hires width is 4096"),
        ({"hires": Hires(64, 64, "R-ESRGAN 4x+")}, "upscaler 'R-ESRGAN 4x+' is unknown; known are Latent, "),
        ({"hires": Hires(64, 64, denoising=0)}, "denoising strength is 0; a hires pass of 20 steps needs 0.02 or more"),
        ({"hires": Hires(64, 64, sampler="Eulr")}, "sampler 'Eulr' is unknown; known are"),
        ({"source": Source((BLANK,), 1.5)}, "denoising strength is 1.5; it must be from 0 to 1"),
        ({"source": Source((BLANK,), resize_mode=4)}, "resize_mode is 4"),
        ({"source": Source((BLANK,) * 2)}, "2 pictures were sent for a batch of 1; send one for all, or one for each"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(runner: Runner, change: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace("+", r"\+")):
        runner.submit(replace(SMALL, **change))
    assert runner.current is None


def test_a_tag_that_cannot_be_read_is_refused_at_once(runner: Runner) -> None:
    with pytest.raises(PromptError, match="not a number"):
        runner.submit(replace(SMALL, prompt="<lora:zorp:1.1.>"))


def test_notes_tell_of_a_prompt_cut_short_and_a_tag_without_effect(runner: Runner) -> None:
    result = runner.submit(replace(SMALL, prompt="fox " * 40, negative_prompt="<lora:zorp:1>")).result(60)
    assert "the prompt has 120 tokens; only the first 75 were read" in result.notes
    assert any("it stands in the negative prompt, where tags are read as words" in text for text in result.warnings)


def count_steps(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    unet = runner.studio.model.pipeline.unet
    original = unet.forward

    def counted(*arguments, **named):
        steps.append(1)
        return original(*arguments, **named)

    monkeypatch.setattr(unet, "forward", counted)
    return steps


def test_clip_skip_of_one_is_the_last_layer(studio: Studio) -> None:
    pipeline = studio.model.pipeline
    expected, _ = pipeline.encode_prompt("a fox", "cpu", 1, do_classifier_free_guidance=False)
    assert torch.equal(encode_skipping(pipeline, ["a fox"], 1), expected)
    assert not torch.equal(encode_skipping(pipeline, ["a fox"], 2), expected)
