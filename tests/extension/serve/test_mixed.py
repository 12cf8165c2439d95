"""Requests that share a batch: each has its single run's result, within the bound that batching has without LoRA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from extension.generation.options import ALWAYS, MERGE, ON_BAD_LORA, SKIP
from extension.hosts.txt2img import Hires, Progress, RequestError, Result, Txt2Img
from extension.library.catalog import CatalogError
from extension.serve.mixed import Mixed, batch_key, render_mixed
from extension.standalone.demo import Demo
from extension.standalone.render import Watch, render
from extension.standalone.studio import Studio

PLAIN = Txt2Img("two red circles", "green", steps=4, width=64, height=64)
BOUND = 2e-3
"""Of the last latents. Batching alone moves them by 4e-4 to 7e-4 on two processors, which sum in other orders."""
PROMPTS = [
    ("two red circles <lora:stripes:1>", "green"),
    ("a blue star <lora:stars:0.5:0.9> <lora:neon:-0.6>", ""),
    ("one square <lora:zorp:0.8:start=0.3>", "red"),
    ("a square", "red"),
    ("green square <lora:outline:0@0,1@1> <lora:stripes:0.2>", "x"),
    ("two red circles <lora:stripes:1>", "green"),
    ("two red circles [<lora:night:1>:0.5] <lora:stars:1:0>", "green <lora:neon:1>"),
]
REQUESTS = [replace(PLAIN, prompt=p, negative_prompt=n, seed=10 * i) for i, (p, n) in enumerate(PROMPTS)]


def watch(seen: list[Progress] | None = None, cancelled: bool = False) -> Watch:
    return Watch((seen if seen is not None else []).append, lambda: cancelled)


def mixed(studio: Studio, requests: list[Txt2Img]) -> Mixed:
    return render_mixed(studio, requests, [watch() for _ in requests])


def result_of(found: Result | Exception) -> Result:
    assert isinstance(found, Result), found
    return found


def largest_difference(one: Result, other: Result) -> int:
    pairs = zip(one.pictures, other.pictures, strict=True)
    return max(int(np.abs(np.asarray(a.image).astype(int) - np.asarray(b.image)).max()) for a, b in pairs)


@contextmanager
def decoded(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Collect the latents that are decoded."""
    found: list[Tensor] = []
    vae = studio.model.pipeline.vae
    original = vae.decode

    def decode(latents: Tensor, *more: Any, **named: Any) -> Any:
        found.extend(latents * vae.config.scaling_factor)
        return original(latents, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(vae, "decode", decode)
        patch.setattr("extension.standalone.render._PREVIEW_EVERY", float("inf"))
        yield found


@pytest.mark.parametrize("sampler", ["Euler a", "DPM++ 2M", "DPM++ 2M SDE", "UniPC"])
def test_a_request_has_the_result_of_its_single_run(studio: Studio, sampler: str) -> None:
    requests = [replace(request, sampler=sampler) for request in REQUESTS]
    requests[1] = replace(requests[1], batch_size=2)
    made = mixed(studio, requests)
    assert (made.together, made.loras) == (7, 6)
    for request, found in zip(requests, map(result_of, made.results), strict=True):
        single = render(studio, request, watch())
        assert largest_difference(found, single) <= 1
        assert [one.infotext for one in found.pictures] == [one.infotext for one in single.pictures]
        assert replace(found, pictures=()) == replace(single, pictures=())


def test_the_bound_is_the_one_of_batches_without_lora(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    furthest = []
    for tagged in (False, True):
        requests = [replace(PLAIN, prompt=f"{i} circles", seed=i) for i in range(7)]
        requests = REQUESTS if tagged else requests
        with decoded(studio, monkeypatch) as together:
            mixed(studio, requests)
        with decoded(studio, monkeypatch) as alone:
            for request in requests:
                render(studio, request, watch())
        furthest.append(float((torch.stack(together) - torch.stack(alone)).abs().max()))
    assert 0 < furthest[0] <= BOUND
    assert furthest[1] <= BOUND, furthest


def test_a_mistake_is_larger_than_the_bound(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show that the bound tells strengths apart that differ little."""
    with decoded(studio, monkeypatch) as found:
        for strength in (0.8, 0.85):
            render(studio, replace(PLAIN, prompt=f"a square <lora:zorp:{strength}>", seed=1), watch())
    assert float((found[0] - found[1]).abs().max()) > 5 * BOUND


def test_one_model_call_serves_all_rows(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[str, list[int]] = {"unet": [], "text_encoder": []}
    with pytest.MonkeyPatch.context() as patch:
        for name, seen in rows.items():
            part = getattr(studio.model.pipeline, name)

            def counted(*args: Any, own: Any = part.forward, seen: list[int] = seen, **named: Any) -> Any:
                seen.append(len(args[0] if args else named["input_ids"]))
                return own(*args, **named)

            patch.setattr(part, "forward", counted)
        mixed(studio, REQUESTS)
    assert rows == {"unet": [14] * 4, "text_encoder": [7, 7]}


def test_a_file_that_fails_costs_its_own_request(studio: Studio, demo: Demo) -> None:
    broken = demo.loras / "broken.safetensors"
    broken.write_bytes(b"no tensors")
    studio.session.catalog.refresh()
    texts = ("a square <lora:broken:1>", "a square <lora:stars:1>", "a <lora:nobody:1>", "a <lora:stars:x>", "a square")
    requests = [replace(PLAIN, prompt=text, seed=3) for text in texts]
    try:
        made = mixed(studio, requests)
    finally:
        broken.unlink()
        studio.session.catalog.refresh()
    assert made.together == 2
    assert [isinstance(one, Result) for one in made.results] == [False, True, False, False, True]
    assert isinstance(made.results[2], CatalogError)
    single = render(studio, requests[1], watch())
    assert largest_difference(result_of(made.results[1]), single) <= 1


def test_where_the_setting_is_to_skip_the_others_are_told_nothing(studio: Studio) -> None:
    texts = ("a square <lora:nobody:1>", "a square <lora:stars:1>")
    requests = [replace(PLAIN, prompt=text, seed=3, settings={ON_BAD_LORA: SKIP}) for text in texts]
    made = mixed(studio, requests)
    assert made.together == 2
    first, second = map(result_of, made.results)
    assert "nobody" in " ".join(first.notes)
    assert "nobody" not in f"{second.notes} {second.warnings} {second.pictures[0].infotext}"
    assert replace(first, pictures=()) == replace(render(studio, requests[0], watch()), pictures=())


def test_words_of_an_embedding_are_those_of_its_own_request(studio: Studio, demo: Demo) -> None:
    width = studio.model.pipeline.text_encoder.get_input_embeddings().embedding_dim
    tensors = load_file(demo.loras / "zorp.safetensors")
    tensors["bundle_emb.circles.string_to_param.*"] = torch.full((2, width), 0.3)
    path = Path(demo.loras, "bundled.safetensors")
    save_file(tensors, path)
    studio.session.catalog.refresh()
    requests = [
        replace(PLAIN, prompt=text, seed=5)
        for text in ("circles <lora:bundled:0.5>", "circles", "circles <lora:stars:0.5>")
    ]
    try:
        made = mixed(studio, requests)
        singles = [render(studio, request, watch()) for request in requests]
    finally:
        path.unlink()
        studio.session.catalog.refresh()
    assert made.together == 2
    assert [largest_difference(result_of(a), b) <= 1 for a, b in zip(made.results, singles, strict=True)] == [True] * 3


def test_what_has_to_be_alone_has_no_key(studio: Studio) -> None:
    alone = [
        replace(PLAIN, n_iter=2),
        replace(PLAIN, hires=Hires(128, 128)),
        replace(PLAIN, prompt="a <lora:stars:1:rows=1>"),
        replace(PLAIN, settings={MERGE: ALWAYS}),
    ]
    assert [batch_key(studio, one) for one in alone] == [None] * 4
    assert batch_key(studio, REQUESTS[0]) == batch_key(studio, REQUESTS[1]) is not None
    assert batch_key(studio, replace(PLAIN, sampler="euler a")) == batch_key(studio, PLAIN)
    others = [replace(PLAIN, **one) for one in ({"steps": 5}, {"cfg_scale": 5.0}, {"width": 128}, {"clip_skip": 2})]
    assert len({batch_key(studio, one) for one in (PLAIN, *others)}) == 5
    with pytest.raises(RequestError, match="steps is 0"):
        batch_key(studio, replace(PLAIN, steps=0))


def test_a_request_that_is_cancelled_gets_nothing_and_the_others_go_on(studio: Studio) -> None:
    seen: list[Progress] = []
    made = render_mixed(studio, REQUESTS[:2], [watch(cancelled=True), watch(seen)])
    first, second = map(result_of, made.results)
    assert (first.cancelled, first.pictures) == (True, ())
    assert largest_difference(second, render(studio, REQUESTS[1], watch())) <= 1
    assert [progress.step for progress in seen] == [1, 2, 3, 4]


def test_a_batch_ends_once_all_are_cancelled(studio: Studio) -> None:
    made = render_mixed(studio, REQUESTS[:2], [watch(cancelled=True)] * 2)
    assert [result_of(one).cancelled for one in made.results] == [True, True]
    assert not studio.session.model.engine or not studio.session.model.engine.stack.entries


@pytest.mark.parametrize(("error", "logged"), [(torch.cuda.OutOfMemoryError("no room"), 0), (ValueError("odd"), 1)])
def test_after_an_error_of_the_batch_each_is_made_alone(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, logged: int
) -> None:
    pipeline = studio.model.pipeline
    original = pipeline.unet.forward

    def fails(sample: Tensor, *more: Any, **named: Any) -> Any:
        if len(sample) > 2:
            raise error
        return original(sample, *more, **named)

    monkeypatch.setattr(pipeline.unet, "forward", fails)
    made = mixed(studio, REQUESTS[:2])
    assert made.together == 1
    assert all(result_of(one).pictures for one in made.results)
    records = [one for one in caplog.records if one.levelname == "ERROR"]
    assert len(records) == logged, "with its traceback, as nobody knows it"
    assert all(one.exc_info for one in records)
