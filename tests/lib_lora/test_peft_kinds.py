"""Kinds of PEFT do what PEFT's own forward does, on files that PEFT saved: live and merged, and two at once.

`docs/adapters.md` has the errors.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, load_network
from lib_lora.errors import UnknownFormatError
from tests.fakes.contract import run, worst
from tests.fakes.files import save
from tests.fakes.layers import Model, make

BOUND = 1e-9
"""Largest difference over the largest value; both sides compute in fp64."""
SINGLE = 2e-6
"""The same where PEFT computes in fp32."""

# configuration of PEFT, its arguments, layers, bound
KINDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], float]] = {
    "lora": ("LoraConfig", {"r": 4, "lora_alpha": 6}, ("linear", "conv 3x3, stride", "embedding"), BOUND),
    "lora, dora": ("LoraConfig", {"r": 4, "use_dora": True}, ("linear", "conv 3x3, stride", "embedding"), BOUND),
    "adalora": ("AdaLoraConfig", {"init_r": 4, "total_step": 10}, ("linear", "conv 3x3, stride"), BOUND),
    "loha": ("LoHaConfig", {"r": 4}, ("linear", "conv 3x3, stride"), BOUND),
    "lokr": ("LoKrConfig", {"r": 4}, ("linear", "conv 3x3, stride"), BOUND),
    "oft": ("OFTConfig", {"oft_block_size": 4}, ("linear", "conv 1x1"), BOUND),
    "boft": ("BOFTConfig", {"boft_block_size": 4}, ("linear", "conv 3x3, stride"), BOUND),
    "hra": ("HRAConfig", {"r": 4}, ("linear", "conv 3x3, stride"), BOUND),
    "ia3": ("IA3Config", {"feedforward_modules": []}, ("linear", "conv 3x3, stride"), BOUND),
    "vera": ("VeraConfig", {"r": 4}, ("linear",), BOUND),
    "miss": ("MissConfig", {"r": 4}, ("linear", "square linear, 4-d"), BOUND),
    "miss, r no divisor": ("MissConfig", {"r": 5}, ("linear",), BOUND),
    "miss, mini": ("MissConfig", {"r": 4, "init_weights": "mini", "mini_r": 8}, ("linear",), BOUND),
    "miss, bat": ("MissConfig", {"r": 4, "init_weights": "bat"}, ("linear", "square linear, 4-d"), BOUND),
    "fourierft": ("FourierFTConfig", {"n_frequency": 60}, ("linear",), SINGLE),
    "fourierft, other seed": (
        "FourierFTConfig",
        {"n_frequency": 60, "random_loc_seed": 5, "scaling": 90.0},
        ("linear",),
        SINGLE,
    ),
    "hira": ("HiraConfig", {"r": 4}, ("linear", "conv 3x3, stride", "conv 1x1", "conv 1-d", "embedding"), BOUND),
    "c3a": ("C3AConfig", {"block_size": 8}, ("linear", "linear, many tokens"), SINGLE),
    "randlora": ("RandLoraConfig", {"r": 5}, ("linear", "linear, many tokens", "square linear, 4-d"), BOUND),
    "randlora, sparse": ("RandLoraConfig", {"r": 4, "sparse": True}, ("linear",), BOUND),
    "road 1": ("RoadConfig", {"variant": "road_1", "group_size": 8}, ("linear",), BOUND),
    "road 2": ("RoadConfig", {"variant": "road_2", "group_size": 4}, ("linear", "square linear, 4-d"), BOUND),
    "road 4": ("RoadConfig", {"variant": "road_4", "group_size": 6}, ("linear", "linear, many tokens"), BOUND),
    "waveft": ("WaveFTConfig", {"n_frequency": 60}, ("linear",), BOUND),
    **{
        f"waveft, {name}": ("WaveFTConfig", {"n_frequency": 60, "wavelet_family": name}, ("linear",), BOUND)
        for name in ("db2", "db7", "sym4", "coif2")
    },
    "waveft, no wavelets": ("WaveFTConfig", {"n_frequency": 60, "use_idwt": False}, ("linear",), BOUND),
    "ln_tuning": ("LNTuningConfig", {}, ("layer norm", "rms norm", "linear"), BOUND),
    "trainable_tokens": ("TrainableTokensConfig", {"token_indices": [3, 1, 40]}, ("embedding",), BOUND),
    "shira": ("ShiraConfig", {"r": 2}, ("linear",), BOUND),
    "delora": ("DeloraConfig", {"r": 4}, ("linear",), BOUND),
    "gralora": ("GraloraConfig", {"r": 4, "gralora_k": 2}, ("linear",), BOUND),
    "gralora, hybrid": ("GraloraConfig", {"r": 8, "gralora_k": 4, "hybrid_r": 3, "alpha": 20}, ("linear",), BOUND),
    "vblora": ("VBLoRAConfig", {"r": 4, "num_vectors": 10, "vector_length": 4}, ("linear",), BOUND),
    "vblora, only the largest": (
        "VBLoRAConfig",
        {"r": 4, "num_vectors": 10, "vector_length": 4, "topk": 3, "save_only_topk_weights": True},
        ("linear",),
        BOUND,
    ),
    "beft": ("BeftConfig", {}, ("linear", "linear without bias, one row"), BOUND),
    "deft": ("DeftConfig", {"r": 4}, ("linear", "linear, many tokens"), SINGLE),
    "deft, qr": ("DeftConfig", {"r": 4, "alpha": 6, "decomposition_method": "qr"}, ("linear",), SINGLE),
    "deft, para": ("DeftConfig", {"r": 4, "para": True}, ("linear",), SINGLE),
    "glora": ("GloraConfig", {"r": 4}, ("linear", "linear without bias, one row"), BOUND),
    "glora, vectors": (
        "GloraConfig",
        {"r": 4, "config_A_B": "vector", "config_C": "vector", "config_D_E": "vector"},
        ("linear", "linear, many tokens"),
        BOUND,
    ),
    "glora, numbers": (
        "GloraConfig",
        {"r": 4, "config_A_B": "constant", "config_C": "none", "config_D_E": "none"},
        ("linear",),
        BOUND,
    ),
    "peanut": ("PeanutConfig", {"r": 4, "scaling": 0.7}, ("linear",), BOUND),
    "peanut, deep": ("PeanutConfig", {"r": 4, "depth": 2, "act_fn": "silu"}, ("linear", "linear, many tokens"), BOUND),
    "pvera": ("PveraConfig", {"r": 4}, ("linear",), BOUND),
    "supertuning": ("SupertuningConfig", {"sparsity": 0.9}, ("linear",), BOUND),
    "supertuning, supra": ("SupertuningConfig", {"sparsity": 0.9, "r": 4}, ("linear",), BOUND),
    "unilora": ("UniLoraConfig", {"r": 4, "theta_d_length": 40, "save_indices": True}, ("linear",), BOUND),
}
CASES = [(kind, layer) for kind, case in KINDS.items() for layer in case[2]]


def trained(kind: str, base: Model, seed: int) -> Any:
    """Return a model of PEFT with an adapter whose parameters differ from their initial values."""
    peft = pytest.importorskip("peft", "0.21")  # earlier ones have other forwards
    name, arguments, _, _ = KINDS[kind]
    torch.manual_seed(seed)
    made = peft.get_peft_model(copy.deepcopy(base), getattr(peft, name)(target_modules=["layer"], **arguments))
    made = made.double().eval()
    for own, parameter in made.named_parameters():
        if parameter.requires_grad and "ranknum" not in own:  # which PEFT does not save
            size = 0.3 * max(parameter.detach().std().item(), 0.5) if parameter.numel() > 1 else 0.3
            parameter.data.add_(torch.randn_like(parameter) * size)
    return made


def saved(made: Any, folder: Path) -> Path:
    made.save_pretrained(folder)
    return folder / "adapter_model.safetensors"


def served(base: Model, x: Tensor, *entries: Entry, mode: str = "live") -> Tensor:
    """Return the output with the files active; none of their keys is unused."""
    engine = Engine({"unet": base})
    report = engine.activate(Stack(list(entries), mode=mode))
    for one in report.entries:
        assert one.hit == 1, one
        assert not one.unused, one.unused
    got = run(base, x)
    engine.deactivate()
    return got


@pytest.mark.filterwarnings("ignore::UserWarning")  # each about training
@pytest.mark.parametrize(("kind", "layer"), CASES)
def test_forward_of_peft(tmp_path, kind, layer, record_property):
    base, x = make(layer)
    bound = KINDS[kind][3]
    plain = run(base, x)
    one, other = (trained(kind, base, seed) for seed in (1, 2))
    first, second = run(one, x) - plain, run(other, x) - plain
    paths = [saved(made, tmp_path / str(i)) for i, made in enumerate((one, other))]
    errors = {
        0.5: worst(served(base, x, Entry(paths[0], 0.5)), plain + 0.5 * first),
        1.0: worst(served(base, x, Entry(paths[0])), plain + first),
        "merged": worst(served(base, x, Entry(paths[0], 0.5), mode="merged"), plain + 0.5 * first),
        "two": worst(served(base, x, Entry(paths[0], 0.5), Entry(paths[1])), plain + 0.5 * first + second),
    }
    record_property("error", max(errors.values()))
    assert max(errors.values()) < bound, errors
    assert worst(plain + first, plain) > 1e-2, "the adapter must show"
    assert torch.equal(run(base, x), plain)


# --- what PEFT's configuration says of a LoRA -------------------------------------------------------------------------


def lora(tmp_path: Path, base: Model, x: Tensor, **arguments: Any) -> tuple[Path, Tensor]:
    """Return a LoRA that PEFT saved, and PEFT's output."""
    peft = pytest.importorskip("peft", "0.21")
    torch.manual_seed(4)
    config = peft.LoraConfig(target_modules=["layer"], r=4, lora_alpha=6, **arguments)
    made = peft.get_peft_model(copy.deepcopy(base).float(), config).double().eval()
    made.base_model.model.layer.base_layer.load_state_dict(base.layer.state_dict())
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter) * 0.3
    want = run(made, x)
    return saved(made, tmp_path), want


