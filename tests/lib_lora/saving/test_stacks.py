"""What of a stack goes into its file: strengths, blocks, ranks, moments and images; names, header and recipe."""

from __future__ import annotations

import json
import math
from itertools import product

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from lib_lora import (
    BlockWeights,
    Curve,
    Element,
    Engine,
    Entry,
    FileError,
    Halves,
    Moment,
    MomentError,
    PerImage,
    Reading,
    Region,
    Stack,
    StackError,
    Strength,
    attach,
    inspect_file,
    load_network,
    save_again,
    save_stack,
)
from lib_lora.naming.index import LayerIndex
from lib_lora.saving.changes import StackChanges
from lib_lora.saving.provenance import HEADER
from lib_lora.saving.spelling import KeyNames
from lib_lora.saving.stack_file import choices_of, save_constant
from tests.fakes import checkpoints
from tests.fakes.contract import run, worst
from tests.fakes.files import pair, save
from tests.fakes.fused import PARTS, QKV, Blocks, write
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import Model, make
from tests.fakes.models import kohya_lora, tiny_pipeline, tiny_text_encoder, tiny_unet, unet_inputs
from tests.families import families

SPELLINGS = ("kohya", "diffusers", "comfy")


@pytest.fixture(scope="module")
def parts():
    return {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}


