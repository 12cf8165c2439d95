"""Files combined to one: PEFT's results, each rule by its definition in fp64, and what is refused."""

from __future__ import annotations

import gc
import json
import math
import weakref

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from lib_lora import (
    ArgumentError,
    Engine,
    Entry,
    FileError,
    Stack,
    StackError,
    combine_files,
    convert_file,
    inspect_file,
    load_network,
    save_again,
    save_stack,
)
from lib_lora.__main__ import main
from lib_lora.saving import merging
from lib_lora.saving.merging import Combination, merge_tensors
from lib_lora.saving.provenance import HEADER
from tests.fakes.files import pair, save
from tests.fakes.fused import PARTS, QKV, UNEVEN_PARTS, Blocks, write
from tests.fakes.kinds import SAMPLES

peft = pytest.importorskip("peft")

SHAPES = {"a": (48, 24), "b": (48, 24), "c": (24, 8, 3, 3)}
STRENGTHS = (0.8, -0.5, 1.3)
BY_FACTORS = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")
BY_CHANGES = ("svd", "ties_svd", "dare_linear_svd", "dare_ties_svd", "magnitude_prune_svd")
BOUND = 1e-6
"""Of an error as a share of the change: files are fp32, and so are PEFT's strengths."""


class Net(nn.Module):
    """Two linear layers of one shape and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 48), nn.Linear(24, 48), nn.Conv2d(8, 24, 3)


def density_of(how):
    return 0.6 if how.removesuffix("_svd") in BY_FACTORS[1:] else None


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return Net().requires_grad_(False)


@pytest.fixture
def peft_model(net, tmp_path):
    """Return a model of PEFT with three adapters of one rank, of which one leaves a layer out, and their files."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        made, files = None, []
        for name, alpha, layers in (("first", 8, "abc"), ("second", 3, "abc"), ("third", 4, "ac")):
            config = peft.LoraConfig(r=4, lora_alpha=alpha, target_modules=[*layers], init_lora_weights=False)
            if made is None:
                made = peft.get_peft_model(net, config, adapter_name=name)
            else:
                made.add_adapter(name, config)
            made.save_pretrained(tmp_path, selected_adapters=[name])
            files.append(tmp_path / name / "adapter_model.safetensors")
    return made.double(), files


def draws_of_peft(monkeypatch, how, seed):
    """Have PEFT draw for each layer what Remora draws there."""
    generators, factors = list[torch.Generator](), 1 if how.endswith("_svd") else 2
    for name, adapters in (("a", 3), ("b", 2), ("c", 3)):
        generators += [Combination(how, 0.5, seed).generator("transformer", name)] * (adapters * factors)
    each, bernoulli = iter(generators), torch.bernoulli
    monkeypatch.setattr(torch, "bernoulli", lambda shares: bernoulli(shares, generator=next(each)))


@pytest.mark.parametrize("how", ["cat", *BY_FACTORS, *BY_CHANGES])
def test_peft_has_the_same(peft_model, tmp_path, monkeypatch, how):
    made, files = peft_model
    density = density_of(how)
    with torch.random.fork_rng(devices=[]), monkeypatch.context() as patch:
        if "dare" in how:
            draws_of_peft(patch, how, 7)
        made.add_weighted_adapter(["first", "second", "third"], list(STRENGTHS), "all", how, density=density)
    wanted = {name: getattr(made.base_model.model, name).get_delta_weight("all").detach() for name in SHAPES}
    plain = {"transformer": Net()}
    entries = [Entry(path, strength) for path, strength in zip(files, STRENGTHS, strict=True)]
    saved = combine_files(
        entries, tmp_path / "all.safetensors", how, density=density, seed=7, components=plain, spelling="diffusers"
    )
    ranks = {layer.name: layer.rank for layer in saved.layers}
    assert ranks == ({"a": 12, "b": 8, "c": 12} if how == "cat" else dict.fromkeys(SHAPES, 4))
    network = load_network(saved.path, plain)
    for name, want in wanted.items():
        got = network.delta_weight("transformer", name, torch.float64)
        assert (got - want).norm() <= BOUND * want.norm(), name


