"""LoRA and LoCon in the forward equal the weight a merge in fp64 would give, on every layer they occur on."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lib_lora import Engine, Entry, Stack, load_network
from lib_lora.execution import low_rank
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.layers import Model

LAYERS = {
    "linear": (lambda: nn.Linear(24, 40), (3, 7, 24)),
    "linear without bias": (lambda: nn.Linear(24, 40, bias=False), (24,)),
    "linear, many tokens": (lambda: nn.Linear(24, 40), (2, 50, 24)),
    "linear, many tokens, without bias": (lambda: nn.Linear(24, 40, bias=False), (2, 50, 24)),
    "linear 4-d": (lambda: nn.Linear(24, 40), (2, 3, 5, 24)),
    "conv 1x1": (lambda: nn.Conv2d(24, 40, 1), (2, 24, 9, 7)),
    "conv 3x3": (lambda: nn.Conv2d(24, 40, 3, padding=1), (2, 24, 9, 7)),
    "conv stride": (lambda: nn.Conv2d(24, 40, 3, stride=2, padding=1), (2, 24, 9, 7)),
    "conv dilation": (lambda: nn.Conv2d(24, 40, 3, dilation=2, padding=2), (2, 24, 9, 7)),
    "conv circular": (lambda: nn.Conv2d(24, 40, 3, padding=1, padding_mode="circular"), (2, 24, 9, 7)),
    "conv same": (lambda: nn.Conv2d(24, 40, (3, 5), padding="same"), (2, 24, 9, 7)),
    "conv unbatched": (lambda: nn.Conv2d(24, 40, 3, padding=1), (24, 9, 7)),
    "conv grouped": (lambda: nn.Conv2d(24, 40, 3, padding=1, groups=4), (2, 24, 9, 7)),
    "conv 1-d": (lambda: nn.Conv1d(24, 40, 5, padding=2), (2, 24, 9)),
    "conv 3-d": (lambda: nn.Conv3d(24, 40, 3, padding=1), (2, 24, 3, 5, 4)),
}


def model(name: str, dtype: torch.dtype = torch.float64) -> tuple[Model, torch.Tensor]:
    make, size = LAYERS[name]
    return Model(make()).to(dtype).requires_grad_(False), torch.randn(size, dtype=dtype)


def merged(base: Model, deltas: list[torch.Tensor], biases: list[torch.Tensor] | None = None) -> Model:
    """Return the model with dense deltas added to its weight, in fp64."""
    other = copy.deepcopy(base).double()
    for delta in deltas:
        other.layer.weight += delta.double().reshape(other.layer.weight.shape)
    for bias in biases or []:
        other.layer.bias += bias.double()
    return other


def dense(tensors: dict[str, torch.Tensor], prefix: str, scale: float, rank: int | None = None) -> torch.Tensor:
    up, down = tensors[f"{prefix}.lora_up.weight"].double(), tensors[f"{prefix}.lora_down.weight"].double()
    return scale * up.flatten(1)[:, :rank] @ down.flatten(1)[:rank]


BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_two_entries_equal_the_merged_weight(tmp_path, name, dtype):
    base, x = model(name, dtype)
    shape = tuple(base.layer.weight.shape)
    one, two = pair("lora_unet_layer", shape, 4, alpha=2, seed=1), pair("lora_unet_layer", shape, 6, seed=2)
    engine = Engine({"unet": base})
    plain = base(x)
    engine.activate(
        Stack([Entry(save(tmp_path / "1.safetensors", one), 0.7), Entry(save(tmp_path / "2.safetensors", two), -1.3)])
    )
    want = merged(base, [0.7 * dense(one, "lora_unet_layer", 0.5), -1.3 * dense(two, "lora_unet_layer", 1)])
    assert worst(base(x), want(x.double())) < BOUNDS[dtype]
    assert worst(base(x), plain) > 1e-3, "the adapters must show"
    engine.deactivate()
    assert torch.equal(base(x), plain)


@pytest.mark.parametrize("name", ["linear", "linear, many tokens", "conv 3x3"])
def test_keyword_call_and_gradients_to_the_input(tmp_path, name):
    base, x = model(name)
    tensors = pair("lora_unet_layer", tuple(base.layer.weight.shape), 4)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    want = merged(base, [dense(tensors, "lora_unet_layer", 1)])
    assert worst(base.layer(input=x), want(x)) < 1e-12
    grads = []
    for one in (base, want):
        leaf = x.clone().requires_grad_()
        one(leaf).square().sum().backward()
        grads.append(leaf.grad)
    assert worst(*grads) < 1e-12


@pytest.mark.parametrize("alpha", [None, 0, 1, 4, 16])
def test_alpha_missing_or_zero_means_scale_one(tmp_path, alpha):
    base, x = model("linear")
    tensors = pair("lora_unet_layer", (40, 24), 4, alpha=alpha)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    want = merged(base, [dense(tensors, "lora_unet_layer", alpha / 4 if alpha else 1)])
    assert worst(base(x), want(x)) < 1e-12


@pytest.mark.parametrize("name", ["conv 3x3", "conv stride", "conv 3-d", "conv circular"])
@pytest.mark.parametrize("rank", [None, 2])
def test_tucker_core(tmp_path, name, rank):
    """LyCORIS' own definition of the core, written as it is in the paper's appendix: a sum over both rank axes."""
    base, x = model(name)
    out, inside, *kernel = base.layer.weight.shape
    made = {
        "lora_unet_layer.lora_down.weight": torch.randn(4, inside, *(1,) * len(kernel)),
        "lora_unet_layer.lora_up.weight": torch.randn(out, 4, *(1,) * len(kernel)),
        "lora_unet_layer.lora_mid.weight": torch.randn(4, 4, *kernel),
        "lora_unet_layer.alpha": torch.tensor(2.0),
    }
    down, up, mid = (made[f"lora_unet_layer.lora_{p}.weight"].double() for p in ("down", "up", "mid"))
    delta = torch.zeros(base.layer.weight.shape, dtype=torch.float64)
    for i, j in itertools.product(range(rank or 4), range(4)):
        delta += (
            0.5 * up[:, i].reshape(-1, 1, *(1,) * len(kernel)) * down[j].reshape(1, -1, *(1,) * len(kernel)) * mid[i, j]
        )
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", made), rank=rank)]))
    # the core is folded in fp32, the precision the file has
    assert worst(base(x), merged(base, [delta])(x)) < 1e-6


@pytest.mark.parametrize("rank", [1, 3, 4, 99])
def test_a_rank_cut_keeps_the_scale(tmp_path, rank):
    base, x = model("linear")
    tensors = pair("lora_unet_layer", (40, 24), 4, alpha=2)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), rank=rank)]))
    want = merged(base, [dense(tensors, "lora_unet_layer", 0.5, rank)])
    assert worst(base(x), want(x)) < 1e-12


@pytest.mark.parametrize("name", ["linear", "linear without bias", "linear, many tokens", "conv 3x3"])
def test_bias_of_the_up_side_obeys_scale_and_multiplier(tmp_path, name):
    base, x = model(name)
    shape = tuple(base.layer.weight.shape)
    tensors = pair("lora_unet_layer", shape, 4, alpha=2)
    tensors["lora_unet_layer.lora_B.bias"] = torch.randn(40)
    other = pair("lora_unet_layer", shape, 4, seed=5)
    engine = Engine({"unet": base})
    engine.activate(
        Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.3), Entry(save(tmp_path / "b.safetensors", other))])
    )
    want = merged(base, [0.3 * dense(tensors, "lora_unet_layer", 0.5), dense(other, "lora_unet_layer", 1)])
    if want.layer.bias is None:
        want.layer.bias = nn.Parameter(torch.zeros(40, dtype=torch.float64), requires_grad=False)
    want.layer.bias += 0.15 * tensors["lora_unet_layer.lora_B.bias"].double()
    assert worst(base(x), want(x)) < 1e-12


@pytest.mark.parametrize(
    ("name", "stored"),
    [("linear", (1, 1)), ("conv 1x1", ()), ("conv 3x3", "flat")],
    ids=["1x1 convolution on a linear layer", "linear on a 1x1 convolution", "flattened convolution"],
)
def test_shapes_that_mean_the_same(tmp_path, name, stored):
    base, x = model(name)
    shape = tuple(base.layer.weight.shape)
    tensors = pair("lora_unet_layer", shape, 4)
    want = merged(base, [dense(tensors, "lora_unet_layer", 1)])
    for key, tensor in tensors.items():
        tensors[key] = tensor.flatten(1) if stored == "flat" else tensor.flatten(1).reshape(*tensor.shape[:2], *stored)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    assert worst(base(x), want(x)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["linear", "linear, many tokens", "conv 1x1", "conv 3x3"])
def test_low_precision_is_no_worse_than_twice_a_careful_bake(tmp_path, name, dtype):
    base, x = model(name, dtype)
    tensors = pair("lora_unet_layer", tuple(base.layer.weight.shape), 8, alpha=8)
    delta = 0.8 * dense(tensors, "lora_unet_layer", 1)
    exact = merged(base, [delta])(x.double())
    baked = copy.deepcopy(base)
    baked.layer.weight.copy_((base.layer.weight.float() + delta.float().reshape(base.layer.weight.shape)).to(dtype))
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.8)]))
    error, baked_error = ((y.double() - exact).square().mean().sqrt() for y in (base(x), baked(x)))
    assert base(x).dtype == dtype
    assert error <= 2 * baked_error


@pytest.mark.parametrize("name", ["linear", "linear, many tokens"])
def test_autocast_computes_in_the_dtype_of_the_base_output(tmp_path, name):
    base, x = model(name, torch.float32)
    tensors = pair("lora_unet_layer", (40, 24), 4)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    want = merged(base, [dense(tensors, "lora_unet_layer", 1)])(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        got = base(x)
    assert got.dtype == torch.bfloat16
    assert worst(got, want) < 2**-6  # a handful of roundings to 8 bits
    assert worst(base(x), want) < 1e-5  # and back in fp32 nothing of that is left


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_many_tokens_take_one_product_only_where_it_loses_nothing(tmp_path, monkeypatch, dtype):
    taken = []
    original = low_rank.effective_linear
    monkeypatch.setattr(
        low_rank, "effective_linear", lambda layer, *rest: (taken.append(layer), original(layer, *rest))[1]
    )
    base, many = model("linear, many tokens", dtype)
    weight = base.layer.weight.clone()
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_layer", (40, 24), 4)))]))
    base(many[:, :10])
    assert not taken, "few tokens: the pair beside the layer is cheaper"
    got = base(many)
    assert bool(taken) == (dtype != torch.bfloat16)
    assert worst(got[:, :10], base(many[:, :10])) < {torch.bfloat16: 2**-7}.get(dtype, 1e-5)
    taken.clear()
    with torch.autocast("cpu", torch.bfloat16):
        base(many)
    assert not taken, "autocast would round the sum to half precision"
    assert torch.equal(base.layer.weight, weight)


def test_many_tokens_in_inference_mode_and_then_outside_of_it(tmp_path):
    base, many = model("linear, many tokens", torch.float32)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_layer", (40, 24), 4)))]))
    with torch.inference_mode():
        inside = base(many).clone()
    assert torch.equal(base(many), inside)


class Packed(torch.Tensor):
    """A quantized weight as torchao has it: shows fp32 to everybody, knows only how to multiply."""

    @staticmethod
    def __new__(cls, data):
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)
        made.data_int = data
        return made

    def __tensor_flatten__(self):
        return ["data_int"], None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            x, weight, *rest = args
            return function(x, weight.data_int, *rest)
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].data_int)
        raise NotImplementedError(f"{function} on a packed weight")


def test_a_packed_weight_that_shows_a_full_dtype_is_left_to_its_own_forward(tmp_path):
    base, x = model("linear, many tokens", torch.float32)
    tensors = pair("lora_unet_layer", (40, 24), 4)
    want = merged(base, [dense(tensors, "lora_unet_layer", 1)])(x.double())
    base.layer.weight = nn.Parameter(Packed(base.layer.weight.data), requires_grad=False)
    assert isinstance(base.layer.weight, Packed)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors))]))
    assert worst(base(x), want) < 1e-5


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_strength_may_change_outside_the_mode_it_was_placed_in(tmp_path, mode):
    base, x = model("linear")
    engine = Engine({"unet": base})
    tensors = pair("lora_unet_layer", (40, 24), 4)
    with mode():
        engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.0)]))
        base(x)
    engine.set_multiplier(0, 2.0)
    assert worst(base(x), merged(base, [2 * dense(tensors, "lora_unet_layer", 1)])(x)) < 1e-12


def test_multiplier_zero_equals_no_file(tmp_path):
    base, x = model("linear", torch.float32)
    plain = base(x)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_layer", (40, 24), 4)), 0)]))
    assert torch.equal(base(x), plain)


class Attention(nn.Module):
    """As OpenCLIP's block uses it."""

    def __init__(self, kdim: int = 32) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True, kdim=kdim, vdim=kdim)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.attn(x, y, y, need_weights=False)[0]


