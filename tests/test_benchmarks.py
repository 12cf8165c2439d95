"""Every benchmark runs on a tiny model and writes what it says it writes; what it measures there means nothing."""

from __future__ import annotations

import importlib
import json
import math
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
PROGRAMS = {
    "step_overhead": {"loras", "base_s", "ours", "peft", "above", "flops_ours", "flops_peft", "differ_by", "seconds"},
    "count": {"what", "loras", "way", "kernels", "views", "frames", "bytes", "flops", "compiled_kernels"},
    "picture": {"way", "loras", "picture_s", "of_base", "of_minima", "changed_weights", "differ_by", "seconds"},
    "switch": {"operation", "layers", "median_s", "minimum_s", "peft_by_ours", "bake_by_ours", "differ_by", "seconds"},
    "idle": {"patches", "seconds"},
    "kinds": {"kind", "layer", "way", "base_s", "ours", "peer_name", "peer", "peer_by_ours", "differ_by", "seconds"},
    "memory": {"stack"},
    "library": {"what", "value", "unit", "goal", "goal_met"},
    "copies": {"what", "value", "unit"},
    "strength": {
        "loras",
        "strength",
        "constant_s",
        "of_constant",
        "interval",
        "by_layers",
        "by_layers_interval",
        "extra_s",
        "write_s",
        "seconds",
    },
    "growth": {"what", "value", "rank", "base_s", "ours", "peft", "floor", "flops", "bytes", "differ_by", "seconds"},
    "switch_sdxl": {
        "operation",
        "layers",
        "median_s",
        "minimum_s",
        "peft_by_ours",
        "bake_by_ours",
        "differ_by",
        "seconds",
    },
    "saving": {"task", "program", "layers", "error", "least", "seconds"},
    "saving_memory": {
        "model",
        "size",
        "what",
        "program",
        "layers",
        "error",
        "seconds",
        "wall",
        "memory",
        "imports",
    },
    "startup": {"what", "median_s", "minimum_s", "goal_met", "seconds"},
    "load": {"way", "bytes", "keys", "median_s", "of_reading", "of_minima", "goal_met", "seconds"},
}
TINY = ("--tiny", "--rounds", "1", "--latent", "8", "--rank", "4")
EXTRA = {
    "step_overhead": ("--counts", "1", "3"),
    "count": ("--counts", "1", "--steps"),
    "picture": ("--counts", "1", "--steps", "3"),
    "strength": ("--counts", "1"),
    "idle": ("--calls", "10"),
    "kinds": ("--kind", "lora", "full", "--shape", "conv640", "--merged"),
    "memory": ("--stack", "LoKr", "--changes", "1"),
}


@pytest.fixture
def load(monkeypatch):
    pytest.importorskip("peft")
    pytest.importorskip("diffusers")
    pytest.importorskip("lycoris")
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def common(load) -> ModuleType:
    return load("_common")


def test_all_programs_are_known() -> None:
    served = {"serve"}  # tests/extension/serve/test_load.py
    assert {file.stem for file in FOLDER.glob("[!_]*.py")} - served == set(PROGRAMS)


def more_work_for_more_loras(rows: list[dict[str, Any]]) -> None:
    one, more = rows
    assert 1 < one["flops_ours"] < more["flops_ours"] <= more["flops_peft"]


def strength_on_networks_of_several_sizes(rows: list[dict[str, Any]]) -> None:
    assert [row["operation"] for row in rows[:2]] == ["first use", "switch"]
    layers = [row["layers"] for row in rows if row["operation"] == "strength"]
    assert len(layers) >= 3
    assert layers == sorted(set(layers))


