"""What trainers really save is understood, key by key: each kind is built by its own library on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lib_lora.files.file import AdapterFile
from lib_lora.files.formats import PeftConfig
from lib_lora.files.formats.base import FILE_WIDE
from lib_lora.naming.parsed import key_formats
from tests.fakes.keys import parse_key

LORA = {"lora_down.weight", "lora_up.weight"}
LOHA = {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}
GLORA = {"a1.weight", "a2.weight", "b1.weight", "b2.weight"}
NORM = {"w_norm", "b_norm"}
TLORA = {"q_layer.weight", "p_layer.weight", "lambda_layer"}


class Block(nn.Module):
    """A layer below another module, so that paths have dots."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)


class Model(nn.Module):
    """One layer of every class that adapters are made for."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.conv = nn.Conv2d(8, 8, 3)
        self.emb = nn.Embedding(10, 16)
        self.attn = nn.MultiheadAttention(16, 2)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block.fc(x)


def layers(path: Path, name: str) -> dict[str, set[str]]:
    """Canonical parameters by module; every key must be understood by the format `name`."""
    found: dict[str, set[str]] = {}
    for key in AdapterFile.open(path).infos:
        spelled, parsed = parse_key(key)
        assert parsed is not None, key
        assert spelled == name, key
        assert (parsed.component, parsed.adapter) == (None, None)
        params = found.setdefault(parsed.module, set())
        assert parsed.param not in params, key
        params.add(parsed.param)
    return found


# arguments of create_lycoris -> parameters of the linear layer, of the convolution, of the norm
LYCORIS = {
    "locon": ({"algo": "lora"}, LORA | {"alpha"}, LORA | {"alpha"}, None),
    "tucker": ({"algo": "lora", "use_tucker": True}, LORA | {"alpha"}, LORA | {"alpha", "lora_mid.weight"}, None),
    "dora": ({"algo": "lora", "dora_wd": True}, LORA | {"alpha", "dora_scale"}, LORA | {"alpha", "dora_scale"}, None),
    "scalar": ({"algo": "lora", "use_scalar": True}, LORA | {"alpha"}, LORA | {"alpha"}, None),
    "dylora": ({"algo": "dylora", "block_size": 2}, LORA | {"alpha"}, LORA | {"alpha"}, None),
    "loha": ({"algo": "loha"}, LOHA | {"alpha"}, LOHA | {"alpha"}, None),
    "loha tucker": (
        {"algo": "loha", "use_tucker": True, "dora_wd": True},
        LOHA | {"alpha", "dora_scale"},
        LOHA | {"alpha", "dora_scale", "hada_t1", "hada_t2"},
        None,
    ),
    "lokr": (
        {"algo": "lokr", "factor": 4, "linear_dim": 1, "decompose_both": True},
        {"alpha", "lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"},
        {"alpha", "lokr_w1", "lokr_w2_a", "lokr_w2_b"},
        None,
    ),
    "lokr tucker": (
        {"algo": "lokr", "factor": 2, "linear_dim": 1, "use_tucker": True, "dora_wd": True},
        {"alpha", "dora_scale", "lokr_w1", "lokr_w2_a", "lokr_w2_b"},
        {"alpha", "dora_scale", "lokr_w1", "lokr_w2_a", "lokr_w2_b", "lokr_t2"},
        None,
    ),
    "lokr full": (
        {"algo": "lokr", "full_matrix": True},
        {"alpha", "lokr_w1", "lokr_w2"},
        {"alpha", "lokr_w1", "lokr_w2"},
        None,
    ),
    "full": ({"algo": "full"}, {"diff", "diff_b"}, {"diff", "diff_b"}, None),
    "glora": ({"algo": "glora"}, GLORA | {"alpha"}, GLORA | {"alpha"}, None),
    "ia3": ({"algo": "ia3"}, {"weight", "on_input"}, {"weight", "on_input"}, None),
    "diag-oft": (
        {"algo": "diag-oft", "constraint": 1e-3, "rescaled": True},
        {"oft_blocks", "alpha", "rescale"},
        {"oft_blocks", "alpha", "rescale"},
        None,
    ),
    "boft": ({"algo": "boft"}, {"oft_blocks", "alpha"}, {"oft_blocks", "alpha"}, None),
    "tlora": ({"algo": "tlora"}, TLORA | {"alpha"}, TLORA | {"alpha"}, None),
    "norm": ({"algo": "full", "train_norm": True}, {"diff", "diff_b"}, {"diff", "diff_b"}, NORM),
}


@pytest.mark.parametrize("case", LYCORIS)
def test_keys_of_lycoris(tmp_path, case):
    lycoris = pytest.importorskip("lycoris")
    if case in ("ia3", "tlora"):
        pytest.importorskip("lycoris.modules.tlora", reason="LyCORIS before 4 writes no such files")
    arguments, linear, conv, norm = LYCORIS[case]
    net = lycoris.create_lycoris(Model(), 1.0, **{"linear_dim": 4, "linear_alpha": 1, **arguments})
    net.apply_to()
    net.save_weights(str(tmp_path / "a.safetensors"), torch.float32, {})
    found = layers(tmp_path / "a.safetensors", "kohya")
    assert (found["block_fc"], found["conv"], found.get("norm")) == (linear, conv, norm)


# configuration class, its arguments -> parameters by module
PEFT = {
    "lora": (
        "LoraConfig",
        {"target_modules": ["fc", "conv", "emb"]},
        {"block.fc": LORA, "conv": LORA, "emb": {"lora_embedding_A", "lora_embedding_B"}},
    ),
    "lora with bias": (
        "LoraConfig",
        {"target_modules": ["fc"], "lora_bias": True},
        {"block.fc": LORA | {"lora_up.bias"}},
    ),
    "dora": (
        "LoraConfig",
        {"target_modules": ["fc", "conv", "emb"], "use_dora": True},
        {
            "block.fc": LORA | {"lora_magnitude_vector"},
            "conv": LORA | {"lora_magnitude_vector"},
            "emb": {"lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"},
        },
    ),
    "attention": ("LoraConfig", {"target_modules": ["attn"]}, {"attn": LORA, "attn.out_proj": LORA}),
    "adalora": (
        "AdaLoraConfig",
        {"init_r": 4, "target_r": 2, "total_step": 10, "tinit": 1, "tfinal": 1, "target_modules": ["fc"]},
        {"block.fc": LORA | {"lora_E"}},
    ),
    "loha": (
        "LoHaConfig",
        {"r": 4, "target_modules": ["fc", "conv"], "use_effective_conv2d": True},
        {"block.fc": LOHA, "conv": LOHA | {"hada_t1", "hada_t2"}},
    ),
    "lokr": (
        "LoKrConfig",
        {"r": 1, "target_modules": ["fc", "conv"], "decompose_both": True, "use_effective_conv2d": True},
        {
            "block.fc": {"lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"},
            "conv": {"lokr_w1", "lokr_w2_a", "lokr_w2_b", "lokr_t2"},
        },
    ),
    "lokr full": ("LoKrConfig", {"r": 8, "target_modules": ["fc"]}, {"block.fc": {"lokr_w1", "lokr_w2"}}),
    "ia3": (
        "IA3Config",
        {"target_modules": ["fc", "conv"], "feedforward_modules": ["fc"]},
        {"block.fc": {"ia3_l"}, "conv": {"ia3_l"}},
    ),
    "oft": (
        "OFTConfig",
        {"target_modules": ["fc", "conv"], "oft_block_size": 4},
        {"block.fc": {"oft_R.weight"}, "conv": {"oft_R.weight"}},
    ),
    "boft": (
        "BOFTConfig",
        {"target_modules": ["fc", "conv"], "boft_block_size": 4},
        {"block.fc": {"boft_R", "boft_s"}, "conv": {"boft_R", "boft_s"}},
    ),
    "hra": ("HRAConfig", {"r": 4, "target_modules": ["fc", "conv"]}, {"block.fc": {"hra_u"}, "conv": {"hra_u"}}),
    "vera": (
        "VeraConfig",
        {"r": 4, "target_modules": ["fc"]},
        {"block.fc": {"vera_lambda_b", "vera_lambda_d"}, FILE_WIDE: {"vera_A", "vera_B"}},
    ),
    "vera without projection": (
        "VeraConfig",
        {"r": 4, "target_modules": ["fc"], "save_projection": False},
        {"block.fc": {"vera_lambda_b", "vera_lambda_d"}},
    ),
}


@pytest.mark.parametrize("case", PEFT)
@pytest.mark.filterwarnings("ignore::UserWarning")  # each about training, none about keys
def test_keys_of_peft(tmp_path, case):
    peft = pytest.importorskip("peft")
    name, arguments, want = PEFT[case]
    made = peft.get_peft_model(Model(), getattr(peft, name)(**arguments))
    made.save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    assert layers(path, "peft") == want
    values = PeftConfig.of(path, AdapterFile.open(path).metadata, (), [key_formats()["peft"]]).values(None, "block.fc")
    assert values["peft_type"] == made.peft_config["default"].peft_type.value
    assert {key: values[key] for key in arguments if key != "target_modules"} == {
        key: value for key, value in arguments.items() if key != "target_modules"
    }


@pytest.mark.parametrize("case", PEFT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_keys_of_peft_with_the_adapters_name(case):
    """Trainers that save the model's own state_dict keep the name in the keys."""
    peft = pytest.importorskip("peft")
    name, arguments, want = PEFT[case]
    made = peft.get_peft_model(Model(), getattr(peft, name)(**arguments), adapter_name="style")
    parsed = [parse_key(key) for key in made.state_dict() if "style" in key]
    found = {(one.module, one.param) for _, one in parsed if one is not None}
    assert {(module, param) for module, params in want.items() for param in params} <= found
    assert {(spelled, one.adapter) for spelled, one in parsed if one is not None} == {("peft", "style")}