@pytest.fixture(scope="module")
def files(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("loras")
    return [kohya_lora(folder / f"{seed}.safetensors", parts, seed=seed, conv=True) for seed in (1, 2)]


def output(parts):
    """Return what the UNet and the text encoder give."""
    tokens = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        return [parts["unet"](**unet_inputs(0))[0], parts["text_encoder"](tokens).last_hidden_state]


def check_file(parts, stack, path, wanted, bound=2e-5):
    """Check that a file alone does what was seen with a stack."""
    engine = Engine(parts)
    engine.activate(stack)
    seen = output(parts)
    assert all(worst(one, other) < bound for one, other in zip(seen, wanted, strict=True))
    engine.activate(Stack([Entry(path)]))
    assert all(worst(one, other) < bound for one, other in zip(output(parts), seen, strict=True))
    engine.close()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_strengths_blocks_and_ranks_are_in_the_file_in_every_spelling(parts, files, tmp_path, spelling):
    blocks = BlockWeights(None, (Element(("OUT",), (), 0.3), Element(("IN01",), ("attn1",), -0.5)))
    strength = Strength({"unet": 0.9, "text_encoder": 0.4}, sides={"mid": 0.2}, blocks=blocks)
    stack = Stack([Entry(files[0], strength, rank=3), Entry(files[1], {"unet": -0.6}, alpha=3.0)])
    engine = Engine(parts)
    engine.activate(stack)
    wanted = output(parts)
    saved = save_stack(engine, tmp_path / "saved.safetensors", spelling=spelling)
    engine.close()
    assert saved.error < 1e-6
    check_file(parts, stack, saved.path, wanted)
    with safe_open(saved.path, "pt") as opened:
        keys = list(opened.keys())
    down = "lora_A" if spelling == "diffusers" else "lora_down"
    alphas = [key for key in keys if key.endswith(".alpha")]
    assert len(alphas) == (0 if spelling == "diffusers" else len([key for key in keys if f".{down}." in key]))
    assert inspect_file(saved.path).scales == (("file",) if spelling == "diffusers" else ("tensors",)), "alpha is told"


def test_the_names_that_other_programs_look_for(parts, files, tmp_path):
    engine = Engine(parts)
    engine.activate(Stack([Entry(files[0])]))
    found = {}
    for spelling in SPELLINGS:
        path = save_stack(engine, tmp_path / f"{spelling}.safetensors", spelling=spelling).path
        found[spelling] = set(load_file(path))
    engine.close()
    query, encoder = "attentions.0.transformer_blocks.0.attn1.to_q", "text_model.encoder.layers.0.mlp.fc1"
    assert f"lora_unet_down_blocks_0_{query.replace('.', '_')}.lora_down.weight" in found["kohya"]
    assert f"lora_te_{encoder.replace('.', '_')}.alpha" in found["kohya"]
    assert f"unet.down_blocks.0.{query}.lora_A.weight" in found["diffusers"]
    assert f"text_encoder.{encoder}.lora_B.weight" in found["diffusers"]
    assert "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q.lora_up.weight" in found["comfy"]
    assert f"text_encoders.clip_l.transformer.{encoder}.lora_up.weight" in found["comfy"]
    assert set(load_file(files[0])) == found["kohya"], "as kohya's trainer writes it"
    whole = LayerIndex("unet", checkpoints.tiny_pipeline("sd1").unet)
    names = KeyNames("comfy", {"unet": whole})
    upsamplers = [names.prefix("unet", f"up_blocks.{i}.upsamplers.0.conv") for i in range(3)]
    places = ("2.1", "5.2", "8.2")
    wanted = [f"diffusion_model.output_blocks.{place}.conv" for place in places]
    assert upsamplers == wanted, "behind the attention where the block has one"


@pytest.mark.parametrize("spelling", ["kohya", "diffusers"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_diffusers_reads_the_file_as_it_was_meant(tmp_path, spelling):
    pytest.importorskip("peft")
    pipe = tiny_pipeline(0)
    parts = {"unet": pipe.unet, "text_encoder": pipe.text_encoder}
    path = kohya_lora(tmp_path / "a.safetensors", parts, seed=1)
    other = kohya_lora(tmp_path / "b.safetensors", {"unet": pipe.unet}, rank=2, seed=2)
    engine = Engine(parts)
    # diffusers passes over the alphas of kohya's keys where ranks differ, and warns
    part = Strength(blocks=BlockWeights(None, (Element(("OUT",), (), 0.0 if spelling == "diffusers" else 0.5),)))
    engine.activate(Stack([Entry(path, 0.7), Entry(other, part)]))
    wanted = output(parts)
    saved = save_stack(engine, tmp_path / "saved.safetensors", spelling=spelling)
    engine.close()
    pipe.load_lora_weights(str(saved.path), adapter_name="mine")
    assert all(worst(one, other) < 1e-4 for one, other in zip(output(parts), wanted, strict=True))


def test_a_moment_must_be_given_where_the_strength_depends_on_it(parts, files, tmp_path):
    falling = Strength(Curve([(0, 1.0), (10, 0.0)]))
    engine = Engine(parts)
    engine.activate(Stack([Entry(files[0], falling, name="falls")]))
    path = tmp_path / "saved.safetensors"
    with pytest.raises(StackError, match=r"falls: its strength differs from step to step; give the moment"):
        save_stack(engine, path)
    with pytest.raises(MomentError, match="falls: a strength depends on the step"):
        save_stack(engine, path, moment=Moment(sigma=1.0))
    saved = save_stack(engine, path, moment=Moment(step=5, steps=20))
    at_half = Stack([Entry(files[0], {"unet": 0.5, "text_encoder": 1.0})])
    engine.activate(at_half)
    wanted = output(parts)
    engine.close()
    check_file(parts, at_half, saved.path, wanted)


def test_an_image_and_a_prompt_must_be_given_where_they_differ(parts, files, tmp_path):
    path, engine = tmp_path / "saved.safetensors", Engine(parts)
    strength = PerImage([0.2, Halves(0.8, -0.3)])
    engine.activate(Stack([Entry(files[0], strength)]))
    with pytest.raises(StackError, match="the 2 images of the stack have strengths of their own; give one"):
        save_stack(engine, path)
    with pytest.raises(StackError, match="there is no image 2; the stack has 2"):
        save_stack(engine, path, image=2)
    with pytest.raises(StackError, match="positive and negative prompts have strengths of their own"):
        save_stack(engine, path, image=1)
    for negative, number in ((False, 0.8), (True, -0.3)):
        saved = save_stack(engine, path, image=1, negative=negative, replace=True)
        delta = load_network(saved.path, parts).delta_weight("unet", "conv_in")
        wanted = load_network(files[0], parts).delta_weight("unet", "conv_in") * number
        assert worst(delta, wanted) < 1e-6
    engine.close()


def test_a_region_is_refused(parts, files, tmp_path):
    engine = Engine(parts)
    engine.activate(Stack([Entry(files[0], Strength(region=Region.rectangle(0, 0, 0.5, 1)), name="left")]))
    with pytest.raises(StackError, match="left acts in a part of the picture only"):
        save_stack(engine, tmp_path / "saved.safetensors")
    engine.close()


def test_ranks_that_act_by_the_noise_need_the_moment(tmp_path):
    sample = next(one for one in SAMPLES if one.recipe == "tlora")
    base, _ = make("linear")
    path, _ = sample.write(tmp_path, (48, 24))
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(path)]))
    with pytest.raises(MomentError, match="acts otherwise at each step; give the moment"):
        save_stack(engine, tmp_path / "saved.safetensors")
    with pytest.raises(MomentError, match="acts otherwise"):
        save_stack(engine, tmp_path / "saved.safetensors", moment=Moment(step=0, steps=5))
    saved = [
        save_stack(engine, tmp_path / f"{time}.safetensors", moment=Moment(timestep=time)) for time in (999.0, 0.0)
    ]
    assert saved[0].layers[0].rank < saved[1].layers[0].rank
    engine.close()