CHECKS = {"step_overhead": more_work_for_more_loras, "switch": strength_on_networks_of_several_sizes}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_prints_a_table_and_writes_json(name, load, tmp_path, capsys) -> None:
    file = tmp_path / "out.json"
    assert load(name).main([*TINY, *EXTRA.get(name, ()), "--json", str(file)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[1].startswith("| ---")
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["benchmark"] == name
    assert {"cpu", "cores", "threads", "torch"} <= set(written["machine"])
    assert written["settings"]["rank"] == 4
    assert written["rows"]
    assert all(PROGRAMS[name] <= set(row) for row in written["rows"])
    CHECKS.get(name, lambda rows: None)(written["rows"])


def test_kinds_are_counted_with_few_tokens_and_many(load, tmp_path) -> None:
    file = tmp_path / "out.json"
    assert load("count").main([*TINY, "--kinds", "--json", str(file)]) == 0
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["tokens"] for row in rows] == [8, 1024] * (len(rows) // 2)
    own = {row["what"]: row for row in rows if row["tokens"] == 8}
    assert own["lora"]["kernels"] == 3
    assert own["lora"]["ours"] < own["full"]["ours"] < own["full"]["frames"]
    assert own["full"]["way"] == "dense"


def test_every_kind_and_every_pair_of_kinds_is_saved_at_rounding(load, tmp_path) -> None:
    file = tmp_path / "out.json"
    assert load("saving").main([*TINY, "--kinds", "--json", str(file)]) == 0
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert len(rows) > 4
    assert sum(row["pairs"] for row in rows) > 10
    assert all(0 < row[key] < 1e-6 for row in rows for key in ("error", "of the stack"))
    assert all(row["error of pairs"] < 1e-6 for row in rows)


@pytest.mark.full
def test_the_page_of_pefts_kinds_has_their_cost(load, tmp_path) -> None:
    file = tmp_path / "out.json"
    assert load("count").main(["--kinds", "--json", str(file)]) == 0
    base, cost = 2 * 640 * 640, {}
    for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        flops = row["flops"] / (base * row["tokens"])
        cost[row["what"], row["tokens"]] = f"{row['kernels']}; {flops:.2f}"
    others = {"LORA with DoRA": "dora", "OFT": "oft of PEFT", "BOFT": "boft of PEFT", "HRA": "hra", "VERA": "vera"}
    text = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    rows = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines() if line.count("|") == 9][2:]
    for kind, *_, few, many in rows:
        name = others.get(kind) or (kind if (kind, 8) in cost else re.split("[,;]", kind)[0])
        if (few, many) == ("-", "-"):
            assert (name, 8) not in cost
        else:
            assert (kind, few, many) == (kind, cost[name, 8], cost[name, 1024])
    assert len(rows) > 30


def test_a_picture_by_some_ways_alone(load, tmp_path) -> None:
    file, picture = tmp_path / "out.json", load("picture")
    few = [*TINY, "--counts", "1", "--steps", "2", "--ways"]
    assert picture.main([*few, "ours, merged", "--json", str(file)]) == 0
    assert [row["way"] for row in json.loads(file.read_text(encoding="utf-8"))["rows"]] == ["base", "ours, merged"]
    with pytest.raises(SystemExit, match="ways are base, ours, live"):
        picture.main([*few, "ours"])


def test_a_picture_whose_steps_take_turns_with_those_of_the_base(load, tmp_path) -> None:
    file, picture = tmp_path / "out.json", load("picture")
    few = [*TINY, "--counts", "1", "--steps", "2", "--rounds", "2", "--in-turns", "--ways", "ours, merged"]
    assert picture.main([*few, "--json", str(file)]) == 0
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["ours, merged"]
    assert rows[0]["changed_weights"] == 0
    assert len(rows[0]["seconds"]) == len(rows[0]["base_seconds"]) == 2
    ratios = [way / base for way, base in zip(rows[0]["seconds"], rows[0]["base_seconds"], strict=True)]
    assert rows[0]["of_base"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.parametrize(("model", "layers"), [("sdxl-blocks", 22), ("flux-blocks", 48)])
def test_step_overhead_of_another_model(load, tmp_path, model, layers) -> None:
    file = tmp_path / "out.json"
    load("step_overhead").main([*TINY, "--model", model, "--counts", "1", "--json", str(file)])
    assert json.loads(file.read_text())["text"].startswith(f"{layers} layers")


@pytest.mark.parametrize(("how", "compiled"), [("no", 0), ("blocks", 2), ("whole", 1)])
def test_what_is_compiled_of_a_model(load, how, compiled) -> None:
    blocks = load("_blocks")
    model = blocks.MODELS["sdxl-blocks"].build(tiny=True, dtype=torch.float32)
    blocks.compile_model(model, how)
    assert sum(one._compiled_call_impl is not None for one in model.modules()) == compiled


def test_products_in_place_count_as_others_do(load) -> None:
    import torch

    count = load("step_overhead").count_flops
    y, a, b = torch.zeros(3, 5), torch.zeros(3, 4), torch.zeros(4, 5)
    assert count(lambda: torch.addmm(y, a, b)) == count(lambda: y.addmm_(a, b)) == 2 * 3 * 4 * 5
    many = [one.expand(2, *one.shape).contiguous() for one in (y, a, b)]
    assert count(lambda: torch.baddbmm(*many)) == count(lambda: many[0].baddbmm_(*many[1:])) == 2 * 2 * 3 * 4 * 5


def test_idle_leaves_the_classes_patched_as_it_found_them(load) -> None:
    from torch import nn

    import lib_lora

    lib_lora.uninstall()
    plain = nn.Linear.forward
    load("idle").main([*TINY, "--calls", "10"])
    assert nn.Linear.forward is plain


def test_kinds_compares_every_kind_with_its_trainer(load, tmp_path) -> None:
    file = tmp_path / "out.json"
    load("kinds").main([*TINY, "--shape", "linear1280", "--json", str(file)])
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["kind"] for row in rows] == list(load("_kinds").KINDS)
    assert all(row["differ_by"] < 1e-5 for row in rows)
    wrong = {row["kind"] for row in rows if not row["peer_right"]}
    assert wrong == {"diag-oft", "boft", "ia3"}, "whose way beside the layer changes the bias too"


def test_memory_follows_every_allocation(load) -> None:
    import torch

    kept = []

    def passing() -> None:
        torch.zeros(1000) + torch.zeros(1000)

    phases = load("memory").record({"keep": lambda: kept.append(torch.zeros(500)), "pass": passing, "free": kept.clear})
    assert {name: (one.before, one.most, one.after) for name, one in phases.items()} == {
        "keep": (0, 2000, 2000),
        "pass": (2000, 14000, 2000),
        "free": (2000, 2000, 0),
    }


def test_memory_finds_nothing_left_and_more_for_more_loras(load, tmp_path) -> None:
    file = tmp_path / "out.json"
    load("memory").main([*TINY, "--stack", "LoRA", "4 LoRAs", "OFT", "full", "--changes", "4", "--json", str(file)])
    *rows, change = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["left"] for row in rows] == [0] * len(rows)
    placed_at_once = [row for row in rows if row["stack"] != "OFT"]  # which waits for the number of tokens
    assert all(row["kept"] >= 0.4 * row["factors"] for row in placed_at_once)
    one, four = (next(row for row in rows if row["stack"] == name) for name in ("LoRA", "4 LoRAs"))
    assert four["factors"] == 4 * one["factors"]
    for row in (one, four):  # of each layer, its strengths, and the number by which compiled code finds it
        assert 0 <= row["kept"] - row["factors"] <= 64 * row["layers"]
    assert change["changes"] == 4
    assert change["in_use"] <= load("memory").LEFT