def file_of(path, seed, rank=4, names="abc", alpha=2.0):
    tensors = {}
    for i, name in enumerate(names):
        tensors |= pair(f"lora_unet_{name}", SHAPES[name], rank, alpha=alpha, seed=10 * seed + i)
    return save(path, tensors)


@pytest.fixture
def files(tmp_path):
    return [file_of(tmp_path / f"{seed}.safetensors", seed) for seed in range(3)]


@pytest.fixture
def entries(files):
    return [Entry(path, strength) for path, strength in zip(files, STRENGTHS, strict=True)]


def deltas(path, net):
    """Return the changes of all layers that a file has, in fp64."""
    network = load_network(path, {"unet": net})
    names = {one.target.name for one in network.bindings}
    return {name: network.delta_weight("unet", name, torch.float64) for name in sorted(names)}


def test_a_sum_is_what_a_saved_stack_is(entries, net, tmp_path):
    engine = Engine({"unet": net})
    engine.activate(Stack(entries))
    stack = load_file(save_stack(engine, tmp_path / "stack.safetensors").path)
    engine.close()
    for how in ("sum", "cat"):
        combined = load_file(combine_files(entries, tmp_path / f"{how}.safetensors", how).path)
        assert stack.keys() == combined.keys()
        assert all(torch.equal(one, combined[key]) for key, one in stack.items())


@pytest.mark.parametrize("how", [*BY_FACTORS, *BY_CHANGES, "orthogonal"])
def test_with_and_without_the_model(entries, net, tmp_path, how):
    density = density_of(how)
    alone = combine_files(entries, tmp_path / "alone.safetensors", how, density=density, seed=3)
    given = combine_files(
        entries, tmp_path / "given.safetensors", how, density=density, seed=3, components={"transformer": net}
    )
    first, second = load_file(alone.path), load_file(given.path)
    assert first.keys() == second.keys()
    assert all(torch.equal(one, second[key]) for key, one in first.items())


def inner(first, second):
    return float((first * second).sum())


def test_orthogonal_takes_out_what_files_share(net, tmp_path):
    first = file_of(tmp_path / "first.safetensors", 1)
    own, extra = load_file(first), load_file(file_of(tmp_path / "extra.safetensors", 2))
    shared = {
        key: one if key.endswith("alpha") else torch.cat([one, extra[key]], dim=0 if "down" in key else 1)
        for key, one in own.items()
    }
    shared |= {key: 2 * one for key, one in own.items() if key.endswith("alpha")}  # of twice the rank
    second, third = save(tmp_path / "second.safetensors", shared), file_of(tmp_path / "third.safetensors", 3)
    entries = [Entry(path, strength) for path, strength in zip((first, second, third), STRENGTHS, strict=True)]
    d1, d2, d3 = (deltas(path, net) for path in (first, second, third))
    pair_of = combine_files(entries[:2], tmp_path / "two.safetensors", "orthogonal")
    for name, total in deltas(pair_of.path, net).items():
        rest = (total - STRENGTHS[0] * d1[name]) / STRENGTHS[1]
        assert inner(d2[name], d1[name]) > 0.5 * inner(d1[name], d1[name]), "they share something"
        assert abs(inner(rest, d1[name])) <= BOUND * inner(d1[name], d1[name])
        wanted = d2[name] - inner(d2[name], d1[name]) / inner(d1[name], d1[name]) * d1[name]
        assert (rest - wanted).norm() <= BOUND * wanted.norm()
    three = combine_files(entries, tmp_path / "three.safetensors", "orthogonal")
    assert [layer.rank for layer in three.layers] == [16, 16, 16], "exact, in factors"
    two = deltas(pair_of.path, net)
    for name, total in deltas(three.path, net).items():
        rest = total - two[name]
        for other in (d1[name], two[name] - STRENGTHS[0] * d1[name]):
            assert abs(inner(rest, other)) <= BOUND * float(rest.norm() * other.norm())
        assert (rest / STRENGTHS[2] - d3[name]).norm() < 0.2 * d3[name].norm(), "little is shared"


