"""`python -m lib_lora inspect`, with and without a model on disk."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from lib_lora import ComponentError
from lib_lora.__main__ import _run, main
from lib_lora.files.file import AdapterFile
from lib_lora.inspection.renames import load_with_renames
from lib_lora.inspection.skeleton import model_skeleton
from lib_lora.naming.architectures.base import known_architectures
from tests.fakes.files import hollow, pair, save
from tests.fakes.models import kohya_lora, tiny_text_encoder, tiny_unet
from tests.families import families

FAMILIES = families()

PICTURE = "data:image/png;base64,AAAAAAAAAAAA"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a diffusers folder on disk."""
    folder = tmp_path_factory.mktemp("model")
    tiny_unet(0).save_pretrained(folder / "unet")
    tiny_text_encoder(0).save_pretrained(folder / "text_encoder")
    return folder


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    modules = {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}
    return kohya_lora(tmp_path_factory.mktemp("lora") / "style.safetensors", modules, rank=4, conv=True)


def test_text_without_a_model(lora, capsys):
    assert main(["inspect", str(lora)]) == 0
    out = capsys.readouterr().out
    for line in (
        "format        kohya",
        "architecture  sd1 (probably Stable Diffusion 1.x)",
        "kinds         lora x",
        "rank          4",
    ):
        assert line in out


def test_a_file_whose_every_up_is_zero_changes_nothing(tmp_path, capsys):
    tensors = pair("lora_unet_a", (12, 8), 2) | pair("lora_unet_b", (12, 8), 2)
    for key in [key for key in tensors if "lora_up" in key]:
        path = save(tmp_path / "a.safetensors", tensors)
        assert main(["inspect", str(path)]) == 0
        assert "effect" not in capsys.readouterr().out, "one of the two is not zero yet"
        tensors[key] = torch.zeros_like(tensors[key])
    path = save(tmp_path / "b.safetensors", tensors)
    assert main(["inspect", str(path)]) == 0
    assert "effect        none: `up` of every LoRA in it is zero" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes_nothing"] is True
    save(path, tensors | {"lora_unet_a.dora_scale": torch.ones(12, 1)})
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes_nothing"] is False, "DoRA's norms change the weight"


