"""A folder that PEFT saved component by component is one LoRA: each part acts by its own configuration, or is named."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib_lora import Engine, Entry, FileError, Stack, inspect_file, load_network
from lib_lora.__main__ import main
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import measure
from lib_lora.inspection.sketches import compare, sketch
from lib_lora.saving import combine_files, convert_file, save_again
from tests.fakes.files import by_component, save

CONFIGS = {
    "unet": {
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": True,
        "use_dora": True,
        "rank_pattern": {"k": 2},
        "alpha_pattern": {"k": 3},
    },
    "text_encoder": {"r": 2, "lora_alpha": 1},
    "text_encoder_2": {"r": 3, "lora_alpha": 6, "use_rslora": True},
}


def module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.ModuleDict({name: nn.Linear(6, 6, bias=False, dtype=torch.float64) for name in "qk"})


@pytest.fixture
def model() -> dict[str, nn.Module]:
    return {name: module(seed) for seed, name in enumerate(CONFIGS)}


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose parts have the same keys, as PEFT saves each component by itself."""
    for seed, (name, said) in enumerate(CONFIGS.items()):
        write(tmp_path / "sks.v1" / name, said, seed)
    return tmp_path / "sks.v1"


def write(folder, said: Mapping[str, object], seed: int) -> None:
    torch.manual_seed(100 + seed)
    tensors = {}
    for name in "qk":
        rank = said.get("rank_pattern", {}).get(name, said["r"])
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, 6)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(6, rank)
        if said.get("use_dora"):
            tensors[f"base_model.model.{name}.lora_magnitude_vector"] = torch.rand(6) + 1
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **said}))


def definition(folder, component: str, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Compute the change of a weight in float64 by PEFT's definition."""
    said, tensors = CONFIGS[component], load_file(folder / component / "adapter_model.safetensors")
    down, up = (tensors[f"base_model.model.{name}.lora_{one}.weight"].double() for one in "AB")
    alpha = said.get("alpha_pattern", {}).get(name, said["lora_alpha"])
    scale = alpha / (math.sqrt(len(down)) if said.get("use_rslora") else len(down))
    changed = weight + scale * up @ down
    if said.get("use_dora"):
        norms = tensors[f"base_model.model.{name}.lora_magnitude_vector"].double()
        changed = changed * (norms / changed.norm(dim=1))[:, None]
    return changed - weight


def test_each_part_acts_on_its_component_by_its_own_configuration(folder, model):
    x = torch.randn(3, 6, dtype=torch.float64)
    plain = {(part, name): model[part][name](x) for part in model for name in "qk"}
    network = load_network(folder, model)
    with Engine(model) as engine:
        report = engine.activate(Stack([Entry(folder, 0.5)]))
        for (part, name), former in plain.items():
            delta = definition(folder, part, name, model[part][name].weight.detach())
            torch.testing.assert_close(network.delta_weight(part, name, torch.float64), delta)
            torch.testing.assert_close(model[part][name](x) - former, 0.5 * x @ delta.T)
        (entry,) = report.entries
        assert (entry.hit, entry.layers, entry.components, entry.warning) == (6, 6, {*CONFIGS}, "")
        engine.deactivate()
        assert all(torch.equal(model[part][name](x), former) for (part, name), former in plain.items())
    assert (inspect_file(folder).kinds, inspect_file(folder).ranks) == ({"lora+dora": 2, "lora": 4}, (2, 4))


def test_a_part_for_a_component_that_the_model_lacks_acts_nowhere_else(folder, model):
    del model["text_encoder_2"]  # whose keys and shapes are the first one's, too
    report = load_network(folder, model).report
    assert (report.hit, report.absent, report.components) == (4, 2, {"unet", "text_encoder"})
    assert {one.key.split("/")[0] for one in report.unused} == {"text_encoder_2"}
    assert "component text_encoder_2 is absent in this model" in report.why()


def test_both_experts_have_parts_of_their_own(folder):
    (folder / "unet").rename(folder / "transformer")
    (folder / "text_encoder").rename(folder / "transformer_2")
    shutil.rmtree(folder / "text_encoder_2")
    network = load_network(folder, {"transformer": module(0), "transformer_2": module(1)})
    assert {(one.component, one.target.path) for one in network.bindings} == {
        (part, name) for part in ("transformer", "transformer_2") for name in "qk"
    }
    assert len(network.bindings) == 4


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda part: (part / "adapter_model.safetensors").write_bytes(b"no"), "it is truncated"),
        (
            lambda part: (part / "adapter_model.safetensors").rename(part / "adapter_model.bin"),
            "it is a pickle, which can run any code",
        ),
        (lambda part: save_file({"x": torch.ones(1)}, part / "adapter_model.safetensors"), "no keys of a LoRA"),
    ],
)
def test_a_faulty_part_costs_only_itself(folder, model, spoil, why):
    spoil(folder / "text_encoder")
    with Engine(model) as engine:
        (entry,) = engine.activate(Stack([Entry(folder)])).entries
    assert entry.components == {"unet", "text_encoder_2"}
    assert len(entry.faults) == 1
    assert entry.warning.startswith("its text_encoder is not used: ")
    assert why in entry.warning


def test_a_folder_without_a_part_that_can_be_used_is_refused_with_every_reason(folder, model):
    for part in CONFIGS:
        (folder / part / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match=r"its unet is not used: it is empty.*its text_encoder is not used"):
        load_network(folder, model)