def test_orthogonal_leaves_nothing_of_a_file_that_is_a_former_one(files, net, tmp_path):
    doubled = convert_file(files[0], tmp_path / "doubled.safetensors", strength=2.0).path
    entries = [Entry(files[0], 0.8), Entry(doubled, -0.5), Entry(files[1], 0.3)]
    found = deltas(combine_files(entries, tmp_path / "out.safetensors", "orthogonal").path, net)
    wanted = deltas(combine_files([entries[0], entries[2]], tmp_path / "two.safetensors", "orthogonal").path, net)
    for name, total in found.items():
        assert (total - wanted[name]).norm() <= BOUND * wanted[name].norm()


def test_other_kinds_are_merged_by_their_changes(tmp_path):
    """LoHa and LoRA on a layer, and a bias of both: the references are dense."""
    for how in ("ties", "dare_linear", "magnitude_prune", "orthogonal"):
        (tmp_path / how).mkdir()
        check_other_kinds(tmp_path / how, how)


def check_other_kinds(folder, how):
    net = nn.ModuleDict({"layer": nn.Linear(24, 48).requires_grad_(False)})
    samples = [next(one for one in SAMPLES if one.name == name) for name in ("loha", "lora with bias", "full")]
    made = [sample.write(folder, (48, 24), seed) for seed, sample in enumerate(samples)]
    entries = [Entry(path, strength) for (path, _), strength in zip(made, STRENGTHS, strict=True)]
    changes = [load_network(path, {"unet": net}).delta_weight("unet", "layer", torch.float64) for path, _ in made]
    density = density_of(how)
    saved = combine_files(entries, folder / "out.safetensors", how, density=density, seed=5)
    generator = Combination(how, density, 5).generator("transformer", "layer")
    if how == "orthogonal":
        kept = list[torch.Tensor]()
        for change in changes:
            kept.append(change - sum(inner(change, one) / inner(one, one) * one for one in kept))
        wanted = sum(strength * one for strength, one in zip(STRENGTHS, kept, strict=True))
    else:
        wanted = merge_tensors(changes, STRENGTHS, how, density, generator)
        assert saved.notes[-1].startswith("in 1 of 1 weights a file has no plain LoRA of the whole weight")
    found = load_file(saved.path)
    (layer,) = {key.split(".")[0] for key in found}
    assert (found[f"{layer}.diff"] - wanted).norm() <= BOUND * wanted.norm()
    biases = [sample.bias_delta(tensors, 1.0, None) for sample, (_, tensors) in zip(samples, made, strict=True)]
    there = [(one, strength) for one, strength in zip(biases, STRENGTHS, strict=True) if one is not None]
    if how == "orthogonal":
        assert len(there) == 1
        wanted = there[0][0] * there[0][1]
    else:
        wanted = merge_tensors([one for one, _ in there], [one for _, one in there], how, density, generator)
    assert (found[f"{layer}.diff_b"] - wanted).norm() <= BOUND * wanted.norm()


def test_kinds_that_depend_on_the_base_need_the_model(tmp_path):
    net = nn.ModuleDict({"layer": nn.Linear(24, 48).requires_grad_(False)})
    samples = [next(one for one in SAMPLES if one.name == name) for name in ("dora by rows", "lora")]
    made = [sample.write(tmp_path, (48, 24), seed) for seed, sample in enumerate(samples)]
    entries = [Entry(path, strength) for (path, _), strength in zip(made, STRENGTHS[:2], strict=True)]
    with pytest.raises(FileError, match=r"is on meta; give the model that the file is for"):
        combine_files(entries, tmp_path / "out.safetensors", "ties", density=0.5)
    saved = combine_files(entries, tmp_path / "out.safetensors", "ties", density=0.5, components={"unet": net})
    base = net["layer"].weight.double()
    changes = [
        (sample.weight(tensors, base, strength) - base) / strength
        for sample, (_, tensors), strength in zip(samples, made, STRENGTHS[:2], strict=True)
    ]
    wanted = merge_tensors(changes, STRENGTHS[:2], "ties", 0.5, torch.Generator())
    (found,) = load_file(saved.path).values()
    assert (found - wanted).norm() <= BOUND * wanted.norm()