def test_attention_whose_keys_have_another_width_is_left_out_with_a_reason(tmp_path):
    made = pair("lora_unet_attn_out_proj", (32, 32), 4) | pair("lora_unet_attn_k_proj", (32, 20), 4)
    report = load_network(save(tmp_path / "a.safetensors", made), {"unet": Attention(20)}).report
    assert report.hit == 0
    assert {one.cause for one in report.unused} == {"layer_kind", "no_module"}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_attention_with_fused_weights(tmp_path, training):
    base = Attention().double().requires_grad_(False).train(training)
    x, y = torch.randn(2, 5, 32, dtype=torch.float64), torch.randn(2, 7, 32, dtype=torch.float64)
    tensors: dict[str, torch.Tensor] = {}
    for i, name in enumerate(("q", "k", "v", "out")):
        tensors |= pair(f"lora_unet_attn_{name}_proj", (32, 32), 4, alpha=2, seed=i)
    want = copy.deepcopy(base)
    deltas = {name: 0.5 * dense(tensors, f"lora_unet_attn_{name}_proj", 0.5) for name in ("q", "k", "v", "out")}
    want.attn.out_proj.weight += deltas["out"]
    want.attn.in_proj_weight += torch.cat([deltas["q"], deltas["k"], deltas["v"]])
    plain, state = base(x, y), {key: value.clone() for key, value in base.state_dict().items()}
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.5)]))
    assert worst(base(x, y), want(x, y)) < 1e-12
    assert all(torch.equal(value, state[key]) for key, value in base.state_dict().items())
    engine.deactivate()
    assert torch.equal(base(x, y), plain)


def test_copies_and_pickles_of_a_layer_have_no_adapter(tmp_path):
    base, x = model("linear")
    plain = base(x)
    engine = Engine({"unet": base})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", pair("lora_unet_layer", (40, 24), 4)))]))
    for other in (copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert torch.equal(other(x), plain)
    assert not torch.equal(base(x), plain)


def test_delta_weight_is_dense_and_works_on_meta(tmp_path):
    path = save(tmp_path / "a.safetensors", pair("lora_unet_layer", (40, 24, 3, 3), 4, alpha=2))
    meta = Model(nn.Conv2d(24, 40, 3, device="meta"))
    delta = load_network(path, {"unet": meta}).delta_weight("unet", "layer")
    assert (delta.dtype, delta.shape, delta.device.type) == (torch.float32, (40, 24, 3, 3), "cpu")
    assert worst(delta.flatten(1), dense(load_file(Path(path)), "lora_unet_layer", 0.5)) < 1e-6