def test_a_folder_that_is_no_component_is_named(folder, model):
    (folder / "text_encoder").rename(folder / "clip")
    report = load_network(folder, model).report
    assert report.components == {"unet", "text_encoder_2"}
    assert report.warning == (
        "its folders without the name of a component, as unet or text_encoder, are not used: clip"
    )


def test_a_change_of_any_part_is_seen_at_the_next_activation(folder, model):
    x = torch.randn(2, 6, dtype=torch.float64)
    with Engine(model) as engine:
        engine.activate(Stack([Entry(folder)]))
        before = model["text_encoder"]["q"](x)
        config = folder / "text_encoder" / "adapter_config.json"
        config.write_text(json.dumps({**CONFIGS["text_encoder"], "lora_alpha": 100}))
        engine.activate(Stack([Entry(folder)]))
        assert not torch.allclose(model["text_encoder"]["q"](x), before, rtol=1e-5, atol=1e-8)
        shutil.rmtree(folder / "text_encoder")
        assert engine.activate(Stack([Entry(folder)])).entries[0].components == {"unet", "text_encoder_2"}


def test_a_file_in_the_folder_is_still_only_itself(folder, model):
    assert load_network(folder / "unet" / "adapter_model.safetensors", {"unet": model["unet"]}).report.hit == 2


@pytest.fixture
def both(tmp_path):
    """Return a folder, and a file of diffusers with the same factors."""
    folder, every = tmp_path / "loras" / "sks", dict[str, torch.Tensor]()
    for part, tensors in by_component().items():
        (folder / part).mkdir(parents=True)
        save(folder / part / "adapter_model.safetensors", tensors)
        (folder / part / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
        every |= {key.replace("base_model.model", part): tensor for key, tensor in tensors.items()}
    return folder, save(tmp_path / "loras" / "file.safetensors", every)


def test_a_folder_is_measured_and_compared_as_the_file_with_the_same_factors(both):
    found, same = map(measure, map(layers_of, both))
    assert (found.norm, found.rank) == (pytest.approx(same.norm, rel=1e-12), 4)
    assert {name: found.share(part) for name, part in found.by_component().items()} == pytest.approx(
        {name: same.share(part) for name, part in same.by_component().items()}
    )
    (alike,), merges = compare([sketch(layers_of(path)) for path in both])
    assert (alike.alike, alike.cosine, merges) == ("same", pytest.approx(1), [])


def test_a_folder_is_measured_on_the_components_that_the_model_has(both):
    model = {"unet": nn.Module()}
    model["unet"].add_module("mid_block", nn.Module())
    place = model["unet"].mid_block
    for name in ("attentions", "0", "transformer_blocks", "0", "attn1"):
        place.add_module(name, nn.Module())
        place = getattr(place, name)
    place.to_q = nn.Linear(16, 24)
    found = layers_of(both[0], model)
    assert ([layer.component for layer in found.layers], found.report.absent) == (["unet"], 1)
    assert measure(found).relative is not None


def test_a_part_that_cannot_be_measured_is_told(both, capsys):
    part = both[0] / "text_encoder" / "adapter_model.safetensors"
    part.write_bytes(part.read_bytes()[:-9])
    found = measure(layers_of(both[0]))
    assert [layer.layer.component for layer in found.layers] == ["unet"]
    assert [main([name, str(both[0])]) for name in ("inspect", "doctor")] == [0, 0]
    inspected, told = capsys.readouterr().out.split("WARNING: its text_encoder is not used: it is truncated")[1:]
    assert "layers        1" in inspected
    assert "energy      unet 100.0%" in told


def test_a_folder_is_saved_in_another_form_and_combined_as_the_file_with_the_same_factors(both):
    folder, place = both[0], both[0].parent
    saved = [convert_file(path, place / f"{path.stem} 1.safetensors", strength=0.5) for path in both]
    parts = [load_file(one.path) for one in saved]
    assert len(parts[0]) == 6  # two factors and an alpha of each layer
    assert all(torch.equal(one, parts[1][key]) for key, one in parts[0].items())
    again = save_again(saved[0].path, place / "again.safetensors", None, [place])
    assert again.path.read_bytes() == saved[0].path.read_bytes()
    sums = [combine_files([path, saved[1].path], place / f"{path.stem} 2.safetensors") for path in both]
    assert all(torch.equal(one, load_file(sums[1].path)[key]) for key, one in load_file(sums[0].path).items())
    (folder / "text_encoder" / "adapter_model.safetensors").write_bytes(b"")
    left = convert_file(folder, place / "left.safetensors")
    assert [layer.component for layer in left.layers] == ["unet"]
    assert any("its text_encoder is not used: it is empty" in note for note in left.notes)
    with pytest.raises(FileError, match=r"its source sks is missing: .* is another one by now"):
        save_again(saved[0].path, place / "again.safetensors", None, [place], replace=True)


def test_the_command_line_takes_a_folder(both, capsys):
    assert main(["inspect", "--json", "--report", str(both[0].parent / "keys.json"), str(both[0])]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["layers"], told["kinds"], told["changes_nothing"]) == (2, {"lora": 2}, False)
    keys = json.loads((both[0].parent / "keys.json").read_text())["keys"]
    assert keys.keys() == {f"{part}/{key}" for part, tensors in by_component().items() for key in tensors}
    assert main(["doctor", *map(str, both), "--library", str(both[0].parent)]) == 0
    out = capsys.readouterr().out
    assert "alike       file has the same change, up to rounding, as sks" in out
    assert "energy      unet " in out