@pytest.mark.usefixtures("names_of_every_family")
@pytest.mark.parametrize("scenario", [QKV, PARTS, UNEVEN_PARTS], ids=lambda one: one.name)
def test_layers_that_are_one_in_a_file_and_several_in_the_model(tmp_path, scenario):
    """Without pruning, TIES goes by single numbers, so that it is the same for a layer and for its parts."""
    lora = next(one for one in SAMPLES if one.name == "lora")
    model = {"transformer": Blocks(scenario.model)}
    written = [write(tmp_path, lora, scenario, seed) for seed in range(2)]
    entries = [Entry(one.path, strength) for one, strength in zip(written, STRENGTHS[:2], strict=True)]
    saved = combine_files(entries, tmp_path / "out.safetensors", "ties_svd", density=1.0, components=model, rank=24)
    found = load_network(saved.path, model)
    networks = [load_network(one.path, model) for one in written]
    for name in scenario.model:
        changes = [one.delta_weight("transformer", name, torch.float64) for one in networks]
        wanted = merge_tensors(changes, STRENGTHS[:2], "ties", 1.0, torch.Generator())
        got = found.delta_weight("transformer", name, torch.float64)
        assert (got - wanted).norm() <= BOUND * wanted.norm(), name


def test_a_seed_makes_the_same_file_and_each_layer_draws_for_itself(entries, tmp_path):
    names = ("one", "same", "other", "part")
    one, same, other, part = (tmp_path / name / "out.safetensors" for name in names)
    for path in (one, same, other, part):
        path.parent.mkdir()
    before = torch.random.get_rng_state()
    for path, seed in ((one, 1), (same, 1), (other, 2)):
        combine_files(entries, path, "dare_linear", density=0.4, seed=seed)
    assert torch.equal(before, torch.random.get_rng_state())
    assert one.read_bytes() == same.read_bytes()
    first, second = load_file(one), load_file(other)
    assert not torch.equal(first["lora_unet_a.lora_down.weight"], second["lora_unet_a.lora_down.weight"])
    kept = [first[f"lora_unet_{name}.lora_up.weight"] != 0 for name in "ab"]
    assert not torch.equal(*kept), "layers of one shape"
    folder = tmp_path / "part"
    few = [Entry(file_of(folder / f"{i}.safetensors", i, names="b"), STRENGTHS[i]) for i in range(3)]
    combine_files(few, part, "dare_linear", density=0.4, seed=1)
    drawn = load_file(part)["lora_unet_b.lora_up.weight"] != 0
    assert torch.equal(drawn, kept[1]), "whatever else is in the files"


@pytest.mark.parametrize("how", ["dare_ties", "svd", "orthogonal", "cat"])
def test_a_combined_file_is_made_again_bit_for_bit(entries, net, tmp_path, how):
    for components in (None, {"unet": net}):
        out, density = tmp_path / "out.safetensors", density_of(how)
        options = {"components": components, "dtype": torch.float16, "replace": True}
        saved = combine_files(entries, out, how, density=density, seed=11, **options)
        with safe_open(saved.path, "pt") as opened:
            recipe = json.loads(opened.metadata()[HEADER])
        assert recipe["combination"] == {"how": how, "density": density, "seed": 11}
        assert [entry["file"] for entry in recipe["entries"]] == ["0.safetensors", "1.safetensors", "2.safetensors"]
        again = save_again(saved.path, tmp_path / "again.safetensors", components, [tmp_path], replace=True)
        assert again.path.read_bytes() == saved.path.read_bytes()


