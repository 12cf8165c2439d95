"""Measures of whole files: blocks, components, ranks, and numbers that a training or a program has spoiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lib_lora import FileError, NoMatchError
from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import FileMeasures, measure
from lib_lora.inspection.skeleton import mapped_model
from lib_lora.inspection.training import trained
from tests.fakes.files import pair, save

ROOT = Path(__file__).resolve().parents[3]
MODEL, LORAS = ROOT / "demo" / "remora-shapes", ROOT / "demo" / "loras"
ATTENTION = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"


def measured(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> FileMeasures:
    return measure(layers_of(save(path, tensors, metadata)))


def test_shares_of_blocks_and_components(tmp_path: Path) -> None:
    names = {
        "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k": "IN04",
        ATTENTION: "M00",
        "lora_unet_output_blocks_11_1_proj_in": "OUT11",
        "lora_te_text_model_encoder_layers_10_mlp_fc1": "text_encoder",
    }
    tensors = {}
    for i, name in enumerate(names):
        tensors |= pair(name, (12, 8), 1, size=1.0, seed=i)
    found = measured(tmp_path / "a.safetensors", tensors)
    dense = [tensors[f"{name}.lora_up.weight"] @ tensors[f"{name}.lora_down.weight"] for name in names]
    energies = [delta.square().sum().item() for delta in dense]
    total = sum(energies)
    assert found.norm == pytest.approx(total**0.5, rel=1e-5)
    assert list(found.by_block()) == ["text_encoder", "IN04", "M00", "OUT11"]
    for block, energy in zip(names.values(), energies, strict=True):
        assert found.share(found.by_block()[block]) == pytest.approx(energy / total, rel=1e-5)
    assert found.text_encoder_share == pytest.approx(energies[3] / total, rel=1e-5)
    components = found.by_component()
    assert components.keys() == {"denoiser", "text_encoder"}
    largest = [torch.linalg.svdvals(delta.double())[0].item() for delta in dense]
    assert components["denoiser"].norm == pytest.approx(sum(energies[:3]) ** 0.5, rel=1e-5)
    assert components["denoiser"].spectral == pytest.approx(max(largest[:3]), rel=1e-5)
    assert found.by_block()["M00"].spectral == pytest.approx(largest[1], rel=1e-5)
    assert components["denoiser"].relative is None, "the base weights are not known"


def test_blocks_of_a_transformer_by_flattened_and_dotted_names(tmp_path: Path) -> None:
    tensors = pair("lora_unet_double_blocks_12_img_attn_qkv", (12, 8), 1)
    assert list(measured(tmp_path / "a.safetensors", tensors).by_block()) == ["D12"]
    tensors = pair("transformer.single_transformer_blocks.3.attn.to_q", (12, 8), 1)
    tensors = {key.replace("lora_down", "lora_A").replace("lora_up", "lora_B"): one for key, one in tensors.items()}
    assert list(measured(tmp_path / "b.safetensors", tensors).by_block()) == ["S03"]


def test_blocks_are_in_the_order_of_the_model_where_those_of_the_file_are_by_their_names(tmp_path: Path) -> None:
    names = [f"lora_unet_{kind}_blocks_{at}_linear1" for kind in ("single", "double") for at in (10, 9, 2)]
    tensors = {}
    for name in [*names, "lora_te1_text_model_encoder_layers_10_mlp_fc1"]:
        tensors |= pair(name, (12, 8), 1)
    found = measured(tmp_path / "a.safetensors", tensors)
    assert [one.layer.block for one in found.layers] != [block for _, block in found.by_place()]
    blocks = ["text_encoder", "D02", "D09", "D10", "S02", "S09", "S10"]
    assert list(found.by_block()) == blocks
    assert [block or component for component, block in found.by_place()] == blocks


def test_what_a_lower_rank_keeps(tmp_path: Path) -> None:
    values = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5])
    left, right = (torch.linalg.qr(torch.randn(16, 5, generator=torch.Generator().manual_seed(i)))[0] for i in (0, 1))
    tensors = {f"{ATTENTION}.lora_up.weight": left * values, f"{ATTENTION}.lora_down.weight": right.T}
    found = measured(tmp_path / "a.safetensors", tensors)
    total = 16 + 9 + 4 + 1 + 0.25
    assert found.kept() == pytest.approx({1: 16 / total, 2: 25 / total, 4: 30 / total, 5: 1.0}, rel=1e-6)
    (one,) = found.layers
    assert one.stable_rank == pytest.approx(total / 16, rel=1e-6)
    assert (one.effective_rank(0.9), one.effective_rank(0.99), found.rank_for(0.8)) == (3, 4, 2)
    assert one.spectral == pytest.approx(4.0, rel=1e-6)


def test_zeros_limits_and_nan_are_counted(tmp_path: Path) -> None:
    dead, clipped, spoiled, sound = (f"lora_unet_down_blocks_0_attentions_{i}_proj_in" for i in range(4))
    tensors = {}
    for name in (dead, clipped, spoiled, sound):
        tensors |= pair(name, (12, 8), 2, dtype=torch.float16)
    tensors[f"{dead}.lora_up.weight"].zero_()
    tensors[f"{clipped}.lora_up.weight"][3, 1] = -65504
    tensors[f"{spoiled}.lora_down.weight"][0, 0] = float("nan")
    found = measured(tmp_path / "a.safetensors", tensors)
    assert [one.layer.name for one in found.layers if one.is_dead] == [dead.removeprefix("lora_unet_")]
    assert found.clipped == (f"{clipped}.lora_up.weight",)
    assert found.file.not_finite == (f"{spoiled}.lora_down.weight",)
    assert len(found.layers) == 3, "the layer with NaN is left out"
    assert not measured(tmp_path / "b.safetensors", pair(sound, (12, 8), 2, size=1e5)).clipped, "fp32 holds more"


def test_the_scale_is_told_through_a_magnitude(tmp_path: Path) -> None:
    tensors = pair(ATTENTION, (12, 8), 4, alpha=1) | {f"{ATTENTION}.dora_scale": torch.ones(12, 1)}
    found = measured(tmp_path / "a.safetensors", tensors)
    assert found.scales == (0.25,)
    assert [one.layer.kind for one in found.layers] == ["lora+dora"]


def test_the_header_tells_of_the_training() -> None:
    said = {"ss_network_dim": "8", "ss_max_train_steps": "700", "ss_steps": "None", "ss_tag_frequency": "{}"}
    assert trained(said) == {"rank": "8", "steps": "700"}
    kohya = {"ss_v_parameterization": "True", "ss_zero_terminal_snr": "True", "ss_optimizer": "lion_pytorch.Lion"}
    assert trained(kohya) == {"prediction": "v", "zero terminal SNR": "True", "optimizer": "lion_pytorch.Lion"}
    flow = {"ss_discrete_flow_shift": "3.0", "ss_timestep_sampling": "sigmoid", "ss_v_parameterization": "False"}
    assert trained(flow) == {"timesteps": "sigmoid", "flow shift": "3.0"}
    config = {
        "peft_type": "LOHA",
        "optimizer": {"optimizer": "PRODIGY", "beta1": 0.9},
        "epochs": 100,
        "timestep_shift": 1.5,
        "rescale_noise_scheduler_to_zero_terminal_snr": False,
        "force_v_prediction": True,
        "concepts": [{"path": "/private"}],
    }
    assert trained({"ot_config": json.dumps(config), "modelspec.prediction_type": "epsilon"}) == {
        "with": "LOHA",
        "epochs": "100",
        "optimizer": "PRODIGY",
        "prediction": "epsilon",
        "timestep shift": "1.5",
    }
    assert trained({"ot_config": json.dumps(config)})["prediction"] == "v"
    toolkit = {"software": '{"name": "ai-toolkit", "version": "0.1"}', "training_info": '{"step": 290, "epoch": 0}'}
    assert trained(toolkit) == {"with": "ai-toolkit", "steps": "290", "epoch": "0"}
    assert trained({"ot_config": "[" * 10**5, "training_info": "7", "software": "none"}) == {}
    assert trained({}, "lcm-lora-sdv1-5") == {"distilled": "LCM, 2 to 8 steps, CFG scale 1 to 2"}
    assert trained({"ss_output_name": "sdxl_lightning_4step_lora"}, "renamed") == {
        "distilled": "Lightning, 4 steps, CFG scale 1"
    }
    assert trained({"ss_steps": "8"}, "style") == {"steps": "8"}


@pytest.mark.parametrize("name", ["night", "outline", "neon", "stars"])
def test_a_model_on_disk_gives_its_weights(name: str) -> None:
    """Its norms, and the changes that depend on its weights, are those of the model in memory."""
    path = LORAS / f"{name}.safetensors"
    mapped = mapped_model(MODEL)
    parameters = mapped["unet"].named_parameters()
    assert all(value.is_meta == key.endswith("bias") for key, value in parameters), "no adapter needs a bias"
    (component,) = {"text_encoder"} if name == "stars" else {"unet"}
    weights = load_file(next((MODEL / component).glob("*.safetensors")))
    own = mapped_model(MODEL)[component]
    for key in weights:
        owner, _, param = key.rpartition(".")
        setattr(own.get_submodule(owner), param, nn.Parameter(weights[key].float(), requires_grad=False))
    found, want = measure(layers_of(path, mapped)), measure(layers_of(path, {component: own}))
    assert len(found.layers) == len(want.layers) > 15
    assert not found.unmeasured
    for one, other in zip(found.layers, want.layers, strict=True):
        assert one.base_norm == pytest.approx(other.base_norm, rel=1e-6)
        assert one.norm == pytest.approx(other.norm, rel=1e-5)
    assert found.relative == pytest.approx(want.relative, rel=1e-5)
    assert 0.1 < (found.relative or 0) < 1.5
    for block, part in found.by_block().items():
        own = [one for one in want.layers if block in (one.layer.block, one.layer.component)]
        base = sum((one.base_norm or 0.0) ** 2 for one in own)
        assert part.relative == pytest.approx((sum(one.energy for one in own) / base) ** 0.5, rel=1e-5)
        assert part.spectral == pytest.approx(max(one.spectral for one in own), rel=1e-5)


def test_a_checkpoint_in_one_file_gives_its_weights(tmp_path: Path) -> None:
    weight = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    prefix = "model.diffusion_model.middle_block.1"
    key = f"{prefix}.transformer_blocks.0.attn1.to_q.weight"
    save_file({key: weight, f"{prefix}.norm.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    path = save(tmp_path / "a.safetensors", pair(ATTENTION, (32, 32), 2, size=1.0))
    (one,) = measure(layers_of(path, mapped_model(tmp_path / "model.safetensors"))).layers
    assert one.base_norm == pytest.approx(weight.norm().item(), rel=1e-6)
    assert one.relative == pytest.approx(one.norm / weight.norm().item(), rel=1e-6)


def test_a_weight_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    layer = nn.Linear(8, 12, device="meta")
    model = nn.Module()
    model.add_module("layer", layer)
    dora = {"lora_unet_layer.dora_scale": torch.ones(12, 1)}
    path = save(tmp_path / "a.safetensors", pair("lora_unet_layer", (12, 8), 2) | dora)
    (one,) = measure(layers_of(path, {"unet": model})).layers
    (plain,) = measure(layers_of(path)).layers
    assert (one.base_norm, one.relative) == (None, None)
    assert torch.equal(one.squares, plain.squares), "the magnitude is left out"


def test_a_file_that_fits_nothing_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", pair("lora_unet_nowhere", (12, 8), 2))
    with pytest.raises(NoMatchError):
        layers_of(path, mapped_model(MODEL))
    with pytest.raises(FileError):
        layers_of(save(tmp_path / "b.safetensors", {"x": torch.ones(2)}))


def test_values_come_from_the_small_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a weight is, the SVD is of a matrix (rank, rank)."""
    tensors = {}
    for i in range(6):
        tensors |= pair(f"lora_unet_down_blocks_0_attentions_{i}_proj_in", (64, 64), 2, dtype=torch.float16)
    path = save(tmp_path / "a.safetensors", tensors)
    sizes: list[int] = []
    original = torch.linalg.svdvals

    def counted(matrix: Tensor) -> Tensor:
        sizes.append(matrix.numel())
        return original(matrix)

    monkeypatch.setattr(torch.linalg, "svdvals", counted)
    assert len(measure(layers_of(path)).layers) == 6
    assert sizes == [4] * 6