@pytest.mark.filterwarnings("ignore:.*invalid shape")  # of a bias
@pytest.mark.parametrize("begin", [True, "gaussian", "orthogonal", "mica"])
@pytest.mark.parametrize("stabilized", [False, True])
def test_lora_with_a_bias_and_beginnings_that_leave_the_base(tmp_path, begin, stabilized):
    base, x = make("linear")
    path, want = lora(tmp_path, base, x, init_lora_weights=begin, lora_bias=begin is True, use_rslora=stabilized)
    assert worst(served(base, x, Entry(path)), want) < BOUND


class Head(nn.Module):
    """A layer with a LoRA, and others that PEFT saves whole or with a bias of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(24, 48), nn.LayerNorm(48), nn.Conv1d(48, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.layer(x)).transpose(-1, -2))
        return found


# arguments of PEFT -> layers of the file
BESIDE: dict[str, tuple[dict[str, Any], int]] = {
    "every bias": ({"bias": "all"}, 3),
    "its biases": ({"bias": "lora_only"}, 1),
    "whole layers": ({"modules_to_save": ["norm", "head"]}, 3),
    "whole layers and its biases": ({"modules_to_save": ["head"], "bias": "lora_only"}, 2),
    "whole layers and every bias": ({"modules_to_save": ["norm", "head"], "bias": "all"}, 3),
}


@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize("case", BESIDE)
def test_lora_with_biases_and_whole_layers(tmp_path, case, mode):
    peft = pytest.importorskip("peft", "0.21")
    torch.manual_seed(4)
    base, x = Head().double().requires_grad_(False), torch.randn(3, 7, 24, dtype=torch.float64)
    arguments, layers = BESIDE[case]
    config = peft.LoraConfig(target_modules=["layer"], r=4, lora_alpha=6, **arguments)
    made = peft.get_peft_model(copy.deepcopy(base), config).double().eval()
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter) * 0.3
    path, plain, want = saved(made, tmp_path), run(base, x), run(made, x)
    half = made.merge_and_unload()
    for name, parameter in half.named_parameters():
        parameter.data = (parameter + base.get_parameter(name)) / 2
    with Engine({"unet": base}) as engine:
        (report,) = engine.activate(Stack([Entry(path)], mode=mode)).entries
        assert (report.hit, report.layers, report.warning) == (layers, layers, "")
        assert all(one.cause == "repeated" for one in report.unused), report.unused
        assert worst(run(base, x), want) < BOUND
        engine.activate(Stack([Entry(path, 0.5)], mode=mode))
        assert worst(run(base, x), run(half, x)) < BOUND
    assert worst(want, plain) > 1e-2, "the adapter must show"


def changed(path: Path, **values: object) -> Path:
    config = path.parent / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return path


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"init_lora_weights": "pissa_niter_4"},
            "PiSSA changed: save it again by PEFT's save_pretrained(folder, path_",
        ),
        ({"init_lora_weights": "olora"}, "OLoRA changed"),
        ({"init_lora_weights": "corda"}, "CorDA changed"),
        ({"init_lora_weights": "lora_ga"}, "LoRA-GA changed"),
        ({"alora_invocation_tokens": [3, 4]}, "only on tokens behind those that invoke it: use it with"),
        ({"kasa_config": {"beta": 1}}, "KaSA"),
        ({"use_bdlora": {"nblocks": 2}}, "BD-LoRA"),
    ],
)
def test_lora_that_is_none_beside_the_base_weights_says_so(tmp_path, values, reason):
    base, x = make("linear")
    path, _ = lora(tmp_path, base, x)
    report = load_network(changed(path, **values), {"unet": base}).report
    assert report.hit == 0
    assert {one.cause for one in report.unused} == {"unsupported"}
    assert all(reason in one.reason for one in report.unused), report.unused


@pytest.mark.filterwarnings("ignore:.*changes the base weights")  # which the conversion is for
@pytest.mark.parametrize(("begin", "name"), [("pissa", "PiSSA"), ("olora", "OLoRA")])
def test_lora_that_peft_converts_as_the_reason_says_acts_on_the_original_weights(tmp_path, begin, name):
    peft = pytest.importorskip("peft", "0.21")
    base, x = make("linear")
    torch.manual_seed(4)
    config = peft.LoraConfig(target_modules=["layer"], r=4, lora_alpha=6, init_lora_weights=begin)
    made = peft.get_peft_model(copy.deepcopy(base).float(), config).eval()  # PEFT decomposes the weight in fp32
    made.save_pretrained(tmp_path / "before")
    for key, parameter in made.named_parameters():
        if "lora_" in key:
            parameter.data += torch.randn_like(parameter) * 0.3
    want = run(made.double(), x)
    assert worst(run(base, x), want) > 1e-2, "the adapter must show"
    (reason,) = load_network(saved(made, tmp_path / "trained"), {"unet": base}).report.reasons()
    assert f"{name} changed" in reason
    assert "save_pretrained(folder, path_initial_model_for_weight_conversion=" in reason
    made.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "before"))
    assert worst(served(base, x, Entry(tmp_path / "plain" / "adapter_model.safetensors")), want) < SINGLE


def test_qalora(tmp_path):
    """On the means of groups of inputs; PEFT has it on GPTQ's layers alone, so its forward is called here."""
    variants = pytest.importorskip("peft.tuners.lora.variants")
    base, x = make("linear")
    path, _ = lora(tmp_path, base, x)
    tensors = load_file(path)
    down, up = (tensors[f"base_model.model.layer.lora_{side}.weight"] for side in "AB")
    tensors["base_model.model.layer.lora_A.weight"] = down = down[:, :6].clone()
    changed(save(path, tensors), use_qalora=True, qalora_group_size=4)
    module = SimpleNamespace(
        in_features=24,
        training=False,
        lora_A={"a": SimpleNamespace(weight=down)},
        lora_B={"a": SimpleNamespace(weight=up)},
        lora_dropout={"a": None},
        scaling={"a": 6 / 4},
        qalora_group_size={"a": 4},
    )
    want = variants.QALoraLinearVariant.forward(module, "a", x, run(base, x))
    assert worst(served(base, x, Entry(path)), want) < BOUND