def test_a_merged_stack_is_saved_from_the_weights_without_it(tmp_path):
    sample = next(one for one in SAMPLES if one.name == "dora by rows")
    base, _ = make("linear")
    path, _ = sample.write(tmp_path, (48, 24))
    engine, files = Engine({"unet": base}), []
    for mode in ("live", "merged"):
        engine.activate(Stack([Entry(path, 0.6)], mode=mode))
        files.append(save_stack(engine, tmp_path / f"{mode}.safetensors").path)
        assert engine.stack.mode == mode
    assert all(torch.equal(one, load_file(files[1])[key]) for key, one in load_file(files[0]).items())
    engine.close()


def test_a_part_of_a_fused_weight_and_all_of_it(tmp_path):
    """One LoRA on q alone, one on q, k and v together: parts by their names while they are apart, else the whole."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        model = Model(nn.MultiheadAttention(24, 4).requires_grad_(False)).double()
        x = torch.randn(5, 2, 24, dtype=torch.float64)
    shapes = {"q_proj": (24, 24), "v_proj": (24, 24), "in_proj": (72, 24)}
    files = {
        name: save(tmp_path / f"{name}.safetensors", pair(f"lora_unet_layer_{name}", shape, 3, seed=i, size=0.3))
        for i, (name, shape) in enumerate(shapes.items())
    }
    engine = Engine({"unet": model})
    for names, layers in ((("q_proj", "v_proj"), {"layer.q_proj", "layer.v_proj"}), (tuple(shapes), {"layer.in_proj"})):
        engine.activate(Stack([Entry(files[name]) for name in names]))
        wanted = run(model, x)
        saved = save_stack(engine, tmp_path / "saved.safetensors", replace=True)
        assert {layer.name for layer in saved.layers} == layers
        engine.activate(Stack([Entry(saved.path)]))
        assert worst(run(model, x), wanted) < 1e-6
    engine.close()


def test_the_header_has_what_users_know_of_the_sources(tmp_path):
    model = Model(nn.Linear(24, 48).requires_grad_(False))
    said = {
        "ss_base_model_version": "sdxl_base_v1-0",
        "modelspec.trigger_phrase": "ink drawing",
        "modelspec.license": "CC0",
        "ss_network_args": json.dumps({"use_timestep_mask": True}),
        "ss_network_dim": "4",
    }
    others = said | {"modelspec.trigger_phrase": "night", "modelspec.license": "MIT"}
    others["ss_tag_frequency"] = json.dumps({"5_night": {"dark": 3}})
    files = [
        save(tmp_path / f"{name}.safetensors", pair("lora_unet_layer", (48, 24), 4, seed=i), header)
        for i, (name, header) in enumerate((("a", said), ("b", others)))
    ]
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path) for path in files]))
    moment = Moment(step=0, steps=1, timestep=0.0)
    header = load_network(
        save_stack(engine, tmp_path / "both.safetensors", moment=moment).path, {"unet": model}
    ).file.metadata
    assert header["modelspec.trigger_phrase"] == "ink drawing, night"
    assert header["modelspec.license"] == "a.safetensors: CC0; b.safetensors: MIT"
    assert header["modelspec.merged_from"] == "a.safetensors, b.safetensors"
    assert header["ss_base_model_version"] == "sdxl_base_v1-0"
    assert "ss_network_args" not in header
    assert json.loads(header["ss_tag_frequency"]) == {"b: 5_night": {"dark": 3}}
    made = json.loads(header[HEADER])
    assert [entry["file"] for entry in made["entries"]] == ["a.safetensors", "b.safetensors"]
    engine.activate(Stack([Entry(files[1])]))
    header = load_network(
        save_stack(engine, tmp_path / "one.safetensors", moment=moment).path, {"unet": model}
    ).file.metadata
    assert (header["ss_tag_frequency"], header["modelspec.license"]) == (others["ss_tag_frequency"], "MIT")
    assert "ss_network_dim" not in header
    engine.close()


@pytest.mark.parametrize(
    "options", [{}, {"error": 0.2, "dtype": torch.float16, "spelling": "diffusers"}, {"size": 200_000}]
)
def test_a_saved_file_is_made_again_bit_for_bit(parts, files, tmp_path, options):
    blocks = BlockWeights(None, (Element(("OUT",), (), 0.3), Element(("IN01",), ("attn1",), -0.5, not_words=True)))
    falling = Strength({"unet": Curve([(0, 1 / 3), (10, 0.1)])}, sides={"in": 0.7}, blocks=blocks)
    stack = Stack([Entry(files[0], falling, rank=3), Entry(files[1], 0.1, scale=0.7)], reading=Reading(fragments=True))
    engine = Engine(parts)
    engine.activate(stack)
    saved = save_stack(engine, tmp_path / "saved.safetensors", moment=Moment(step=3, steps=20), **options)
    engine.close()
    again = save_again(saved.path, tmp_path / "again.safetensors", parts, [tmp_path, files[0].parent])
    assert again.path.read_bytes() == saved.path.read_bytes()


@pytest.mark.usefixtures("names_of_every_family")
def test_a_file_cannot_be_made_again_of_other_sources(parts, files, tmp_path):
    copy = tmp_path / files[0].name
    copy.write_bytes(files[0].read_bytes())
    engine = Engine(parts)
    engine.activate(Stack([Entry(copy)]))
    saved = save_stack(engine, tmp_path / "saved.safetensors").path
    engine.close()
    with pytest.raises(FileError, match=r"its source 1\.safetensors is missing: it is not in"):
        save_again(saved, tmp_path / "again.safetensors", parts, [tmp_path / "nowhere"])
    copy.write_bytes(files[1].read_bytes())
    with pytest.raises(FileError, match="is another one by now"):
        save_again(saved, tmp_path / "again.safetensors", parts, [tmp_path])
    with pytest.raises(FileError, match="its header does not say how it was made"):
        save_again(copy, tmp_path / "again.safetensors", parts, [tmp_path])
    for name, scenario in (("dora by rows", PARTS), ("dora by rows", QKV), ("lora", QKV)):
        folder = tmp_path / f"{name}, {scenario.name}"
        folder.mkdir()
        _with_another_model(folder, next(one for one in SAMPLES if one.name == name), scenario)


def _with_another_model(folder, sample, scenario):
    """Check that other weights are noticed where the file depends on them, in whatever dtype they are."""
    base, other = (Blocks(scenario.model, dtype=torch.float16) for _ in range(2))
    next(other.parameters()).mul_(2)
    path, out = write(folder, sample, scenario).path, folder / "again.safetensors"
    engine = Engine({"transformer": base})
    engine.activate(Stack([Entry(path, 0.5)]))
    saved = save_stack(engine, folder / "saved.safetensors")
    engine.close()
    again = save_again(saved.path, out, {"transformer": base.float()}, path.parent)
    assert again.path.read_bytes() == saved.path.read_bytes()
    if sample.name == "lora":
        assert "base_sha256" not in json.loads(load_network(out, {"transformer": base}).file.metadata[HEADER])
        save_again(saved.path, out, {"transformer": other}, path.parent, replace=True)
        return
    with pytest.raises(FileError, match="this model has other weights than the one that the former file was made with"):
        save_again(saved.path, out, {"transformer": other}, path.parent, replace=True)
    assert out.read_bytes() == saved.path.read_bytes(), "the file that was there stays"


def test_the_engine_of_a_pipeline_saves_what_it_applies(tmp_path):
    pipe = tiny_pipeline(0)
    path = kohya_lora(tmp_path / "a.safetensors", {"unet": pipe.unet, "text_encoder": pipe.text_encoder})
    engine = attach(pipe)
    engine.load(path, strength={"unet": {"down": 0.5}, "text_encoder": 0.0})
    saved = engine.save(tmp_path / "saved.safetensors", rank=2)
    assert {layer.component for layer in saved.layers} == {"unet"}
    assert math.isclose(saved.error, save_stack(engine, tmp_path / "b.safetensors", rank=2).error)
    lines = saved.summary(layers=True).splitlines()
    assert "layers of rank 2 to 2, error " in lines[0]
    assert len(lines) == len(saved.layers) + 2
    engine.close()


ENCODERS = ("anima", "auraflow", "hunyuan_video", "lumina2", "sd3", "wan", "z_image")
ENCODER_WRITERS = {
    "kohya": (
        *("kohya, the adapter", "kohya, the text encoder", "kohya text encoder", "onetrainer llama"),
        *("lora_te1-clip_l", "lora_te2-clip_l", "lora_te2-clip_g", "lora_te3-t5"),
    ),
    "comfy": (
        *(
            "ai-toolkit, the adapter",
            "comfy, the text encoder",
            "comfy llama",
            "comfy-clip_l",
            "comfy-clip_g",
            "comfy-t5",
        ),
        *(f"comfy extract of {one}.transformer" for one in ("pile_t5xl", "umt5xxl", "qwen3_4b")),
        "comfy extract of gemma2_2b.transformer.model",
    ),
    "diffusers": ("diffusers, the adapter",),
}
"""Who writes text encoders, and Anima's adapter, as each spelling does; see `tests/families`."""


