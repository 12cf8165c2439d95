"""What becomes of every key: used, or listed with its reason; and where alpha comes from."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

from lib_lora import ComponentError, FileError, UnknownAdapterError, UnknownFormatError, inspect_file, load_network
from lib_lora.files.file import AdapterFile
from lib_lora.naming.index import LayerIndex
from lib_lora.naming.network import Network
from lib_lora.naming.parsed import ParsedFile
from tests.fakes.files import adapters_of, pair, save


class Unet(nn.Module):
    """Two layers with a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.mid_block = nn.Module()
        self.mid_block.proj_in = nn.Linear(8, 12)
        self.mid_block.conv = nn.Conv2d(4, 6, 3)


class Text(nn.Module):
    """An encoder of a given width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.fc1 = nn.Linear(width, 2 * width)


@pytest.fixture
def components():
    return {"unet": Unet(), "text_encoder": Text(8), "text_encoder_2": Text(16)}


def peft(prefix: str, shape: tuple[int, int], rank: int, middle: str = "") -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.lora_A{middle}.weight": torch.randn(rank, shape[1]),
        f"{prefix}.lora_B{middle}.weight": torch.randn(shape[0], rank),
    }


def reasons(network) -> dict[str, str]:
    return {item.key: item.reason for item in network.report.unused}


def test_every_unused_key_has_its_reason(tmp_path, components):
    tensors = pair("lora_unet_mid_block_proj_in", (12, 8), 4)
    tensors |= pair("lora_unet_no_such_layer", (12, 8), 4)
    tensors |= pair("lora_te3_text_model_x", (12, 8), 4)
    tensors |= pair("lora_unet_mid_block_conv", (6, 5, 3, 3), 4)
    tensors |= {"lora_te_encoder_fc1.lora_up.weight": torch.zeros(16, 4), "junk": torch.zeros(1)}
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    got = reasons(network)
    assert (network.report.hit, network.report.layers) == (1, 5)
    assert got["junk"] == "not understood by any key format"
    assert got["lora_unet_no_such_layer.lora_up.weight"] == "no module of that name in unet"
    assert got["lora_te3_text_model_x.lora_up.weight"] == "component text_encoder_3 is absent in this model"
    another = "made for a layer of 5 inputs or outputs, where the loaded model has 4; load the model that "
    assert got["lora_unet_mid_block_conv.lora_up.weight"].startswith(another)
    details = {item.key: item.detail for item in network.report.unused}
    assert details["lora_unet_mid_block_conv.lora_up.weight"] == (
        "unet.mid_block.conv is 6 x 4 x 3 x 3 in the model, 6 x 5 x 3 x 3 in the file"
    )
    assert got["lora_te_encoder_fc1.lora_up.weight"] == "no adapter kind reads lora_up.weight alone"
    used = {f"lora_unet_mid_block_proj_in.lora_{side}.weight" for side in ("up", "down")}
    assert got.keys() | used == set(tensors), "every key is used or listed"


def test_a_parameter_nobody_reads_keeps_its_layer_out(tmp_path, components):
    """A LoRA applied without what changes its meaning would be a wrong picture, silently."""
    tensors = pair("lora_unet_mid_block_proj_in", (12, 8), 4) | pair("lora_unet_mid_block_conv", (6, 4, 3, 3), 4)
    tensors["lora_unet_mid_block_proj_in.bora_r_scale"] = torch.ones(1, 8)
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert set(adapters_of(network)["unet"]) == {"mid_block.conv"}
    assert "no adapter kind reads bora_r_scale, lora_down.weight, lora_up.weight together" in reasons(network).values()


def test_a_file_of_unknown_kind_or_format_names_the_keys(tmp_path, components):
    unknown = save(tmp_path / "a.safetensors", {"lora_unet_mid_block_proj_in.bora_w1": torch.zeros(2, 2)})
    with pytest.raises(UnknownAdapterError, match="bora_w1"):
        load_network(unknown, components)
    for key, hint in {"model.diffusion_model.x.weight": "whole checkpoint", "emb_params": "textual inversion"}.items():
        with pytest.raises(UnknownFormatError, match=hint) as caught:
            load_network(save(tmp_path / "b.safetensors", {key: torch.zeros(1)}), components)
        assert f"({key}, …)" in str(caught.value)
    (tmp_path / "c.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with pytest.raises(UnknownFormatError, match=r"\(none"):
        load_network(tmp_path / "c.safetensors", components)


def test_a_checkpoint_is_no_adapter_though_some_of_its_keys_could_be_ones(tmp_path, components):
    """Control LoRA of Flux have whole norms under a checkpoint's names; what has nothing else is a checkpoint."""
    norm = {"double_blocks.0.img_attn.norm.key_norm.scale": torch.ones(8)}
    with pytest.raises(UnknownFormatError, match="whole checkpoint"):
        load_network(save(tmp_path / "a.safetensors", norm | {"img_in.weight": torch.zeros(8, 4)}), components)
    control = save(tmp_path / "b.safetensors", norm | peft("img_in", (8, 4), 2))
    assert load_network(control, components).report.kinds == {"set_weight": 1, "lora": 1}