def test_limits_hold_as_when_a_stack_is_saved(entries, net, tmp_path):
    whole = deltas(combine_files(entries, tmp_path / "whole.safetensors", "ties", density=0.5).path, net)
    cut = combine_files(entries, tmp_path / "cut.safetensors", "ties", density=0.5, rank=2)
    for layer, (name, delta) in zip(cut.layers, whole.items(), strict=True):
        values = torch.linalg.svdvals(delta.flatten(1))
        assert (layer.name, layer.rank) == (name, 2)
        assert layer.error == pytest.approx(float(values[2:].norm() / values.norm()), rel=1e-5)
    small = combine_files(entries, tmp_path / "small.safetensors", "sum", size=9_000)
    assert small.path.stat().st_size <= 9_000
    near = combine_files(entries, tmp_path / "near.safetensors", "svd", error=0.2)
    assert near.error <= 0.2
    assert len({layer.rank for layer in near.layers}) > 1, "an error takes the place of one rank for all"
    with pytest.raises(FileError, match="there is a file of that name"):
        combine_files(entries, small.path)
    assert combine_files(entries, small.path, replace=True).error < BOUND


def test_the_largest_rank_of_the_files_is_the_rank_of_svd(tmp_path, net):
    files = [file_of(tmp_path / f"{rank}.safetensors", rank, rank) for rank in (3, 6)]
    saved = combine_files(files, tmp_path / "out.safetensors", "magnitude_prune_svd", density=0.5)
    assert inspect_file(saved.path).ranks == (6, 6)
    limited = combine_files([Entry(one, rank=2) for one in files], tmp_path / "two.safetensors", "svd")
    assert inspect_file(limited.path).ranks == (2, 2)


def test_files_that_spell_names_otherwise(files, net, tmp_path):
    model = {"unet": net}
    dotted = convert_file(files[1], tmp_path / "dotted.safetensors", spelling="diffusers", components=model).path
    wanted = combine_files(files[:2], tmp_path / "a.safetensors", "ties_svd", density=0.5)
    found = combine_files([files[0], dotted], tmp_path / "b.safetensors", "ties_svd", density=0.5)
    for name, delta in deltas(found.path, net).items():
        want = deltas(wanted.path, net)[name]
        assert (delta - want).norm() <= BOUND * want.norm()


def renamed(source, path, former, name):
    return save(path, {key.replace(former, name): one for key, one in load_file(source).items()})


def test_files_for_other_layers_are_refused_without_the_model(files, tmp_path):
    other = renamed(files[1], tmp_path / "other.safetensors", "lora_unet_", "lora_unet_other_")
    with pytest.raises(FileError, match=r"it has no layer of the .* that another file has, .*; give the model"):
        combine_files([files[0], other], tmp_path / "out.safetensors")
    wider = save(tmp_path / "wider.safetensors", pair("lora_unet_a", (40, 24), 4))
    with pytest.raises(FileError, match=r"its layer a has the shape \(40, 24\), and \(48, 24\) in another file"):
        combine_files([files[0], wider], tmp_path / "out.safetensors")


def test_a_linear_layer_that_a_file_has_as_a_convolution(files, net, tmp_path):
    tensors = {key: one if one.ndim != 2 else one[..., None, None] for key, one in load_file(files[1]).items()}
    other = save(tmp_path / "conv.safetensors", tensors)
    one = combine_files([files[0], other], tmp_path / "a.safetensors", "ties", density=0.5)
    two = combine_files(files[:2], tmp_path / "b.safetensors", "ties", density=0.5)
    found, wanted = load_file(one.path), load_file(two.path)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in found.items())


@pytest.mark.parametrize(("how", "instead"), [("linear", "svd"), ("ties", "ties_svd"), ("dare_ties", "dare_ties_svd")])
def test_rules_for_factors_take_one_rank(tmp_path, how, instead):
    files = [file_of(tmp_path / f"{rank}.safetensors", rank, rank) for rank in (3, 6)]
    text = rf"how='{how}' takes one rank, and the files have 3, 6; write how='{instead}'"
    with pytest.raises(StackError, match=text):
        combine_files(files, tmp_path / "out.safetensors", how, density=density_of(how))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.safetensors", "6.safetensors"]