def test_tokens_beside_a_lora(tmp_path):
    peft = pytest.importorskip("peft", "0.21")
    base = nn.ModuleDict({"emb": nn.Embedding(50, 24), "layer": nn.Linear(24, 48)})
    base.forward = lambda x: base["layer"](base["emb"](x))
    config = peft.LoraConfig(target_modules=["layer"], r=4, trainable_token_indices={"emb": [5, 9]})
    made = peft.get_peft_model(copy.deepcopy(base), config)
    state = {name: torch.randn_like(value) for name, value in peft.get_peft_model_state_dict(made).items()}
    made.save_pretrained(tmp_path)
    path = save(tmp_path / "adapter_model.safetensors", state)
    engine = Engine({"text_encoder": base})
    report = engine.activate(Stack([Entry(path)])).entries[0]
    assert (report.hit, report.unused) == (2, ())
    vectors = state["base_model.model.emb.token_adapter.trainable_tokens_delta"]
    with torch.no_grad():
        got = base["emb"](torch.tensor([5, 6, 9]))
    assert worst(got, torch.stack([vectors[0], base["emb"].weight[6].detach(), vectors[1]])) < SINGLE


@pytest.mark.parametrize(
    ("kind", "missing", "reason"),
    [
        ("fourierft", "random_loc_seed", "random_loc_seed"),
        ("waveft", "scaling", "scaling"),
        ("randlora", "randlora_alpha", "randlora_alpha"),
        ("road 1", "group_size", "group_size"),
        ("vblora", "topk", "topk"),
        ("trainable_tokens", "token_indices", "the list of tokens"),
        ("deft", "decomposition_method", "decomposition_method"),
        ("peanut", "act_fn", "want one of gelu"),
        ("peanut", "scaling", "scaling"),
    ],
)
def test_a_number_that_the_configuration_lacks_is_named(tmp_path, kind, missing, reason):
    base, _ = make(KINDS[kind][2][0])
    path = changed(saved(trained(kind, base, 1), tmp_path), **{missing: None})
    report = load_network(path, {"unet": base}).report
    assert report.hit == 0
    assert any(one.cause == "unsupported" and reason in one.reason for one in report.unused), report.unused


