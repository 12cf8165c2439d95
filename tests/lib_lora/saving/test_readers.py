"""What the loaders of diffusers and PEFT make of saved files, beside an fp64 reference; and names in both trees."""

from __future__ import annotations

import copy
import json
from functools import partial
from itertools import permutations

import pytest
import torch
from diffusers.loaders import FluxLoraLoaderMixin, PeftAdapterMixin
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from lib_lora import FileError, inspect_file, load_network, save_again
from lib_lora.inspection.skeleton import skeleton
from lib_lora.saving import convert_file
from lib_lora.saving.spelling import PARAMETERS
from tests.fakes.files import pair, save
from tests.fakes.fused import Blocks
from tests.fakes.models import tiny_pipeline
from tests.families import families
from tests.lib_lora.test_families import ALPHA, RANK, factors, layers_of, write

pytest.importorskip("peft")
BOUND = 2e-6  # of float32
QUERY, CONV = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q", "down_blocks.0.resnets.0.conv1"
WHOLE, NORM = "mid_block.attentions.0.proj_out", "mid_block.attentions.0.norm"
KEYS = {QUERY: 4, CONV: 3}
FLUX = "transformer_blocks.0.attn.to_q"


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def pipe():
    return tiny_pipeline(0)


def parts_of(pipe):
    return {"unet": pipe.unet, "text_encoder": pipe.text_encoder}


def encoder_layer(pipe):
    return next(name for name, _ in pipe.text_encoder.named_modules() if name.endswith("self_attn.q_proj"))


def sources(pipe):
    """Return files of plain LoRA, of DoRA, of both, of LoHa in a DoRA, and with whole differences, by their names."""
    flat = {name: f"lora_unet_{name.replace('.', '_')}" for name in (QUERY, CONV, WHOLE, NORM)}
    shapes = {name: tuple(pipe.unet.get_submodule(name).weight.shape) for name in flat}
    own = encoder_layer(pipe)
    encoder = f"lora_te_text_model_{own.removeprefix('text_model.').replace('.', '_')}"
    width = tuple(pipe.text_encoder.get_submodule(own).weight.shape)
    plain = pair(encoder, width, 2, alpha=1.0)
    for name, rank in KEYS.items():
        plain |= pair(flat[name], shapes[name], rank, alpha=2.0, seed=rank)
    norms = {f"{flat[QUERY]}.dora_scale": random(shapes[QUERY][0], 1).abs() + 0.5}
    mixed = plain | norms
    norms |= {f"{flat[CONV]}.dora_scale": random(shapes[CONV][0], 1, 1, 1).abs() + 0.5}
    norms |= {f"{encoder}.dora_scale": random(width[0], 1).abs() + 0.5}
    loha = {key: one for key, one in (plain | norms).items() if not key.startswith(f"{flat[QUERY]}.lora")}
    for i in (1, 2):
        loha |= {f"{flat[QUERY]}.hada_w{i}_a": random(shapes[QUERY][0], 2, seed=i)}
        loha |= {f"{flat[QUERY]}.hada_w{i}_b": random(2, shapes[QUERY][1], seed=i + 2)}
    whole = {f"{flat[WHOLE]}.diff": random(*shapes[WHOLE]), f"{flat[WHOLE]}.diff_b": random(shapes[WHOLE][0])}
    whole |= {f"{flat[NORM]}.w_norm": random(*shapes[NORM])}
    columns = {f"{flat[QUERY]}.dora_scale": random(1, shapes[QUERY][1]).abs() + 0.5}
    return {
        "plain": plain,
        "dora": plain | norms,
        "dora beside lora": mixed,
        "dora of columns": plain | norms | columns,
        "dora of loha": loha,
        "whole": plain | whole,
    }


