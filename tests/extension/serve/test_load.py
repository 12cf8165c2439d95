"""The load on the served application: its files, its picture-by-picture check, and the model of the rate."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_serve_files")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_serve_fit")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("serve")


def test_all_files_are_different_and_broken_ones_cannot_be_read(files: ModuleType, tmp_path: Path) -> None:
    files.write_files(tmp_path, 12)
    paths = sorted(tmp_path.iterdir())
    assert [path.stem for path in paths] == [files.name_of(number) for number in range(12)]
    for path, other in zip(paths[:6], paths[6:], strict=True):
        one, two = load_file(path), load_file(other)
        assert one.keys() == two.keys()
        assert any(not one[key].equal(two[key]) for key in one)
    files.break_files(tmp_path, [3])
    with pytest.raises(Exception, match=r"(?i)header|incomplete|deserializ"):
        load_file(paths[3])
    assert load_file(paths[4])


def rows(costs: Any, draw: random.Random) -> list[dict[str, float]]:
    """Return rows as a service of these costs would give."""
    made = []
    for _ in range(12):
        pictures, hits = draw.uniform(1, 8), draw.uniform(0, 1)
        loras = draw.uniform(1, pictures)
        seconds = costs.call + pictures * costs.picture + loras * costs.lora + pictures * (1 - hits) * costs.miss
        made.append({"batch_s": seconds, "batch_pictures": pictures, "batch_loras": loras, "hits": hits})
    return made


@pytest.mark.parametrize("values", [(0.1, 0.05, 0.03, 0.2), (0.1, 0.05, 0.0, 0.0)])
def test_the_fit_finds_the_costs_that_made_the_rows(model: ModuleType, values: tuple[float, ...]) -> None:
    costs = model.Costs(*values)
    found = model.fit(rows(costs, random.Random(1)))
    for name, value in vars(costs).items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-9)


def test_a_cost_is_never_below_zero(model: ModuleType) -> None:
    found = model.fit(rows(model.Costs(0.1, 0.05, -0.02, 0.1), random.Random(1)))
    assert min(vars(found).values()) == 0


@pytest.mark.parametrize(("exponent", "kept"), [(0.0, 20), (0.8, 20), (1.2, 50)])
def test_hits_are_what_a_cache_of_the_last_used_has(model: ModuleType, exponent: float, kept: int) -> None:
    popularity = model.chances(100, exponent)
    draw = random.Random(1)
    cache: dict[int, None] = {}
    found = Counter[bool]()
    for number in draw.choices(range(100), popularity, k=40_000):
        found[number in cache] += 1
        cache.pop(number, None)
        cache[number] = None
        if len(cache) > kept:
            del cache[next(iter(cache))]
    assert model.hits(popularity, kept) == pytest.approx(found[True] / 40_000, abs=0.02)
    assert model.hits(popularity, 100) == 1


def test_the_rate_grows_with_replicas_as_their_caches_add_up(model: ModuleType) -> None:
    popularity = model.chances(1000, 0.0)
    assert model.in_batch(popularity, 8) == pytest.approx(8, abs=0.05)
    assert model.in_batch([1.0], 8) == 1
    plain, costly = model.Costs(0.1, 0.05, 0.0, 0.0), model.Costs(0.1, 0.05, 0.0, 1.0)
    assert model.rate(plain, 1, popularity, 10) == pytest.approx(8 / 0.5)
    assert model.rate(plain, 8, popularity, 10) == pytest.approx(8 * model.rate(plain, 1, popularity, 10))
    assert model.rate(costly, 8, popularity, 100) > 8 * model.rate(costly, 1, popularity, 100)


def test_what_is_predicted_never_passes_the_routes(model: ModuleType) -> None:
    costs = model.Costs(0.1, 0.05, 0.0, 0.0)
    assert {row[-1] for row in model.prediction(costs)} == {"replicas"}
    bounded = model.prediction(costs, routes=100.0)
    assert max(float(row[4]) for row in bounded) == 100
    assert {row[0]: row[-1] for row in bounded} == {"1": "replicas", "8": "routes", "64": "routes"}


def test_wishes_of_broken_files_are_to_be_refused(program: ModuleType) -> None:
    wishes = program._stay_wishes(SimpleNamespace(files=40, steps=2), {0, 20})
    assert [i for i, wish in enumerate(wishes) if wish["status"] == 422] == [0, 20]
    for wish in wishes:
        names = set(wish["fields"]["prompt"].split("<lora:")[1:])
        assert wish["status"] == 422 or not any(name.startswith(("load00000:", "load00020:")) for name in names)


def test_means_are_of_what_was_added(program: ModuleType) -> None:
    added = Counter(
        {
            "done_total batch": 2.0,
            "done_total request": 8.0,
            "done_total picture": 10.0,
            "done_total lora": 6.0,
            "spent_seconds_total batch": 3.0,
            "spent_seconds_total queue": 4.0,
            "spent_seconds_total request": 20.0,
            "spent_seconds_total read": 0.5,
            "lora_cache_total hit": 6.0,
            "lora_cache_total miss": 2.0,
        }
    )
    found = program._measured(added)
    expected = {"batches": 2, "batch_pictures": 5, "batch_loras": 3, "hits": 0.75}
    seconds = {"queue_s": 0.5, "batch_s": 1.5, "read_s": 0.25, "request_s": 2.5}
    assert {key: pytest.approx(value) for key, value in {**expected, **seconds}.items()} == found


LOADED = """
import json, sys
sys.path.insert(0, {folder!r})
from _serve_load import Load
from extension.client import Generated
from pathlib import Path
load = Load(Path({config!r}))
png = Path({png!r}).read_bytes()
print(json.dumps([load.differs(0, Generated((png,), {{}})), load.differs(1, Generated((png,), {{}}))]))
print(json.dumps(sorted({{load.draw() for _ in range(200)}})))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("locust") is None, reason="locust is not installed; requirements/bench.txt has it"
)
def test_each_picture_is_compared_with_that_of_its_request_alone(tmp_path: Path) -> None:
    """In a process of its own, as Locust replaces the sockets of its process."""
    picture = np.full((8, 8, 3), 100, np.uint8)
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    (tmp_path / "p.png").write_bytes(stream.getvalue())
    references = {"0": picture + np.uint8(3), "1": picture}
    np.savez(tmp_path / "r.npz", **references)  # type: ignore[arg-type]
    wishes = [{"chance": chance, "fields": {}, "status": 200} for chance in (0.0, 0.5, 0.5)]
    told = {"address": "http://127.0.0.1:1", "wishes": wishes, "references": str(tmp_path / "r.npz")}
    config = tmp_path / "c.json"
    config.write_text(json.dumps({**told, "out": str(tmp_path / "c.lines")}))
    program = LOADED.format(folder=str(BENCHMARKS), config=str(config), png=str(tmp_path / "p.png"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[3, 0], [1, 2]]