def test_names_of_components(tmp_path):
    """Two text encoders have numbers in kohya's spelling, diffusers' transformers a prefix that ComfyUI looks for."""
    parts = {
        "transformer": Blocks({"transformer_blocks.0.attn.to_q": 24, "x_embedder": 24}),
        "transformer_2": Blocks({"transformer_blocks.0.attn.to_q": 24}),
        "text_encoder": Blocks({"text_model.encoder.layers.0.mlp.fc1": 24}),
        "text_encoder_2": Blocks({"encoder.block.0.layer.0.SelfAttention.q": 24}),
        "text_conditioner": Blocks({"blocks.0.mlp.0": 24}),
    }
    indexes = {name: LayerIndex(name, part) for name, part in parts.items()}
    names = {one: KeyNames(one, indexes) for one in SPELLINGS}
    query, gate = "transformer_blocks.0.attn.to_q", "encoder.block.0.layer.0.SelfAttention.q"
    assert names["kohya"].prefix("transformer", query) == "lora_transformer_transformer_blocks_0_attn_to_q"
    assert names["kohya"].prefix("transformer", "x_embedder") == "lora_unet_x_embedder"
    assert (
        names["kohya"].prefix("text_encoder", "text_model.encoder.layers.0.mlp.fc1").startswith("lora_te1_text_model_")
    )
    assert names["kohya"].prefix("text_encoder_2", gate) == f"lora_te3_{gate.replace('.', '_')}"
    assert names["comfy"].prefix("text_encoder_2", gate) == f"text_encoders.t5xxl.transformer.{gate}"
    assert names["diffusers"].prefix("transformer_2", query) == f"transformer_2.{query}"
    assert names["comfy"].prefix("text_conditioner", "blocks.0.mlp.0") == "diffusion_model.llm_adapter.blocks.0.mlp.0"
    assert names["diffusers"].prefix("transformer", "text_conditioner.blocks.0") == "text_conditioner.blocks.0"
    with pytest.raises(StackError, match="the spelling 'kohya' has no name for the component transformer_2"):
        names["kohya"].prefix("transformer_2", query)

    for family, (spelling, writers) in product(map(families().get, ENCODERS), ENCODER_WRITERS.items()):
        parts = {family.component: family.build(False), **{name: build() for name, build in family.encoders.items()}}
        indexes = {name: LayerIndex(name, part) for name, part in parts.items()}
        for writer in [family.writers[one] for one in writers if one in family.writers]:
            layers = [one.name for one in indexes[writer.component].targets if one.kind == "linear"]
            for layer in [one for one in layers if not writer.layers or any(part in one for part in writer.layers)]:
                wanted = writer.key(layer, "lora_down.weight").partition(".lora")[0]
                assert KeyNames(spelling, indexes).prefix(writer.component, layer) == wanted
    layer = "text_model.encoder.layers.0.mlp.fc1"
    known = Blocks({"model.layers.0.mlp.gate_proj": 24, f"transformer.{layer}": 24, "encoder.layers.1.mlp.fc1": 24})
    index = {"text_encoder": LayerIndex("text_encoder", known)}
    names = KeyNames("peft", index)
    assert names.prefix("text_encoder", f"transformer.{layer}") == f"base_model.model.{layer}", "of a host"
    assert names.prefix("text_encoder", "encoder.layers.1.mlp.fc1") == "base_model.model.encoder.layers.1.mlp.fc1"
    with pytest.raises(StackError, match="the spelling 'comfy' has no name for the component text_encoder"):
        KeyNames("comfy", index).prefix("text_encoder", "model.layers.0.mlp.gate_proj")


def test_weights_of_experts_are_refused(tmp_path):
    class Experts(nn.Module):
        """Two experts in one parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.randn(2, 12, 8), requires_grad=False)

    model = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": Experts()})})
    key, shape = "base_model.model.mlp.experts", (2 * 3, 8)
    tensors = {f"{key}.lora_A.weight": torch.randn(shape), f"{key}.lora_B.weight": torch.randn(12, 2 * 3)}
    path = save(tmp_path / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 3, "target_parameters": ["mlp.experts.gate_up_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"peft_version": "0.19.0"}))
    stack = Stack([Entry(path, Strength({"transformer": 1.0}))])
    changes = StackChanges(stack, {"transformer": model})
    assert [weight.target.kind for weight in changes.weights] == ["experts"]
    with pytest.raises(FileError, match="is of experts, which cannot be saved"):
        save_constant(stack, {"transformer": model}, tmp_path / "out.safetensors", choices_of({}))