def test_randlora_without_its_random_matrices_says_how_to_save_it(tmp_path):
    base, _ = make("linear")
    path = saved(trained("randlora", base, 1), tmp_path)
    save(path, {name: value for name, value in load_file(path).items() if "randlora_A" not in name})
    report = load_network(path, {"unet": base}).report
    assert any("save_projection=True" in one.reason for one in report.unused), report.unused


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        ("LilyConfig", {"r": 4}, "by the tokens of each call"),
        ("OSFConfig", {}, "save the merged model"),
        ("PolyConfig", {}, "the number of a task"),
        ("PsoftConfig", {"r": 4}, "signs"),
        ("TinyLoraConfig", {"r": 4}, "convert it to a LoRA"),
        ("FrodConfig", {"progressbar": False}, "the file does not contain"),
        ("SupertuningConfig", {"sparsity": 0.9, "save_precomputed_indices": False}, "save_precomputed_indices=True"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_kinds_that_are_no_adapter_are_refused_with_the_reason(tmp_path, kind, arguments, reason):
    peft = pytest.importorskip("peft", "0.21")
    base, _ = make("linear")
    config = getattr(peft, kind)(target_modules=["layer"], **arguments)
    path = saved(peft.get_peft_model(copy.deepcopy(base).float(), config), tmp_path)
    report = load_network(path, {"unet": base}).report
    assert report.hit == 0
    own = [one for one in report.unused if ".layer." in one.key]
    assert own
    assert all(one.cause == "unsupported" and reason in one.reason for one in own), report.unused


def test_an_adamss_and_a_sampling_pvera_are_refused_with_the_reason(tmp_path):
    """PEFT needs another package to make the one."""
    base, _ = make("linear")
    keys = [f"base_model.model.layer.adamss_{name}" for name in ("A.0", "A.1", "B.0", "B.1", "newB")]
    path = save(tmp_path / "a.safetensors", {key: torch.ones(2, 3) for key in keys})
    unused = load_network(path, {"unet": base}).report.unused
    assert {one.key for one in unused} == set(keys)
    assert all("clustering the base weight" in one.reason for one in unused)
    path = changed(saved(trained("pvera", base, 1), tmp_path), sample_at_inference=True)
    report = load_network(path, {"unet": base}).report
    assert any("another change in each call" in one.reason for one in report.unused), report.unused


def test_an_x_lora_is_refused_with_the_reason(tmp_path):
    path = save(tmp_path / "a.safetensors", {"base_model.internal_xlora_classifier.layers.0.weight": torch.zeros(3, 4)})
    with pytest.raises(UnknownFormatError, match="an X-LoRA, which chooses LoRA for each token"):
        load_network(path, {"unet": make("linear")[0]})