def test_variants_take_turns(common) -> None:
    seen = []
    variants = {name: common.Variant(lambda name=name: seen.append(name)) for name in "abc"}
    samples = common.measure(variants, 2)
    assert "".join(seen) == "abc" + "abc" + "cba"
    assert all(len(values) == 2 for values in samples.seconds.values())


def test_preparation_is_not_timed_and_calls_are_divided(common) -> None:
    seen = []
    variant = common.Variant(lambda: seen.append("run"), prepare=lambda: seen.append("prepare"), calls=3)
    variant.time()
    assert seen == ["prepare", "run", "run", "run"]


def test_ratios_are_of_the_same_round(common) -> None:
    samples = common.Samples({"base": [1.0, 2.0, 10.0], "ours": [1.1, 2.4, 10.0]})
    assert samples.ratio("ours", "base") == pytest.approx(1.1)
    assert samples.minimum_ratio("ours", "base") == pytest.approx(1.1)
    assert samples.ratios("ours", "base") == pytest.approx([1.1, 1.2, 1.0])


@pytest.mark.parametrize(("count", "ends"), [(1, None), (5, None), (6, (0, 5)), (9, (1, 7)), (40, (13, 26))])
def test_interval_of_the_median(common, count, ends) -> None:
    found = common.Spread.of([float(i) for i in range(count)]).interval
    assert found == ends
    if ends is not None:
        outside = 2 * sum(math.comb(count, i) for i in range(ends[0] + 1)) / 2**count
        assert outside <= 0.05


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (45e-6, "45 us"), (5e-8, "50 ns")])
def test_durations_have_fitting_units(common, seconds, text) -> None:
    assert common.duration(seconds) == text


