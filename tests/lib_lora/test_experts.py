"""LoRA of PEFT's `target_parameters`: weights of experts in one tensor, as PEFT's own forward has them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import Tensor, nn

from lib_lora import Engine, Entry, PerImage, Region, RegionError, RowsError, Stack, Strength, load_network
from lib_lora.execution.hooks import slot_of
from lib_lora.files.formats._peft_parameters import names_of
from lib_lora.files.formats.base import NumberingError
from lib_lora.naming.index import LayerIndex
from tests.fakes.accelerator import device, simulated
from tests.fakes.contract import run, worst
from tests.fakes.files import save
from tests.fakes.models import exact_arithmetic

# PEFT takes patterns for parameters, and says that they matched no module
pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys")

BOUND = 1e-9
_OF_ANOTHER_SIZE = ("made for a", "of a layer whose tensors do not fit each other")
"""Largest difference over the largest value; both sides compute in fp64."""


class Experts(nn.Module):
    """Gated feed-forward experts whose weights lie in two parameters, beside a bias that is no weight of experts."""

    def __init__(self, count: int, width: int, inner: int, *, transposed: bool | None) -> None:
        super().__init__()
        if transposed is not None:
            self.is_transposed = transposed
        shapes = {"gate_up_proj": (2 * inner, width), "down_proj": (width, inner)}
        for name, (out, inside) in shapes.items():
            shape = (count, inside, out) if transposed else (count, out, inside)
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / inside**0.5))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(count, 2 * inner))

    def forward(self, hidden_states: Tensor, chosen: Tensor) -> Tensor:
        """Compute tokens (n, width) by the expert that is chosen for each, (n,)."""
        total = torch.zeros_like(hidden_states)
        for i, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            if getattr(self, "is_transposed", False):
                gate_up, down = gate_up.T, down.T
            gate, up = F.linear(hidden_states, gate_up, self.gate_up_proj_bias[i]).chunk(2, -1)
            total = total + F.linear(F.silu(gate) * up, down) * (chosen == i).to(total).unsqueeze(1)
        return total


class Denoiser(nn.Module):
    """A linear layer, and experts behind it."""

    def __init__(self, count: int, width: int, inner: int, *, transposed: bool | None) -> None:
        super().__init__()
        self.count, self.proj = count, nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"experts": Experts(count, width, inner, transposed=transposed)})
        self.double().requires_grad_(False)

    def forward(self, sample: Tensor) -> Tensor:
        """Compute a picture (rows, width, height, columns)."""
        x = self.proj(sample.permute(0, 2, 3, 1)).flatten(0, 2)
        chosen = torch.arange(x.shape[0]).remainder(self.count).to(x.device)
        y: Tensor = self.mlp["experts"](x, chosen) + x
        return y.view(sample.shape[0], *sample.shape[2:], -1).permute(0, 3, 1, 2)


# (experts, out, in); the same in a module that says so; (experts, in, out); square, and large enough for several blocks
MODELS: dict[str, dict[str, Any]] = {
    "out, in": {"count": 3, "width": 12, "inner": 10, "transposed": None},
    "in, out": {"count": 3, "width": 12, "inner": 10, "transposed": True},
    "square": {"count": 8, "width": 96, "inner": 96, "transposed": False},
    "square, in, out": {"count": 2, "width": 12, "inner": 12, "transposed": True},
}
BOTH = ("mlp.experts.gate_up_proj", "experts.down_proj")


def model(name: str = "out, in") -> tuple[Denoiser, Tensor]:
    torch.manual_seed(0)
    made = Denoiser(**MODELS[name])
    return made, torch.randn(2, MODELS[name]["width"], 3, 4).double()


def trained(base: nn.Module, seed: int, targets: tuple[str, ...] = BOTH, **more: Any) -> Any:
    """Return PEFT's model with random adapters on `targets` and the linear layer, of unlike ranks and alphas."""
    peft = pytest.importorskip("peft", "0.21")
    own = {"r": 2, "lora_alpha": 3, "rank_pattern": {"down_proj": 4}, "alpha_pattern": {"experts.gate_up_proj": 5}}
    config = peft.LoraConfig(target_modules=["proj"], target_parameters=list(targets), **{**own, **more})
    made = peft.get_peft_model(copy.deepcopy(base), config).eval()
    torch.manual_seed(seed)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter) * 0.2
    return made