def test_component_is_found_by_name_and_shape_where_the_key_does_not_say(tmp_path, components):
    tensors = peft("base_model.model.text_model.encoder.fc1", (32, 16), 4)
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert set(adapters_of(network)) == {"text_encoder_2"}


SCALES = {
    "adapter_config.json": ({"lora_alpha": 16, "r": 4}, None, 4.0),
    "alpha_pattern": ({"lora_alpha": 16, "alpha_pattern": {"proj_in": 2}}, None, 0.5),
    "alpha_pattern elsewhere": ({"lora_alpha": 16, "alpha_pattern": {"roj_in": 2}}, None, 4.0),
    "rank stabilized": ({"lora_alpha": 16, "use_rslora": True}, None, 8.0),
    "header, plain": (None, {"lora_alpha": 8}, 2.0),
    "header, per component": (None, {"unet.lora_alpha": 12, "text_encoder.lora_alpha": 1}, 3.0),
    "header beats the file beside": ({"lora_alpha": 16}, {"unet.lora_alpha": 12}, 3.0),
    "nothing": (None, None, 1.0),
}


@pytest.mark.parametrize("case", SCALES)
@pytest.mark.parametrize("prefix", ["unet.mid_block.proj_in", "base_model.model.unet.mid_block.proj_in"])
def test_alpha_of_peft_files(tmp_path, components, case, prefix):
    beside, header, scale = SCALES[case]
    if beside is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(beside))
    metadata = None if header is None else {"lora_adapter_metadata": json.dumps(header)}
    tensors = peft(prefix, (12, 8), 4)
    network = load_network(save(tmp_path / "adapter_model.safetensors", tensors, metadata), components)
    want = scale * tensors[f"{prefix}.lora_B.weight"].double() @ tensors[f"{prefix}.lora_A.weight"].double()
    got = network.delta_weight("unet", "mid_block.proj_in", torch.float64)
    assert (got - want).abs().max() <= 1e-12 * want.abs().max()


def test_the_configuration_beside_a_kohya_file_is_not_its_own(tmp_path, components):
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 16}')
    tensors = pair("lora_unet_mid_block_proj_in", (12, 8), 4)
    network = load_network(save(tmp_path / "adapter_model.safetensors", tensors), components)
    want = (
        tensors["lora_unet_mid_block_proj_in.lora_up.weight"] @ tensors["lora_unet_mid_block_proj_in.lora_down.weight"]
    )
    assert (network.delta_weight("unet", "mid_block.proj_in") - want).abs().max() <= 1e-6 * want.abs().max()


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_broken_peft_metadata_is_one_clear_error(tmp_path, components, text):
    path = save(tmp_path / "a.safetensors", peft("unet.mid_block.proj_in", (12, 8), 4), {"lora_adapter_metadata": text})
    with pytest.raises(FileError, match=r"a\.safetensors: metadata lora_adapter_metadata"):
        load_network(path, components)


def test_of_several_named_adapters_one_is_used_and_the_rest_listed(tmp_path, components):
    tensors = peft("unet.mid_block.proj_in", (12, 8), 4, ".style") | peft(
        "unet.mid_block.proj_in", (12, 8), 4, ".default"
    )
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert network.report.hit == 1
    assert reasons(network) == {
        f"unet.mid_block.proj_in.lora_{side}.style.weight": "of a second adapter 'style'; only 'default' is used"
        for side in "AB"
    }


def test_of_several_named_adapters_none_called_default_the_first_by_name_is_used(tmp_path, components):
    tensors = peft("unet.mid_block.proj_in", (12, 8), 4, ".b") | peft("unet.mid_block.proj_in", (12, 8), 4, ".a")
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert set(reasons(network).values()) == {"of a second adapter 'b'; only 'a' is used"}


def test_parameters_for_all_layers_are_spoken_of_where_none_reads_them(tmp_path, components):
    shared = {"base_model.vera_A": torch.randn(4, 8), "base_model.vera_B": torch.randn(12, 4)}
    prefix = "base_model.model.mid_block.proj_in"
    other = save(tmp_path / "a.safetensors", shared | peft(prefix, (12, 8), 4))
    for report in (load_network(other, components).report, inspect_file(other)):
        assert {one.key: one.reason for one in report.unused} == dict.fromkeys(
            shared, "shared by layers of which none acts"
        )
    own = {f"{prefix}.vera_lambda_d": torch.ones(4), f"{prefix}.vera_lambda_b": torch.ones(12)}
    vera = save(tmp_path / "b.safetensors", shared | own)
    for report in (load_network(vera, components).report, inspect_file(vera)):
        assert report.unused == ()