def test_json_against_a_model(lora, model, capsys):
    assert main(["inspect", str(lora), "--model", str(model), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["hit"] == data["layers"] > 90
    assert data["unused"] == {}


def test_every_family_has_its_score_on_a_file(lora, capsys):
    assert main(["families", str(lora)]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = {line.split()[1]: int(line[:3]) for line in lines if line[3] == " " and line[:3].strip()}
    assert list(scores) == sorted(scores, key=lambda name: -scores[name])
    assert set(scores) == {one.name for one in known_architectures()}
    assert max(scores, key=scores.__getitem__) == "sd1"
    own = lines[1 : 1 + next(i for i, line in enumerate(lines[1:]) if line[:3].strip())]
    assert sum(int(line.split()[0]) for line in own) == scores["sd1"]


def test_against_a_single_checkpoint(tmp_path, capsys):
    checkpoint = {
        "model.diffusion_model.time_embed.0.weight": torch.zeros(8, 4),
        "cond_stage_model.model.transformer.resblocks.0.attn.in_proj_weight": torch.zeros(12, 4),
        "cond_stage_model.model.transformer.resblocks.0.attn.out_proj.weight": torch.zeros(4, 4),
        "first_stage_model.decoder.conv_in.weight": torch.zeros(4, 4, 3, 3),
    }
    save(tmp_path / "model.safetensors", checkpoint)
    tensors = pair("lora_unet_time_embedding_linear_1", (8, 4), 2)
    tensors |= pair("lora_te_text_model_encoder_layers_0_self_attn_v_proj", (4, 4), 2)
    path = save(tmp_path / "a.safetensors", tensors)
    assert main(["inspect", str(path), "--model", str(tmp_path / "model.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hit"] == 2
    assert set(model_skeleton(tmp_path / "model.safetensors")) == {"unet", "text_encoder"}


TRANSFORMER = {"double_blocks.0.img_attn.qkv.weight": (3 * 3072, 3072)}
CLIP = {"text_model.encoder.layers.0.mlp.fc1.weight": (3072, 768)}
T5 = {"encoder.block.0.layer.0.SelfAttention.q.weight": (4096, 4096)}


def checkpoint(path, shapes, prefix=""):
    """Write a model into one file. Its weights take a byte each, and less where the disk can leave zeros out."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape)
        header[prefix + name] = {"dtype": "U8", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return path


@pytest.mark.parametrize(
    ("shapes", "prefix", "components"),
    [
        (TRANSFORMER, "", {"transformer"}),
        (TRANSFORMER, "model.diffusion_model.", {"transformer"}),
        (TRANSFORMER, "diffusion_model.", {"transformer"}),
        ({"blocks.0.mlp.layer1.weight": (8, 4)}, "net.", {"transformer"}),
        ({"layers.0.attention.qkv.weight": (8, 4)}, "", {"transformer"}),
        ({"input_blocks.0.0.weight": (8, 4, 3, 3)}, "model.diffusion_model.", {"unet"}),
        ({"down_blocks.0.resnets.0.conv1.weight": (8, 4, 3, 3)}, "", {"unet"}),
        (CLIP, "", {"text_encoder"}),
        (T5, "", {"text_encoder"}),
        ({"model.layers.0.self_attn.q_proj.weight": (8, 8)}, "", {"text_encoder"}),
        (CLIP, "conditioner.embedders.0.transformer.", {"text_encoder"}),
        (CLIP, "conditioner.embedders.1.model.", {"text_encoder_2"}),
    ],
)
def test_every_kind_of_checkpoint_is_known_by_its_keys(tmp_path, shapes, prefix, components):
    assert set(model_skeleton(checkpoint(tmp_path / "a.safetensors", shapes, prefix))) == components


@pytest.mark.parametrize(
    "key",
    [
        "first_stage_model.decoder.conv_in.weight",
        "decoder.up_blocks.0.resnets.0.conv1.weight",
        "transformer.blocks.0.attn.lora_A.weight",
        "lora_unet_blocks.0.weight",
        "emb_params.weight",
    ],
)
def test_what_is_no_model_is_not_taken_for_one(tmp_path, key):
    with pytest.raises(ComponentError, match="no unet, transformer or text encoder"):
        model_skeleton(checkpoint(tmp_path / "a.safetensors", {key: (8, 8)}))


def test_text_encoders_of_one_checkpoint_have_the_numbers_that_everybody_gives_them(tmp_path):
    shapes = {f"model.diffusion_model.{name}": shape for name, shape in TRANSFORMER.items()}
    shapes |= {f"text_encoders.t5xxl.transformer.{name}": shape for name, shape in T5.items()}
    shapes |= {f"text_encoders.clip_l.transformer.{name}": shape for name, shape in CLIP.items()}
    flux = model_skeleton(checkpoint(tmp_path / "flux.safetensors", shapes))
    assert list(flux) == ["transformer", "text_encoder_2", "text_encoder"]
    assert flux["text_encoder_2"].get_submodule("encoder.block.0.layer.0.SelfAttention.q").weight.shape == (4096, 4096)
    shapes["text_encoders.clip_g.transformer.text_model.encoder.layers.0.mlp.fc1.weight"] = (5120, 1280)
    sd3 = model_skeleton(checkpoint(tmp_path / "sd3.safetensors", shapes))
    widths = {name: sd3[name].get_submodule("text_model.encoder.layers.0.mlp.fc1").in_features
              for name in ("text_encoder", "text_encoder_2")}  # fmt: skip
    assert widths == {"text_encoder": 768, "text_encoder_2": 1280}
    assert "text_encoder_3" in sd3


def test_a_transformers_own_folder_is_a_model_too_in_pieces(tmp_path):
    folder = tmp_path / "transformer_2"
    folder.mkdir()
    checkpoint(folder / "diffusion_pytorch_model-00001-of-00002.safetensors", {"blocks.0.attn1.to_q.weight": (8, 8)})
    checkpoint(folder / "diffusion_pytorch_model-00002-of-00002.safetensors", {"blocks.1.attn1.to_q.weight": (8, 8)})
    for path in (folder, tmp_path):
        found = model_skeleton(path)
        assert set(found) == {"transformer_2"}
        assert {name for name, _ in found["transformer_2"].named_children()} == {"blocks"}
        assert len(found["transformer_2"].blocks._modules) == 2


def test_a_model_of_another_family_is_a_warning_above_all(tmp_path, capsys):
    model = checkpoint(tmp_path / "flux.safetensors", TRANSFORMER)
    tensors = pair("lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k", (640, 2048), 1)
    file = save(tmp_path / "a.safetensors", tensors, {"ss_sd_model_name": "pony.safetensors"})
    assert main(["inspect", str(file), "--model", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    several = "FLUX.1, Chroma, FLUX.2 or HunyuanVideo"  # the model has only what they all have
    assert lines[0] == f"WARNING: made for Stable Diffusion XL, the loaded model is {several}: 0 of 1 layers fit"
    for line in (
        "architecture  sdxl (Stable Diffusion XL)",
        "made from     pony.safetensors",
        f"model         flux ({several})",
        "layers        0 hit of 1",
        "changes       0 layers of the model",
    ):
        assert line in lines
    assert main(["inspect", str(file), "--model", str(model), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["family"]["name"], data["model"]["name"]) == ("sdxl", "flux")
    assert data["warning"] == lines[0].removeprefix("WARNING: ")
    assert set(data["causes"].values()) == {"no_module"}


@pytest.mark.usefixtures("names_of_every_family")
def test_a_fused_layer_of_the_file_changes_three_of_the_model(tmp_path, capsys):
    names = [f"transformer_blocks.0.attn.to_{part}.weight" for part in "qkv"]
    model = checkpoint(tmp_path / "flux.safetensors", dict.fromkeys(names, (3072, 3072)))
    tensors = pair("lora_unet_double_blocks_0_img_attn_qkv", (3 * 3072, 3072), 1)
    assert main(["inspect", str(save(tmp_path / "a.safetensors", tensors)), "--model", str(model)]) == 0
    out = capsys.readouterr().out
    assert "layers        1 hit of 1\nchanges       3 layers of the model" in out


def test_unused_keys_are_shown_with_their_reason(tmp_path, model, capsys):
    path = save(
        tmp_path / "a.safetensors", pair("lora_unet_nowhere", (8, 8), 2) | pair("lora_unet_conv_in", (9, 4, 3, 3), 2)
    )
    assert main(["inspect", str(path), "--model", str(model)]) == 0
    out = capsys.readouterr().out
    assert "layers        0 hit of 2" in out
    assert "  2 no module of that name in unet:\n    lora_unet_nowhere" in out
    assert "  2 made for a layer of 9 inputs or outputs, where the loaded model has 32; load the model that" in out
    assert "(unet.conv_in is 32 x 4 x 3 x 3 in the model, 9 x 4 x 3 x 3 in the file)" in out
    assert "rank          2" in out


def test_what_cannot_be_read_is_one_line_on_stderr(tmp_path, lora, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, text in (
        ([str(tmp_path / "none.safetensors")], "error: none.safetensors: there is no such file or folder"),
        ([str(lora), "--model", str(tmp_path / "empty")], "no unet, transformer or text encoder"),
    ):
        assert main(["inspect", *arguments]) == 1
        printed = capsys.readouterr()
        assert text in printed.err
        assert printed.out == ""


def test_a_folder_of_peft_is_one_lora_to_every_command(tmp_path, model, capsys):
    """Its configuration has the scale, and the folder the name."""
    layer = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    shape = tiny_unet(0).get_submodule(layer.removeprefix("base_model.model.")).weight.shape
    tensors = {f"{layer}.lora_A.weight": torch.ones(2, shape[1]), f"{layer}.lora_B.weight": torch.ones(shape[0], 2)}
    loras = tmp_path / "loras"
    for name in ("style", "other"):
        (loras / name).mkdir(parents=True)
        save(loras / name / "adapter_model.safetensors", tensors)
        (loras / name / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 6}')
    style, out = loras / "style", tmp_path / "out.safetensors"
    commands = {
        ("inspect", style): f"file          {style / 'adapter_model.safetensors'}",
        ("families", style): "sd1 ",
        ("doctor", style, loras / "other"): "style + other: reinforce, cosine +1.000",
        ("doctor", style): "scale       3",
        ("save", out, f"{style}=0.5", "--model", model): "out.safetensors",
        ("convert", style, tmp_path / "again.safetensors", "--model", model): "again.safetensors",
    }
    for command, said in commands.items():
        assert main(list(map(str, command))) == 0, capsys.readouterr().err
        assert said in capsys.readouterr().out, command
    saved = AdapterFile.open(out)
    up, down = (next(saved.tensor(key) for key in saved.infos if f"lora_{side}" in key) for side in ("up", "down"))
    torch.testing.assert_close(up @ down, torch.full(tuple(shape), 0.5 * 3 * 2.0))
    assert main(["doctor", str(loras)]) == 1
    assert "load a folder in it: other, style" in capsys.readouterr().err


def test_as_a_program(lora):
    done = subprocess.run([sys.executable, "-m", "lib_lora", "inspect", str(lora)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "kohya" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(lora, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does
    monkeypatch.setattr(sys, "argv", ["lib_lora", "inspect", str(lora)])
    with open(writer, "w") as out:  # noqa: PTH123  # of a descriptor
        monkeypatch.setattr(sys, "stdout", out)
        assert _run() == 0
        out.write("what Python writes when it ends")


def test_of_a_picture_in_the_metadata_only_its_size_is_printed(tmp_path, capsys):
    path = save(tmp_path / "a.safetensors", pair("lora_unet_a", (8, 8), 2), {"modelspec.thumbnail": PICTURE})
    assert main(["inspect", str(path)]) == 0
    assert "modelspec.thumbnail = data:image/png, 9 bytes\n" in capsys.readouterr().out + "\n"


def blocks_of_a_transformer(count=3, width=8):
    names = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.2")
    return {f"transformer_blocks.{i}.{name}.weight": (width, width) for i in range(count) for name in names}


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        # the whole path is one step deeper
        (lambda name: f"denoiser.core.{name}", ["leaving out denoiser.core would fit 15 of 15 layers"]),
        # a part of the path has another name: of three names that fit by shape, the nearest
        (
            lambda name: name.replace("attn.to_", "attention.w"),
            ["renaming transformer_blocks.{}.attention.wout to transformer_blocks.{}.attn.to_out"]
            + [
                f"renaming transformer_blocks.{{}}.attention.w{x} to transformer_blocks.{{}}.attn.to_{x}" for x in "kqv"
            ],
        ),
        # a number that all names have is a part of the name
        (
            lambda name: name.replace("to_out.0", "to_out"),
            ["renaming transformer_blocks.{}.attn.to_out to transformer_blocks.{}.attn.to_out.0 would fit 3 of 3"],
        ),
        # nothing is like it
        (lambda name: name.replace("transformer_blocks", "q").replace("attn.to_", "z").replace("ff.net", "z"), []),
    ],
    ids=["prefix", "parts", "numbers", "strange"],
)
def test_names_that_a_model_does_not_have_are_compared_with_those_it_has(spelled, expected, tmp_path, capsys):
    shapes = blocks_of_a_transformer()
    save(tmp_path / "model.safetensors", {name: torch.zeros(shape) for name, shape in shapes.items()})
    tensors = {}
    for name in shapes:
        layer = spelled(name.removesuffix(".weight"))
        tensors[f"transformer.{layer}.lora_A.weight"] = torch.zeros(2, 8)
        tensors[f"transformer.{layer}.lora_B.weight"] = torch.zeros(8, 2)
    path = save(tmp_path / "a.safetensors", tensors)
    assert main(["inspect", str(path), "--model", str(tmp_path / "model.safetensors")]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.removeprefix("rename").strip() for line in lines if line.startswith("rename")]
    assert len(found) == len(expected)
    assert all(one.startswith(wanted) for one, wanted in zip(sorted(found), sorted(expected), strict=True)), found


def test_a_guess_at_another_family_is_no_reason_to_propose_nothing(tmp_path):
    """Names that are wrong may be another family's."""
    family = FAMILIES["flux"]
    model = family.build(False)
    infos = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            infos[f"transformer.core.{name}.lora_A.weight"] = (4, layer.in_features), "BF16"
            infos[f"transformer.core.{name}.lora_B.weight"] = (layer.out_features, 4), "BF16"
    file = AdapterFile.open(hollow(tmp_path / "a.safetensors", infos))
    report, renames = load_with_renames(file, {family.component: model})
    assert report.family is not None
    assert report.model is not None
    assert report.family.differs(report.model)
    assert [(one.old, one.new, one.fit) for one in renames] == [("core", "", report.layers)]


def test_a_layer_that_acts_is_proposed_to_no_other(tmp_path, capsys):
    """Nor one of another shape."""
    layers = {"transformer_blocks.0.attn.to_q": 8, "transformer_blocks.0.attn.to_k": 4}
    save(tmp_path / "model.safetensors", {f"{name}.weight": torch.zeros(out, 8) for name, out in layers.items()})
    tensors = {}
    for name in ("to_q", "to_qq"):
        tensors |= pair(f"lora_unet_transformer_blocks_0_attn_{name}", (8, 8), 2)
    path = save(tmp_path / "a.safetensors", tensors)
    assert main(["inspect", str(path), "--model", str(tmp_path / "model.safetensors"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["hit"], data["layers"], data["renames"]) == (1, 2, [])


def test_a_report_of_a_fault_has_no_weights_and_nothing_private(lora, model, tmp_path, capsys):
    tensors = pair("lora_unet_down_blocks_0_attentions_0_proj_on", (32, 32), 4)
    metadata = {
        "ss_network_args": '{"conv_dim": "4", "saved": "/home/someone else/x", "base": "org/model"}',
        "modelspec.architecture": "stable-diffusion-v1/lora",
        "modelspec.thumbnail": "data:image/jpeg;base64,AAAA",
        "ss_dataset_dirs": '{"someone": 3}',
        "ss_sd_model_name": "C:\\models\\a.safetensors",
    }
    path, out = save(tmp_path / "secret name.safetensors", tensors, metadata), tmp_path / "report.json"
    assert main(["inspect", str(path), "--model", str(model), "--report", str(out)]) == 0
    text = out.read_text()
    for private in ("someone", "base64", "a.safetensors", "secret", "home", str(tmp_path)):
        assert private not in text
    data = json.loads(text)
    assert data["keys"]["lora_unet_down_blocks_0_attentions_0_proj_on.lora_down.weight"] == ["float32", [4, 32]]
    assert data["metadata"] == {
        "ss_network_args": '{"conv_dim": "4", "saved": "(path)", "base": "org/model"}',
        "modelspec.architecture": "stable-diffusion-v1/lora",
    }
    assert data["metadata_left_out"] == ["modelspec.thumbnail", "ss_dataset_dirs", "ss_sd_model_name"]
    assert (data["hit"], data["layers"]) == (0, 1)
    assert data["model"]["unet"]["conv_in"] == [32, 4, 3, 3]
    assert main(["inspect", str(path), "--report", str(tmp_path / "none" / "x.json")]) == 1
    assert "No such file" in capsys.readouterr().err