def check_layers(wanted, component, model):
    """Check that layers that PEFT wraps add what the file says; return the names of those that it has not."""
    lacking = []
    for one in wanted.bindings:
        if one.component != component:
            continue
        layer, name = model.get_submodule(one.target.name), one.target.name
        if not hasattr(layer, "lora_A"):
            lacking.append(name)
            continue
        base, delta = layer.base_layer, wanted.delta_weight(component, name, torch.float64)
        x = random(3, delta.shape[1], *(5,) * (delta.ndim - 2)).to(base.weight.dtype)
        if delta.ndim > 2:
            y = functional.conv2d(x.double(), delta, None, base.stride, base.padding)
        else:
            y = functional.linear(x.double(), delta)
        bias = one.adapter.change_of_bias(None if base.bias is None else base.bias.double())
        y = y if bias is None else y + bias.reshape(-1, *(1,) * (delta.ndim - 2))
        with torch.no_grad():
            assert (layer(x) - base(x) - y).norm() < BOUND * (y.norm() + base(x).norm()), name
    return lacking


@pytest.mark.filterwarnings("ignore")
def test_diffusers_and_peft_read_all_but_norms(pipe, tmp_path):
    from peft import PeftModel

    for kind, tensors in sources(pipe).items():
        source = save(tmp_path / f"{kind}.safetensors", tensors)
        wanted = load_network(source, parts_of(pipe))
        saved = convert_file(
            source, tmp_path / f"{kind}, saved.safetensors", spelling="diffusers", components=parts_of(pipe)
        )
        assert all("lora" in key for key in load_file(saved.path)), "else diffusers reads nothing of it"
        is_dora = any("magnitude" in key for key in load_file(saved.path))
        assert is_dora == (kind in ("dora", "dora of loha", "dora of columns")), kind  # the text encoder's of the last
        own = tiny_pipeline(0)
        own.load_lora_weights(str(saved.path), adapter_name="mine")
        found = [name for part in parts_of(own) for name in check_layers(wanted, part, getattr(own, part))]
        folder = convert_file(source, tmp_path / f"{kind}, folder", spelling="peft", components=parts_of(pipe))
        assert {path.name for path in folder.path.iterdir()} == {"unet", "text_encoder"}
        assert load_network(folder.path, parts_of(pipe)).report.components == {"unet", "text_encoder"}
        assert folder.nbytes == sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
        for part, model in parts_of(pipe).items():
            model = PeftModel.from_pretrained(copy.deepcopy(model), str(folder.path / part)).base_model.model
            found += check_layers(wanted, part, model)
        assert found == ([NORM] * 2 if kind == "whole" else []), kind
        few = convert_file(
            source, tmp_path / f"{kind}, few.safetensors", spelling="diffusers", components=parts_of(pipe), error=0.9
        )
        assert {key.partition(".lora_")[2] for key in load_file(few.path)} <= {"A.weight", "B.weight", "B.bias"}
        layers = [{k.partition(".lora_")[0] for k in load_file(few.path) if end in k} for end in ("_A", "_B", "bias")]
        assert layers[0] == layers[1] >= layers[2]
        notes = {
            "whole": [
                "reads no changes of norms and embeddings: 1 of 5 layers are left out; write the spelling kohya",
                "reads LoRA alone: 1 of 5 layers have no factors and get all ranks; give a rank, or write the spelling",
            ],
            "dora beside lora": ["reads LoRA alone: 1 of 3 layers"],
            "dora of columns": ["reads LoRA alone: 2 of 3 layers"],
        }.get(kind, [])
        for made, reader in ((saved, "diffusers"), (folder, "PEFT")):
            assert len(made.notes) == len(notes), made.notes
            assert all(note.startswith(f"{reader} {text}") for note, text in zip(made.notes, notes, strict=True))


def test_what_diffusers_and_peft_cannot_read_at_all_is_refused(pipe, tmp_path):
    key = f"lora_unet_{NORM.replace('.', '_')}.w_norm"
    source = save(tmp_path / "norm.safetensors", {key: random(*pipe.unet.get_submodule(NORM).weight.shape)})
    for spelling, reader, out in (("diffusers", "diffusers", "a.safetensors"), ("peft", "PEFT", "a")):
        text = f"it was not written: {reader} reads no changes of norms and embeddings: 1 of 1 layers"
        with pytest.raises(FileError, match=text):
            convert_file(source, tmp_path / out, spelling=spelling, components={"unet": pipe.unet})
    assert list(tmp_path.iterdir()) == [source]
    with pytest.raises(FileError, match="there is something of that name, and a folder is never replaced"):
        convert_file(source, tmp_path, spelling="peft", components={"unet": pipe.unet}, replace=True)