def saved(made: Any, folder: Path) -> Path:
    made.save_pretrained(folder)
    return folder / "adapter_model.safetensors"


def reset(path: Path, **values: object) -> Path:
    """Set values of the configuration; without any, remove the file."""
    config = path.parent / "adapter_config.json"
    if values:
        config.write_text(json.dumps(json.loads(config.read_text()) | values))
    else:
        config.unlink()
    return path


@pytest.mark.parametrize("name", MODELS)
def test_forward_of_peft_live_and_merged_and_its_exact_removal(tmp_path, name):
    base, x = model(name)
    one, other = trained(base, 1), trained(base, 2, use_rslora=True, r=3)
    first, second = saved(one, tmp_path / "1"), saved(other, tmp_path / "2")
    plain, bits = run(base, x), {key: value.clone() for key, value in base.state_dict().items()}
    engine = Engine({"transformer": base})

    def weighed(*made: tuple[Any, float]) -> Tensor:
        """Return the output with all weights at once as PEFT merges them."""
        changed = copy.deepcopy(base)
        for adapted, strength in made:
            whole = dict(copy.deepcopy(adapted).merge_and_unload().named_parameters())
            for key, parameter in changed.named_parameters():
                parameter.data += strength * (whole[key] - bits[key])
        return run(changed, x)

    wanted = {
        "one": ([Entry(first)], run(one, x)),
        "half": ([Entry(first, 0.5)], weighed((one, 0.5))),
        "two": ([Entry(first, 0.5), Entry(second, -1.5)], weighed((one, 0.5), (other, -1.5))),
    }
    for entries, want in wanted.values():
        for mode in ("live", "merged"):
            report = engine.activate(Stack(entries, mode=mode))
            assert [(own.hit, own.layers, own.unused) for own in report.entries] == [(3, 3, ())] * len(entries)
            assert (report.changed, report.merged) == (2, 2 * (mode == "merged"))
            assert worst(run(base, x), want) < BOUND, (mode, entries)
            assert worst(want, plain) > 1e-2, "the adapters must show"
    engine.activate(Stack([Entry(second)], mode="live"))
    assert worst(run(base, x), run(other, x)) < BOUND
    engine.set_multiplier(0, 0.0)
    assert torch.equal(run(base, x), plain)
    engine.deactivate()
    assert torch.equal(run(base, x), plain)
    assert all(torch.equal(value, bits[key]) for key, value in base.state_dict().items())


def test_first_ranks_alone_act_where_an_entry_says_so(tmp_path):
    base, x = model()
    made = trained(base, 1, rank_pattern={})
    path = saved(made, tmp_path)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            count = parameter.shape[1] // 2
            parameter.data[:, count:] = 0  # one rank after the other, and in each one expert after the other
    engine = Engine({"transformer": base})
    engine.activate(Stack([Entry(path, rank=1)]))
    assert worst(run(base, x), run(made, x)) < BOUND


def test_adapters_follow_the_experts_to_a_device_and_back(tmp_path):
    base, x = model()
    path = saved(trained(base, 1), tmp_path)
    engine = Engine({"transformer": base})
    engine.activate(Stack([Entry(path, 0.7)]))
    with exact_arithmetic():
        want = run(base, x)
        with simulated():
            for where in (device(), torch.device("cpu"), device()):
                base.to(where)
                assert torch.equal(run(base, x.to(where)).cpu(), want), where
            engine.deactivate()
            base.to("cpu")
    assert slot_of(base.mlp["experts"]) is None