@pytest.mark.parametrize(
    ("error", "options", "text"),
    [
        (StackError, {"how": "mean"}, "must be one of sum, cat, svd, linear, ties"),
        (StackError, {"how": "ties"}, "give it, as density=0.5"),
        (StackError, {"how": "ties", "density": 0.0}, "above 0 and at most 1"),
        (StackError, {"how": "ties", "density": math.nan}, "above 0 and at most 1"),
        (StackError, {"how": "sum", "density": 0.5}, "leave density out"),
        (ArgumentError, {"how": "ties", "density": "0.5"}, "density must be"),
        (ArgumentError, {"how": "dare_ties", "density": 0.5, "seed": -1}, "seed must be"),
        (ArgumentError, {"rank": 0}, "rank must be"),
        (FileError, {"how": "ties", "density": 0.5, "rank": 1, "error": 0.01}, "its error would be"),
    ],
)
def test_wrong_wishes_are_said_and_nothing_is_written(files, tmp_path, error, options, text):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=text):
        combine_files(files, tmp_path / "out.safetensors", **options)
    assert sorted(tmp_path.iterdir()) == before


def test_two_files_are_the_least(files, tmp_path):
    with pytest.raises(StackError, match="two files or more; convert_file changes one"):
        combine_files(files[:1], tmp_path / "out.safetensors")
    with pytest.raises(ArgumentError, match="files must be a list"):
        combine_files(files[0], tmp_path / "out.safetensors")


def test_a_spoilt_recipe_is_refused(files, tmp_path):
    saved = combine_files(files, tmp_path / "out.safetensors", "ties", density=0.5)
    with safe_open(saved.path, "pt") as opened:
        said = opened.metadata()
    for spoilt in ({"how": "mean"}, {"how": "ties"}, {"density": [1]}, {"other": 1}, 5):
        recipe = json.loads(said[HEADER]) | {"combination": spoilt}
        path = save(tmp_path / "spoilt.safetensors", load_file(saved.path), {**said, HEADER: json.dumps(recipe)})
        with pytest.raises(FileError, match="its header does not say how it was made"):
            save_again(path, tmp_path / "again.safetensors", None, [tmp_path])


def test_one_layer_is_in_memory_at_a_time(tmp_path, monkeypatch):
    """Merged changes of a layer are gone before those of the next one are made."""
    layers = 6
    tensors = [
        {key: one for i in range(layers) for key, one in pair(f"lora_unet_{i}", (32, 32), 4, seed=9 * n + i).items()}
        for n in range(2)
    ]
    files = [save(tmp_path / f"{n}.safetensors", one) for n, one in enumerate(tensors)]
    alive = list[weakref.ref[torch.Tensor]]()
    seen, merge = list[int](), merging.merge_tensors

    def watched(*args):
        gc.collect()
        seen.append(len([one for one in alive if one() is not None]))
        merged = merge(*args)
        alive.append(weakref.ref(merged))
        return merged

    monkeypatch.setattr(merging, "merge_tensors", watched)
    combine_files(files, tmp_path / "out.safetensors", "ties_svd", density=0.5)
    assert len(seen) == 3 * layers, "for its ranks, its numbers, and to compare"
    assert max(seen) <= 1


def test_the_command_combines_files(files, net, tmp_path, capsys):
    first, second = map(str, files[:2])
    out = tmp_path / "out.safetensors"
    options = ["--how", "dare_ties", "--density", "0.5", "--seed", "4"]
    assert main(["combine", str(out), f"{first}=0.8", f"{second}=0.5", *options]) == 0
    assert f"{out}: {out.stat().st_size:,} bytes, 3 layers of rank 4 to 4" in capsys.readouterr().out
    entries = [Entry(first, 0.8), Entry(second, 0.5)]
    other = combine_files(entries, tmp_path / "other.safetensors", "dare_ties", density=0.5, seed=4)
    found = load_file(out)
    assert all(torch.equal(one, found[key]) for key, one in load_file(other.path).items())
    again = tmp_path / "again.safetensors"
    assert main(["combine", str(again), str(tmp_path), "--again", str(out)]) == 0
    assert again.read_bytes() == out.read_bytes()
    assert main(["combine", str(again), first, second, "--how", "ties"]) == 1
    assert "give it, as density=0.5" in capsys.readouterr().err