def test_a_folder_for_peft_of_one_component(pipe, tmp_path):
    """Ranks and alphas by patterns, also where the name of one layer ends that of another; made again bit for bit."""
    model = nn.ModuleDict({"proj": nn.Linear(8, 8), "block": nn.ModuleDict({"proj": nn.Linear(8, 8)})})
    tensors = {f"unet.{key}": one for key, one in peft_pair("proj", 8, 8, 2).items()}
    for name, rank in (("block.proj", 4), ("block.other", 4)):
        tensors |= {f"unet.{key}": one for key, one in peft_pair(name, 8, 8, rank, seed=rank).items()}
    model["block"]["other"] = nn.Linear(8, 8)
    model = model.requires_grad_(False)
    source = save(tmp_path / "source.safetensors", tensors)
    saved = convert_file(source, tmp_path / "folder", spelling="peft", components={"unet": model})
    config = json.loads((saved.path / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"]) == (4, {"^proj": 2}, {"^proj": 2})
    assert {"base_model.model.proj.lora_A.weight"} < load_file(saved.path / "adapter_model.safetensors").keys()
    report = inspect_file(saved.path / "adapter_model.safetensors")
    assert (report.ranks, report.scales) == ((2, 4), ("file",))
    again = save_again(saved.path / "adapter_model.safetensors", tmp_path / "again", {"unet": model}, [tmp_path])
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (again.path / name).read_bytes() == (saved.path / name).read_bytes()
    from peft import PeftModel, load_peft_weights

    assert (
        load_peft_weights(str(saved.path), "cpu").keys() == load_file(saved.path / "adapter_model.safetensors").keys()
    )
    own = PeftModel.from_pretrained(copy.deepcopy(model), str(saved.path)).base_model.model
    assert check_layers(load_network(source, {"unet": model}), "unet", own) == []


def peft_pair(name, out, inside, rank, seed=0):
    down, up = random(rank, inside, seed=seed), random(out, rank, seed=seed + 50)
    return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}


PROGRAMS = {
    "kohya": ("musubi", "kohya, ldm", "kohya", "onetrainer kohya", "comfy flattened", "comfy"),
    "comfy": ("comfy", "comfy and ai-toolkit", "onetrainer comfy", "ai-toolkit and diffusion-pipe", "ai-toolkit"),
    "diffusers": (
        "diffusers",
        "diffusers and onetrainer",
        "diffusers and simpletuner",
        "onetrainer in diffusers' format",
    ),
}
"""Who writes the names that each spelling has, the first of a family; see `tests/families`."""
PREFIXES = {
    "kohya": ("lora_unet_", "lora_prior_unet_"),
    "comfy": "diffusion_model.",
    "diffusers": ("unet.", "transformer.", "prior."),
}
FEW = ("ace_step", "hunyuan_image", "hunyuan_video15", "stable_cascade", "wan", "z_image")


def writer_of(family, spelling):
    """Return the program that writes a family's layers as a spelling does; None without one."""
    known = [family.writers[one] for one in PROGRAMS[spelling] if one in family.writers]
    return next((one for one in known if one.key("", "lora_down.weight").startswith(PREFIXES[spelling])), None)


@torch.no_grad()
def test_each_family_has_the_names_and_the_rows_of_each_program(tmp_path, pytestconfig):
    """From the file of each program to that of another, by a model of the one tree and of the other."""
    compared, every = set(), families()
    for name in every if pytestconfig.getoption("--all") else FEW:
        family = every[name]
        models = [family.build(False)] + ([] if family.native is None else [skeleton(family.native())])
        known = {spelling: writer for spelling in PROGRAMS if (writer := writer_of(family, spelling))}
        for number, (source, spelling) in enumerate(permutations(known, 2)):
            folder = tmp_path / f"{name} {number}"
            folder.mkdir()
            path = write(family, known[source], folder)
            model = {family.component: models[number % len(models)]}
            saved = convert_file(path, folder / "saved.safetensors", spelling=spelling, components=model)
            assert check_rows(family, known[source], known[spelling], saved.path, spelling), (name, source, spelling)
            compared.add((name, spelling))
    assert {(name, spelling) for name in FEW for spelling in ("kohya", "diffusers")} <= compared


def check_rows(family, source, writer, path, spelling):
    """Check the layers of a file that another program writes, too; return how many."""
    made, tensors, rows = factors(family.name, ""), load_file(path), layers_of(family, source)
    scale = 1.0 if source.key(next(iter(rows)), "alpha") is None else ALPHA / RANK
    downs = {native: own[0][0] for own in rows.values() for native, *_ in own}
    checked = 0
    for layer, own in layers_of(family, writer).items():
        if not all(native in downs for native, *_ in own):
            continue
        prefix = writer.key(layer, "lora_down.weight").partition(".lora")[0]
        down, up = (tensors[f"{prefix}.{PARAMETERS[spelling][one]}"].flatten(1).double() for one in ("down", "up"))
        x = random(down.shape[1]).double()
        parts = [(made[one][1][low:high], made[downs[one]][0]) for one, low, high in own]
        wanted = torch.cat([up.flatten(1).double() @ (down.flatten(1).double() @ x) for up, down in parts]) * scale
        assert (up @ (down @ x) - wanted).norm() < BOUND * wanted.norm(), layer
        checked += 1
    return checked


@torch.no_grad()
def test_flux_in_the_tree_of_each_reader(tmp_path):
    """Fused layers have block-diagonal factors of their parts, and parts rows; halves of a modulation change places."""
    family = families()["flux"]
    own, other = family.build(False), skeleton(family.native())
    names = (FLUX, *[f"transformer_blocks.0.attn.to_{one}" for one in "kv"], "norm_out.linear")
    shapes = {name: (own.get_submodule(name).out_features, own.get_submodule(name).in_features) for name in names}
    apart = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        apart |= peft_pair(f"transformer.{name}", *shape, 2, seed=seed)
    source = save(tmp_path / "apart.safetensors", apart)
    deltas = [product(apart, f"transformer.{name}") for name in names]
    scale, shift = deltas[3].chunk(2)
    wanted = {
        "double_blocks.0.img_attn.qkv": torch.cat(deltas[:3]),
        "final_layer.adaLN_modulation.1": torch.cat([shift, scale]),
    }
    for spelling, prefix in (("kohya", "lora_unet_"), ("comfy", "diffusion_model.")):
        made = convert_file(
            source, tmp_path / f"{spelling}.safetensors", spelling=spelling, components={"transformer": own}
        )
        tensors = load_file(made.path)
        flat = {name: prefix + (name.replace(".", "_") if spelling == "kohya" else name) for name in wanted}
        assert {key.split(".lora_")[0] for key in tensors if "alpha" not in key} == set(flat.values())
        for name, delta in wanted.items():
            found = product(tensors, flat[name], "lora_down", "lora_up")
            assert (found - delta).norm() < BOUND * delta.norm()
            assert tensors[f"{flat[name]}.alpha"] == len(tensors[f"{flat[name]}.lora_down.weight"])
        back = convert_file(
            made.path,
            tmp_path / f"{spelling}, back.safetensors",
            spelling="diffusers",
            components={"transformer": other},
        )
        check_flux(back, dict(zip(names, deltas, strict=True)))
        again = convert_file(
            back.path, tmp_path / f"{spelling}, again.safetensors", spelling=spelling, components={"transformer": own}
        )
        ranks = [[layer.rank for layer in one.layers] for one in (made, back, again)]
        assert ranks == [[2, 6], [6, 6, 6, 2], [2, 6]], "split layers have the first factor in common"
    few = {
        f"transformer.single_transformer_blocks.0.{name}": out
        for name, out in (("attn.to_q", 3072), ("proj_mlp", 12288))
    }
    tensors = [peft_pair(name, out, 3072, 1) for name, out in few.items()]
    part = save(tmp_path / "part.safetensors", tensors[0] | tensors[1])
    with pytest.raises(FileError, match=r"is one layer with others in such a file, .*; give the model"):
        convert_file(part, tmp_path / "alone.safetensors", spelling="comfy")


def test_dora_and_whole_differences_of_parts_are_those_of_the_fused_layer(tmp_path):
    parts = [f"transformer_blocks.0.attn.to_{one}" for one in "qkv"]
    single = [f"single_transformer_blocks.0.{one}" for one in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    model, dora, whole = Blocks(dict.fromkeys((*parts, *single), 6), partial(nn.Linear, 3072), torch.float32), {}, {}
    for seed, name in enumerate((*parts, *single)):
        dora |= peft_pair(f"transformer.{name}", 6, 3072, 2, seed=seed)
        whole |= peft_pair(f"transformer.{name}", 6, 3072, 2, seed=seed)
        dora |= {f"transformer.{name}.lora_magnitude_vector": random(6, seed=seed).abs() + 0.5}
    whole = {key: one for key, one in whole.items() if not key.startswith(f"transformer.{parts[1]}.")}
    whole |= {f"transformer.{parts[1]}.diff": random(6, 3072), f"transformer.{parts[1]}.diff_b": random(6)}
    for tensors in (dora, whole):
        source = save(tmp_path / "source.safetensors", tensors)
        saved = convert_file(
            source, tmp_path / "saved.safetensors", components={"transformer": model}, dtype=torch.float32, replace=True
        )
        found = load_file(saved.path)
        for fused, names in (("double_blocks_0_img_attn_qkv", parts), ("single_blocks_0_linear1", single)):
            key, wanted, base = f"lora_unet_{fused}", list[torch.Tensor](), list[torch.Tensor]()
            for name in names:
                weight, diff = model.get_submodule(name).weight.double(), tensors.get(f"transformer.{name}.diff")
                delta = product(tensors, f"transformer.{name}") if diff is None else diff.double()
                norms = tensors.get(f"transformer.{name}.lora_magnitude_vector")
                if norms is not None:
                    changed = weight + delta
                    delta = changed * (norms.double() / changed.norm(dim=1)).unsqueeze(1) - weight
                wanted.append(delta)
                base.append(weight)
            wanted, base = torch.cat(wanted), torch.cat(base)
            got = found[f"{key}.diff"] if f"{key}.diff" in found else base + product(found, key, "lora_down", "lora_up")
            if tensors is dora:
                got = got * (found[f"{key}.dora_scale"].double() / got.norm(dim=1, keepdim=True))
            got = got.double() if f"{key}.diff" in found else got - base
            assert (got - wanted).norm() < BOUND * wanted.norm()
    expected = torch.cat([torch.zeros(6), whole[f"transformer.{parts[1]}.diff_b"], torch.zeros(6)])
    assert torch.equal(found["lora_unet_double_blocks_0_img_attn_qkv.diff_b"], expected)


def product(tensors, name, down="lora_A", up="lora_B"):
    return tensors[f"{name}.{up}.weight"].double() @ tensors[f"{name}.{down}.weight"].double()


class FewLayers(Blocks, PeftAdapterMixin):
    """Some layers of FLUX, into which diffusers loads LoRA."""


def check_flux(saved, wanted):
    """Check what diffusers' loader makes of a file."""
    state, metadata = FluxLoraLoaderMixin.lora_state_dict(str(saved.path), return_lora_metadata=True)
    inside = {name: delta.shape[1] for name, delta in wanted.items()}
    assert len(set(inside.values())) == 1
    make = partial(nn.Linear, next(iter(inside.values())))
    model = FewLayers({name: len(delta) for name, delta in wanted.items()}, make, torch.float32)
    model.load_lora_adapter(state, metadata=metadata, adapter_name="mine")
    for name, delta in wanted.items():
        found = model.get_submodule(name).get_delta_weight("mine").double()
        assert (found - delta).norm() < BOUND * delta.norm(), name