def test_rows_and_regions_are_refused_where_tokens_are_in_the_order_of_experts(tmp_path):
    base, x = model()
    path = saved(trained(base, 1), tmp_path)
    engine = Engine({"transformer": base})
    engine.activate(Stack([Entry(path, PerImage((0.5, 0.5)))]))
    whole = run(base, x)
    engine.activate(Stack([Entry(path, 0.5)]))
    assert worst(whole, run(base, x)) < BOUND, "rows of one strength are not told apart"
    engine.set_multiplier(0, PerImage((0.5, 1.0)))
    with pytest.raises(RowsError, match=r"input \(24, 12\) of a Experts cannot be divided among 2 rows"):
        run(base, x)
    engine.activate(Stack([Entry(path, Strength(0.5, region=Region.rectangle(0, 0, 0.5, 1)))]))
    with pytest.raises(RegionError, match="weights of experts in a Experts, whose tokens have no order"):
        run(base, x)


# --- which weight a LoRA is for ---------------------------------------------------------------------------------------


def hit(path: Path, base: nn.Module) -> tuple[set[str], list[tuple[str, str]]]:
    """Return the weights of experts that a file changes, and why keys are unused."""
    network = load_network(path, {"transformer": base})
    names = {one.target.name.rpartition(".")[2] for one in network.bindings if one.target.kind == "experts"}
    return names, sorted({(one.reason, one.detail) for one in network.report.unused})


def test_the_configuration_or_the_shapes_tell_which_weight_is_meant(tmp_path):
    base, x = model()
    both = saved(trained(base, 1), tmp_path / "both")
    assert hit(reset(both), base) == ({"gate_up_proj", "down_proj"}, [])
    for name in ("gate_up_proj", "down_proj"):
        made = trained(base, 1, (f"experts.{name}",))
        path = saved(made, tmp_path / name)
        engine = Engine({"transformer": base})
        engine.activate(Stack([Entry(path)]))
        assert worst(run(base, x), run(made, x)) < BOUND
        engine.deactivate()
        assert hit(reset(path), base) == ({name}, []), "gate_up_proj is (20, 12), down_proj (12, 10)"


def test_square_matrices_are_read_as_the_version_that_saved_the_file_reads_them(tmp_path):
    """PEFT 0.17, which wrote no version, and 0.18 took each parameter for (experts, in, out)."""
    marked, _ = model("square, in, out")
    path = saved(trained(marked, 1), tmp_path)
    plain, _ = model("square, in, out")
    del plain.mlp["experts"].is_transposed

    def delta(base: nn.Module) -> Tensor:
        network = load_network(path, {"transformer": base})
        return network.delta_weight("transformer", "mlp.experts.down_proj", torch.float64)

    want = delta(marked)
    early = (None, "0.18.1")
    for version in (*early, "0.19.0", "0.21.2.dev0@1a", "1.0.0", "?", f"0.{'9' * 5000}", f"{'9' * 5000}.1"):
        reset(path, peft_version=version)
        assert torch.equal(delta(plain), want if version in early else want.mT), version
        assert torch.equal(delta(marked), want)
    assert not torch.equal(want, want.mT)
    reset(path)
    assert worst(delta(plain), want.mT * (4 / 3)) < BOUND, "alpha 3 and rank 4 are not known either"