def test_unequal_outputs_are_refused(load) -> None:
    import torch

    check = load("_models").check_equal
    base, one = torch.zeros(4), torch.ones(4)
    assert check("same", one, one, base) == 0
    with pytest.raises(RuntimeError, match="differ"):
        check("other", one * 1.01, one, base)
    with pytest.raises(RuntimeError, match="says nothing"):
        check("idle", one, one, one)


class TestReport:
    """All programs in one."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        machine = {"cpu": "some cpu", "cores": 2}
        growth = [
            {"what": what, "value": value, "rank": 32, "ours": 1.1, "peft": 1.4, "floor": 1.05}
            for what in ("LoRAs", "rank")
            for value in (1, 2)
        ]
        for name, rows in (("growth", growth), ("idle", [{"patches": "none"}])):
            told = {"benchmark": name, "machine": machine, "settings": {"rounds": 3}, "text": f"| {name} |"}
            (tmp_path / f"{name}.json").write_text(json.dumps({**told, "rows": rows}))
        return tmp_path

    def test_it_has_the_machine_the_versions_every_table_and_the_plots(self, load, folder) -> None:
        for _ in range(2):  # its own output is not taken for a program's
            assert load("_report").main([str(folder)]) == 0
        made = json.loads((folder / "report.json").read_text())
        assert made["machine"] == {"cpu": "some cpu", "cores": 2}
        assert made["versions"]["torch"] == version("torch")
        assert [one["benchmark"] for one in made["programs"]] == ["growth", "idle"]
        text = (folder / "report.md").read_text()
        assert all(part in text for part in ("some cpu", f"torch {version('torch')}", "| growth |", "| idle |"))
        assert "(growth.svg)" in text
        drawn = (folder / "growth.svg").read_text()
        assert all(label in drawn for label in ("LoRAs of rank 32", "rank of one LoRA", "Remora", "PEFT", "least work"))

    def test_the_same_figures_are_the_same_picture(self, load, folder) -> None:
        drawn = []
        for _ in range(2):
            load("_report").main([str(folder)])
            drawn.append((folder / "growth.svg").read_bytes())
        assert drawn[0] == drawn[1]

    def test_nothing_is_told_as_such(self, load, tmp_path, capsys) -> None:
        assert load("_report").main([str(tmp_path)]) == 1
        assert "has no figures" in capsys.readouterr().err
        assert load("_report").main([]) == 2
