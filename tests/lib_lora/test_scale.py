"""Alpha and rank: where they stand, which of several statements counts, and what is said of a guess."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, FileError, Network, Reading, Stack, load_network
from lib_lora.errors import StackError
from tests.fakes.files import pair, save
from tests.fakes.layers import Model

RANK, SHAPE = 4, (12, 8)
NAME = "base_model.model.layer"


def peft(prefix: str = NAME, rank: int = RANK, shape: tuple[int, ...] = SHAPE) -> dict[str, Tensor]:
    down, up = pair("x", shape, rank, size=0.5).values()
    return {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}


def model(layer: nn.Module | None = None) -> dict[str, nn.Module]:
    return {"unet": Model(layer or nn.Linear(SHAPE[1], SHAPE[0]))}


def scale_of(network: Network, product: Tensor, component: str = "unet") -> float:
    """Return the factor of a product in the change of the layer, which is nothing else."""
    delta, product = network.delta_weight(component, "layer", torch.float64), product.double().reshape(-1)
    factor = (delta.reshape(-1) @ product / product.square().sum()).item()
    assert (delta.reshape(-1) - factor * product).abs().max() < 1e-6 * delta.abs().max()
    return factor


def scale(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None, **reading: float) -> float:
    network = load_network(save(path, tensors, metadata), model(), reading=Reading(**reading))
    down, up = list(tensors.values())[:2]
    return scale_of(network, up.double() @ down.double())


HEADERS = {
    "LightX2V": ({"alpha": "8", "rank": "4"}, 2.0),
    "with its component": ({"transformer.lora_alpha": "8", "transformer.r": "4"}, 2.0),
    "of a component that the keys do not name": ({"unet.lora_alpha": "8", "unet.r": "4"}, 2.0),
    "of another state": ({"lora_alpha": "8", "lora_rank": "64"}, 1.0),
    "no number": ({"alpha": "half"}, 1.0),
    "nothing": ({"alpha": "None"}, 1.0),
    "rs-LoRA": ({"network_alpha": "8", "ss_scaling_strategy": "alpha_over_sqrt_rank"}, 4.0),
    "rs-LoRA in the arguments": ({"network_alpha": "8", "ss_network_args": '{"rs_lora": "True"}'}, 4.0),
    "the first of two": ({"lora_alpha": "8", "ss_network_alpha": "4"}, 2.0),
    "kohya's own alone": ({"ss_network_alpha": "8", "ss_network_dim": "4"}, 2.0),
    "kohya's own of another state": ({"ss_network_alpha": "8", "ss_network_dim": "64"}, 1.0),
    "folded by musubi-tuner": ({"ss_network_alpha": "8", "ss_network_module": "networks.lora_wan"}, 1.0),
    "JSON of a script": ({"peft_config": json.dumps({"r": 4, "lora_alpha": 8, "alpha_pattern": {"layer": 2}})}, 0.5),
    "beside a text that is empty": ({"adapter_config": "", "peft_config": json.dumps({"r": 4, "lora_alpha": 8})}, 2.0),
}
UNDOUBTED = {"LightX2V", "with its component", "of a component that the keys do not name", "JSON of a script"}
UNDOUBTED |= {"rs-LoRA", "rs-LoRA in the arguments", "kohya's own alone", "beside a text that is empty"}


@pytest.mark.parametrize("case", HEADERS)
def test_the_header_tells_the_scale(tmp_path, case):
    metadata, want = HEADERS[case]
    path = tmp_path / "a.safetensors"
    assert scale(path, peft(), metadata) == pytest.approx(want)
    report = load_network(path, model()).report
    assert bool(report.notes) is (case not in UNDOUBTED), report.notes
    assert report.scales == (("file",) if want != 1 else ("guess",))
    assert scale(path, {**peft(), f"{NAME}.alpha": torch.tensor(3.0)}, metadata) == pytest.approx(0.75), "tensors first"
    assert not load_network(path, model()).report.notes


def test_a_convolution_has_the_alpha_of_convolutions(tmp_path):
    tensors = pair("lora_unet_layer", (8, 8, 3, 3), 2)
    said = {"ss_network_alpha": "4", "ss_network_dim": "2", "ss_network_args": '{"conv_dim": "2", "conv_alpha": "6"}'}
    network = load_network(save(tmp_path / "a.safetensors", tensors, said), model(nn.Conv2d(8, 8, 3)))
    down, up = tensors.values()
    assert scale_of(network, up.flatten(1) @ down.flatten(1)) == pytest.approx(3.0)


@pytest.mark.parametrize("alphas", [".*lay.*=6,.*other=1", '{"lora_unet_lay.*": 6}'], ids=["pairs", "JSON"])
def test_a_layer_has_the_alpha_of_its_name(tmp_path, alphas):
    tensors = pair("lora_unet_layer", (8, 8), 2)
    said = {"ss_network_alpha": "4", "ss_network_dim": "2", "network_reg_alphas": alphas}
    network = load_network(save(tmp_path / "a.safetensors", tensors, said), model(nn.Linear(8, 8)))
    down, up = tensors.values()
    assert scale_of(network, up @ down) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("component", "prefix", "others"),
    [
        ("text_encoder", "lora_te1", "lora_te2"),
        ("text_encoder", "lora_te", "lora_tee"),
        ("text_encoder_2", "lora_te2", "lora_te1"),
    ],
)
def test_a_layer_of_a_text_encoder_has_the_alpha_of_its_own_encoder(tmp_path, component, prefix, others):
    tensors = pair("lora_te2_layer" if component == "text_encoder_2" else "lora_te1_layer", (8, 8), 2)
    alphas = f"{others}_lay.*=1,{prefix}_lay.*=6"
    said = {"ss_network_alpha": "4", "ss_network_dim": "2", "network_reg_alphas": alphas}
    path = save(tmp_path / "a.safetensors", tensors, said)
    network = load_network(path, {name: Model(nn.Linear(8, 8)) for name in ("unet", "text_encoder", "text_encoder_2")})
    down, up = tensors.values()
    assert scale_of(network, up @ down, component) == pytest.approx(3.0)


NEIGHBOURS = {
    "of another scale": {"r": RANK, "lora_alpha": 64},
    "of PiSSA": {"peft_type": "LORA", "r": RANK, "lora_alpha": 64, "init_lora_weights": "pissa"},
    "of LoHa": {"peft_type": "LOHA", "r": RANK, "alpha": 64},
    "broken": None,
}


@pytest.mark.parametrize("case", NEIGHBOURS)
@pytest.mark.parametrize("name", ["style", "adapter_model_v2", "pytorch_lora_weights"])
def test_a_neighbours_configuration_changes_nothing(tmp_path, case, name):
    config = NEIGHBOURS[case]
    (tmp_path / "adapter_config.json").write_text("{" if config is None else json.dumps(config))
    (tmp_path / "adapter_model.safetensors").touch()
    assert scale(tmp_path / f"{name}.safetensors", peft()) == pytest.approx(1.0)
    assert any("belongs to a file called adapter_model" in one for one in load_report(tmp_path, name).notes)
    kohya = dict(zip(pair("lora_unet_layer", SHAPE, RANK), peft().values(), strict=True))
    assert scale(tmp_path / f"{name}.safetensors", kohya) == pytest.approx(1.0)
    assert not load_report(tmp_path, name).notes


def load_report(folder: Path, name: str):
    return load_network(folder / f"{name}.safetensors", model()).report


DISAGREES = {
    "rank": ({"r": 16, "lora_alpha": 64}, "it is for rank 16, and the file has 4"),
    "layers": ({"r": RANK, "lora_alpha": 64, "target_modules": ["q_proj"]}, "it is for other layers, such as q_proj"),
    "kind": ({"peft_type": "LOHA", "r": RANK, "alpha": 64}, "it is for LOHA, and the file has lora"),
    "not read": ("[", "cannot be read as JSON"),
}


@pytest.mark.parametrize("case", DISAGREES)
def test_a_configuration_that_disagrees_with_the_file_is_not_its_own(tmp_path, case):
    config, reason = DISAGREES[case]
    (tmp_path / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert scale(tmp_path / "adapter_model.safetensors", peft()) == pytest.approx(1.0)
    assert any(reason in one for one in load_report(tmp_path, "adapter_model").notes)


def test_the_users_word_beats_all(tmp_path):
    path, tensors = tmp_path / "a.safetensors", {**peft(), f"{NAME}.alpha": torch.tensor(3.0)}
    assert scale(path, tensors, {"alpha": "5"}, alpha=8.0) == pytest.approx(2.0)
    assert scale(path, tensors, {"alpha": "5"}, alpha=8.0, scale=0.3) == pytest.approx(0.3)
    assert load_network(path, model(), reading=Reading(alpha=8.0)).report.scales == ("user",)
    path.with_suffix(".json").write_text(json.dumps({"description": "", "remora": {"alpha": 16}}))
    assert scale(path, tensors) == pytest.approx(4.0)
    assert scale(path, tensors, scale=0.5) == pytest.approx(0.5), "an argument beats the sidecar"
    for alpha in ("much", 10**400):
        path.with_suffix(".json").write_text(json.dumps({"remora": {"alpha": alpha}}))
        with pytest.raises(FileError, match="its alpha must be a finite number"):
            load_network(path, model())


def test_entries_of_one_file_have_scales_of_their_own(tmp_path):
    unet = model()
    path, x = save(tmp_path / "a.safetensors", peft()), torch.randn(2, SHAPE[1])
    down, up = peft().values()
    with torch.no_grad():
        base = unet["unet"](x)
        engine = Engine(unet)
        engine.activate(Stack([Entry(path, 0.5, alpha=8), Entry(path, scale=-0.25)]))
        got = unet["unet"](x) - base
    assert torch.allclose(got, x @ (up @ down).T * (0.5 * 8 / RANK - 0.25), atol=1e-5)
    for wrong in (math.nan, "1", True, math.inf):
        with pytest.raises(StackError, match=r"alpha must be a finite number"):
            Entry(path, alpha=wrong)


def test_a_scale_for_a_kind_without_one_is_said_to_do_nothing(tmp_path):
    path = save(tmp_path / "a.safetensors", {"lora_unet_layer.diff": torch.ones(SHAPE)})
    assert "has no effect" in load_network(path, model(), reading=Reading(alpha=2.0)).report.notes[0]


@pytest.mark.parametrize(
    ("alpha", "metadata", "extra", "want"),
    [
        (32.0, {"ss_network_module": "lycoris.kohya", "ss_network_dim": "64", "ss_network_alpha": "1"}, {}, 1.0),
        (1.0, {"ss_network_module": "lycoris.kohya", "ss_network_dim": "32", "ss_network_alpha": "1"}, {}, 1 / 32),
        (9.0, {}, {"lokr_factor": torch.tensor(4)}, 3.0),
        (1.0, {"lora_reg_dims": "lora_unet_lay.*=16", "ss_network_dim": "32"}, {}, 1 / 16),
        (1.0, {}, {}, 1.0),
    ],
    ids=["LyCORIS with a preset", "as given", "blissful-tuner", "by layer", "unknown"],
)
def test_the_scale_of_two_full_matrices(tmp_path, alpha, metadata, extra, want):
    one, two = torch.rand(4, 4), torch.rand(3, 2)
    own = {"lokr_w1": one, "lokr_w2": two, "alpha": torch.tensor(alpha)}
    keys = {f"lora_unet_layer.{param}": value for param, value in own.items()}
    network = load_network(save(tmp_path / "a.safetensors", keys | extra, metadata), model())
    assert scale_of(network, torch.kron(one, two)) == pytest.approx(want)
    assert bool(network.report.notes) is (not metadata and not extra)
    assert not network.report.unused