def test_what_cannot_be_told_apart_is_left_out_with_the_reason(tmp_path):
    base, _ = model("out, in")
    base.mlp["experts"].out_proj = nn.Parameter(torch.randn(3, 12, 10).double())
    made = trained(base, 1, ("experts.down_proj",))
    path = saved(made, tmp_path)
    names = "transformer.mlp.experts: gate_up_proj, down_proj, out_proj"
    assert hit(path, base) == ({"down_proj"}, [])
    wrong = "for other weights of experts than its target_parameters name in this model"
    for targets in (BOTH, ("experts.gate_up_proj_bias",), ("experts.none",), ("down_proj", 3, "s.gate_up_proj")):
        expected = ({"down_proj"}, []) if targets[0] == "down_proj" else (set(), [(wrong, names)])
        assert hit(reset(path, target_parameters=targets), base) == expected, targets
    text = "for some weights of a module of experts, and nothing tells which"
    text = f"{text}; put PEFT's adapter_config.json beside the file"
    assert hit(reset(path, target_parameters=None), base) == (set(), [(text, names)])
    reset(path)
    assert hit(path, base) == (set(), [(text, names)])
    tensors = load_file(path)
    part = {key: value for key, value in tensors.items() if "experts" in key}
    inner = {key.replace(".lora_", ".base_layer.lora_"): value for key, value in part.items()}
    alone = save(
        tmp_path / "alone.safetensors", {key: value for key, value in tensors.items() if "proj" in key} | inner
    )
    assert hit(alone, base) == (set(), [("for a module of experts, and others beside it are missing", names)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lora_A": (7, 10), "lora_B": (12, 7)}, _OF_ANOTHER_SIZE),  # no multiple of 3 experts
        ({"lora_A": (6, 10), "lora_B": (12, 9)}, _OF_ANOTHER_SIZE),
        ({"lora_A": (6, 9), "lora_B": (12, 6)}, _OF_ANOTHER_SIZE),
        ({"lora_A": (6, 10, 1), "lora_B": (12, 6)}, _OF_ANOTHER_SIZE),
        ({"lora_A": (6, 10), "lora_B": (12, 6), "lora_magnitude_vector": (12,)}, "not defined for experts layers"),
        ({"lora_A": (6, 10), "lora_B": (12, 6), "bias": (12,)}, "of experts, on which a LoRA is lora_A and lora_B"),
    ],
)
def test_pairs_that_fit_no_weights_of_experts_say_so(tmp_path, changes, reason):
    base, _ = model()
    del base.mlp["experts"].gate_up_proj
    layer = "base_model.model.mlp.experts."
    keys = {"bias": "lora_B.bias"}
    tensors = {f"{layer}{keys.get(name, f'{name}.weight')}": torch.ones(shape) for name, shape in changes.items()}
    names, unused = hit(save(tmp_path / "a.safetensors", tensors), base)
    assert names == set()
    assert [one for one, _ in unused if one.startswith(reason)], unused


def test_other_modules_have_no_weights_of_experts():
    """Tables of one row, convolutions the other way round and the model's own parameters are none."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(1, 6, 4))
            self.up = nn.ConvTranspose1d(4, 4, 3)
            self.numbers = nn.Parameter(torch.zeros(2, 3, 4, dtype=torch.int8), requires_grad=False)

    block = Block()
    outer = nn.ModuleDict({"block": block})
    outer.register_parameter("own", nn.Parameter(torch.zeros(2, 3, 4)))
    assert LayerIndex("transformer", outer).targets == ()
    block.weights = nn.Parameter(torch.zeros(2, 3, 4))
    assert [one.name for one in LayerIndex("transformer", outer).targets] == ["block.weights"]


class Weights:
    """A weight of experts, as far as a format looks at it."""

    kind = "experts"

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape


@pytest.mark.parametrize(
    ("own", "shapes", "want"),
    [
        ([(2, 3), (4, 5), (6, 7)], [(4, 5), (2, 3)], "ab"),  # the keys' outermost LoRA is the last one
        ([(2, 3), (4, 5), (6, 7)], [(7, 6), (2, 3)], "ac"),
        ([(2, 3), (2, 3), (4, 5)], [(4, 5), (2, 3)], None),
        ([(2, 3), (4, 5), (2, 3)], [(4, 5), (2, 3)], "ab"),
        ([(2, 3), (4, 5), (2, 3)], [(2, 3)], None),
        ([(2, 3), (4, 5), (2, 3)], [(2, 3), (2, 3)], "ac"),
        ([(2, 3), (4, 5)], [(5, 5)], None),
        ([(2, 3), (4, 5)], [None], None),
        ([(2, 3)], [(2, 3), (2, 3)], None),
    ],
)
def test_the_order_and_the_shapes_choose_if_one_choice_is_left(own, shapes, want):
    layers: Mapping[str, Weights] = {
        f"x.{name}": Weights(name, (8, *shape)) for name, shape in zip("abc", own, strict=False)
    }
    wrapped = {"x" + ".base_layer" * i: shape for i, shape in enumerate(shapes)}
    found = names_of(SimpleNamespace(component="unet", dotted=layers, find=layers.get), wrapped, None, {})
    if want is None:
        assert all(isinstance(one, NumberingError) for one in found.values())
    else:
        assert "".join(str(found[key])[-1] for key in reversed(wrapped)) == want