def test_two_spellings_of_one_layer_act_once(tmp_path, components):
    tensors = pair("lora_unet_mid_block_proj_in", (12, 8), 4) | pair("unet.mid_block.proj_in", (12, 8), 4)
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert network.report.hit == 1
    assert set(reasons(network).values()) == {"a second adapter for unet.mid_block.proj_in"}
    assert network.report.format in ("kohya+diffusers", "diffusers+kohya")


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"lora_up.weight": (12, 4), "lora_down.weight": (5, 8)}, r"want down \(4, 8\), got \(5, 8\)"),
        ({"lora_up.weight": (11, 4), "lora_down.weight": (4, 8)}, r"want up \(12, r\), got \(11, 4\)"),
        ({"lora_up.weight": (), "lora_down.weight": (4, 8)}, r"want up \(12, r\), got \(\)"),
        ({"lora_up.weight": (12, 4), "lora_down.weight": (4, 8), "alpha": (2,)}, "one number as alpha"),
        ({"lora_up.weight": (12, 4), "lora_down.weight": (4, 8), "lora_B.bias": (3,)}, "want a bias of 12"),
        ({"lora_up.weight": (12, 4), "lora_down.weight": (4, 8), "lora_mid.weight": (4, 9)}, "want mid"),
        ({"lora_up.weight": (12, 4), "lora_down.weight": ()}, "want down"),
    ],
)
def test_tensors_that_do_not_fit_are_told_with_want_and_got(tmp_path, components, shapes, text):
    tensors = {f"lora_unet_mid_block_proj_in.{param}": torch.zeros(shape) for param, shape in shapes.items()}
    tensors |= pair("lora_unet_mid_block_conv", (6, 4, 3, 3), 4)
    network = load_network(save(tmp_path / "a.safetensors", tensors), components)
    assert network.report.hit == 1
    assert {one.cause for one in network.report.unused} == {"shape"}
    if shapes["lora_up.weight"] == (11, 4):
        text = "unet.mid_block.proj_in is 12 x 8 in the model, 11 x 8 in the file"
    assert all(re.search(text, item.detail) for item in network.report.unused)
    alone = ParsedFile(network.file).report()
    consistent = shapes["lora_up.weight"] == (11, 4)  # for a layer of 11 that would be right
    assert bool(alone.unused) != consistent, "what does not even fit itself is seen without a model, too"


def test_a_layer_the_file_does_not_change_has_no_delta(tmp_path, components):
    network = load_network(
        save(tmp_path / "a.safetensors", pair("lora_unet_mid_block_proj_in", (12, 8), 4)), components
    )
    for component, path in (("unet", "mid_block.conv"), ("unet", "nowhere"), ("vae", "x")):
        with pytest.raises(ComponentError, match="does not change"):
            network.delta_weight(component, path)


def test_report_as_text_and_json(tmp_path, components):
    tensors = pair("lora_unet_mid_block_proj_in", (12, 8), 4) | pair("lora_unet_mid_block_conv", (6, 4, 3, 3), 2)
    tensors |= pair("lora_unet_gone", (6, 4), 8)
    network = load_network(save(tmp_path / "style.safetensors", tensors, {"ss_network_dim": "4"}), components)
    assert network.report.summary() == (
        "style: 2 of 3 layers (3 lora, rank 2 to 8, kohya, unknown architecture); "
        "2 keys unused: no module of that name in unet (2 keys)"
    )
    data = json.loads(json.dumps(network.report.to_json()))
    assert (data["hit"], data["layers"], data["ranks"], data["metadata"]) == (2, 3, [2, 8], {"ss_network_dim": "4"})
    assert data["bytes"] == 4 * (4 * (12 + 8) + 2 * (6 + 36))


def test_parameters_of_a_modifier_beside_kohyas_split_oft(tmp_path):
    tensors = {"oft_unet_proj.oft_blocks.0": torch.zeros(2, 4, 4), "oft_unet_proj.oft_blocks.1": torch.zeros(1, 8, 8)}
    tensors |= {"lora_unet_other.diff_b": torch.ones(16), "lora_unet_other.oft_blocks.0": torch.zeros(4, 4, 4)}
    model = nn.ModuleDict({"proj": nn.Linear(8, 16), "other": nn.Linear(8, 16)})
    report = load_network(save(tmp_path / "a.safetensors", tensors), {"unet": model}).report
    assert (report.hit, report.unused) == (2, ())
    assert dict(report.kinds) == {"split_oft": 1, "split_oft+bias": 1}


def test_a_norm_under_the_name_of_a_fused_layer_is_let_be(tmp_path):
    model = nn.ModuleDict({"double_blocks": nn.ModuleList([nn.ModuleDict({"img_attn": nn.ModuleDict()})])})
    model["double_blocks"][0]["img_attn"]["qkv"] = nn.LayerNorm(8)
    model["proj"] = nn.Linear(8, 8)
    report = load_network(save(tmp_path / "a.safetensors", pair("lora_unet_proj", (8, 8), 2)), {"unet": model}).report
    assert report.hit == 1


def test_a_file_that_changes_before_its_layers_are_found_is_reported_as_changed(tmp_path, components):
    path = save(tmp_path / "a.safetensors", pair("lora_unet_mid_block_proj_in", (12, 8), 4))
    parsed = ParsedFile(AdapterFile.open(path))
    path.write_bytes(path.read_bytes() + b" ")
    indexes = [LayerIndex(name, module) for name, module in components.items()]
    with pytest.raises(FileError, match="changed on disk"):
        Network(parsed, indexes)
