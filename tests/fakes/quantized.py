"""Layers in every storage a base weight may have: made by the real libraries where those run without a GPU.

Each maker takes a plain fp32 `nn.Linear` (frozen, in eval mode) and gives the layer as its library or host leaves it.
Hosts' own classes are re-created from what their sources do; only what an adapter meets is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.conftest import TORCH

OUT, INSIDE = 96, 64  # bitsandbytes' order for CPUs wants rows in 32s, GGUF's blocks are of 32


@dataclass(frozen=True)
class Format:
    """How a layer of a format is made, and what may be expected of it."""

    make: Callable[[nn.Linear], nn.Module]
    step: float
    """Largest error of a decoded weight, of the largest weight; half of a quantization step."""
    forward: float = 1e-5
    """Largest error of the layer's own forward against the decoded weight; large where it computes in fewer bits."""
    dtype: torch.dtype = torch.float32
    """Of the layer's inputs."""
    needs: str = ""
    """Package without which the layer cannot be made."""


class Model(nn.Module):
    """One layer under a name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def plain(dtype: torch.dtype) -> Callable[[nn.Linear], nn.Module]:
    return lambda layer: layer.to(dtype)


def layerwise_cast(storage: torch.dtype) -> Callable[[nn.Linear], nn.Module]:
    """diffusers' layerwise casting: a hook casts before and after each call."""

    def make(layer: nn.Linear) -> nn.Module:
        from diffusers.hooks import apply_layerwise_casting

        model = nn.Sequential(layer)
        apply_layerwise_casting(model, storage_dtype=storage, compute_dtype=torch.float32)
        return model[0]

    return make


class ForgeLinear(nn.Module):
    """Forge's `ForgeOperations.Linear`: no nn.Linear; casts, and scales, in its forward. backend/operations.py."""

    def __init__(self, layer: nn.Linear, storage: torch.dtype, scale: Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight if scale is None else layer.weight / scale
        self.weight = nn.Parameter(weight.to(storage), requires_grad=False)
        self.bias = nn.Parameter(layer.bias.to(torch.bfloat16), requires_grad=False)
        self.scale_weight = None if scale is None else nn.Parameter(scale, requires_grad=False)
        self.parameters_manual_cast = True

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x)
        if self.scale_weight is not None:
            weight = weight * self.scale_weight.to(weight)
        return F.linear(x, weight, self.bias.to(x))


class ForgeBytes(nn.Parameter):
    """Forge's `ParameterGGUF`: shows the logical shape, holds what its class baked. backend/operations_gguf.py."""

    real_shape: torch.Size
    gguf_cls: type

    @property
    def shape(self) -> torch.Size:
        return self.real_shape


class RowsOfInt8:
    """Stands for one of the classes of Forge's own gguf package: decodes a baked parameter."""

    @classmethod
    def dequantize_pytorch(cls, parameter: ForgeBytes) -> Tensor:
        scale, codes = parameter.data[:, :2].contiguous().view(torch.float16), parameter.data[:, 2:]
        return (codes * scale).view(parameter.shape)


class ForgeGGUFLinear(nn.Module):
    """Forge's `ForgeOperationsGGUF.Linear`: declares no sizes. backend/operations.py."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = (layer.weight.abs().amax(1, keepdim=True) / 127).half()
        codes = (layer.weight / scale).round().to(torch.int8)
        self.weight = ForgeBytes(torch.cat([scale.view(torch.int8), codes], 1), requires_grad=False)
        self.weight.real_shape, self.weight.gguf_cls = layer.weight.shape, RowsOfInt8
        self.bias = nn.Parameter(layer.bias.half(), requires_grad=False)
        self.parameters_manual_cast = True

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, RowsOfInt8.dequantize_pytorch(self.weight).to(x), self.bias.to(x))


class ForgeLinear4bit(nn.Module):
    """Forge's `ForgeLoader4Bit`: bitsandbytes' parameter, no sizes declared. backend/operations_bnb.py."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        from bitsandbytes.nn import Params4bit

        weight = Params4bit(layer.weight.data, compress_statistics=False, quant_type="nf4")
        self.weight = weight.to(layer.weight.device)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        import bitsandbytes

        y: Tensor = bitsandbytes.matmul_4bit(x, self.weight.t(), bias=self.bias, quant_state=self.weight.quant_state)
        return y.to(x)


class WrappedBytes(Tensor):
    """SD.Next's `GGMLTensor`: decodes itself in any operation. modules/ggml/gguf_tensor.py."""

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=codes.dtype, device=codes.device)
        made.codes, made.scale, made.tensor_shape = codes, scale, codes.shape
        return made

    def get_dequantized_tensor(self) -> Tensor:
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            one = args[0]
            return cls(function(one.codes, *args[1:], **kwargs), function(one.scale, *args[1:], **kwargs))
        return function(*[a.get_dequantized_tensor() if isinstance(a, cls) else a for a in args], **kwargs)


def wrapped_bytes(layer: nn.Linear) -> nn.Module:
    if TORCH < (2, 3):
        pytest.skip("before torch 2.3 a parameter of such a class loses what is in it")
    scale = layer.weight.abs().amax(1, keepdim=True) / 127
    codes = (layer.weight / scale).round().to(torch.int8)
    layer.weight = nn.Parameter(WrappedBytes(codes, scale), requires_grad=False)
    return layer


def sdnq(weights_dtype: str, **options: Any) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from sdnq import sdnq_post_load_quant

        model = nn.Sequential(layer)
        return sdnq_post_load_quant(
            model, weights_dtype=weights_dtype, minimum_allowed_numel=0, add_skip_keys=False, **options
        )[0].requires_grad_(False)

    return make


def earlier_sdnq(layer: nn.Linear) -> nn.Module:
    """As SDNQ converted layers before it had classes of its own: the parts, and a bound forward, on torch's layer."""
    made: Any = sdnq("uint4")(layer)

    def quantized_linear_forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.sdnq_dequantizer(self.weight, self.scale, zero_point=self.zero_point), self.bias)

    for name in ("weight", "scale", "zero_point"):
        setattr(layer, name, getattr(made, name))
    layer.sdnq_dequantizer = made.sdnq_dequantizer
    layer.forward = MethodType(quantized_linear_forward, layer)
    return layer


def bitsandbytes_8bit(layer: nn.Linear) -> nn.Module:
    from bitsandbytes.nn import Linear8bitLt

    made = Linear8bitLt(INSIDE, OUT, has_fp16_weights=False)
    made.load_state_dict(layer.state_dict())
    return made.requires_grad_(False).eval().to("cpu")


def bitsandbytes_4bit(quant_type: str, *, training: bool = False, **options: Any) -> Callable[[nn.Linear], nn.Module]:
    """In training mode the order of the codes stays the file's; else some CPUs change it at the first call."""

    def make(layer: nn.Linear) -> nn.Module:
        from bitsandbytes.nn import Linear4bit

        made = Linear4bit(INSIDE, OUT, quant_type=quant_type, compute_dtype=torch.float32, **options)
        made.load_state_dict(layer.state_dict())
        return made.requires_grad_(False).train(training).to("cpu")

    return make


def gguf(quant_type: str) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        kind = GGMLQuantizationType[quant_type]
        made = GGUFLinear(INSIDE, OUT, bias=True, compute_dtype=torch.float32)
        made.weight = GGUFParameter(torch.from_numpy(quantize(layer.weight.numpy(), kind)), quant_type=kind)
        made.bias = layer.bias
        return made.requires_grad_(False)

    return make


def torchao(config: str, **options: str) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from torchao import quantization

        model = nn.Sequential(layer)
        dtypes = {option: getattr(torch, name) for option, name in options.items()}
        quantization.quantize_(model, getattr(quantization, config)(**dtypes))
        return model[0].requires_grad_(False)

    return make


def quanto(weights: str, *, frozen: bool = True) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from optimum.quanto import freeze, qtypes, quantize

        model = nn.Sequential(layer)
        quantize(model, weights=qtypes[weights])
        if frozen:
            freeze(model)
        return model[0].requires_grad_(False)

    return make


_INT8, _INT4, _E4M3, _E5M2 = 0.6 / 127, 0.6 / 7, 2**-4, 2**-3
_BF16 = 2**-7  # a product in bf16

FORMATS = {
    "fp32": Format(plain(torch.float32), step=0.0),
    "fp16": Format(plain(torch.float16), step=2**-11, forward=2**-10, dtype=torch.float16),
    "bf16": Format(plain(torch.bfloat16), step=2**-8, forward=_BF16, dtype=torch.bfloat16),
    "fp8 e4m3 layerwise": Format(layerwise_cast(torch.float8_e4m3fn), step=_E4M3),
    "fp8 e5m2 layerwise": Format(layerwise_cast(torch.float8_e5m2), step=_E5M2),
    "Forge manual cast": Format(lambda layer: ForgeLinear(layer, torch.bfloat16), step=2**-8),
    "Forge fp8": Format(lambda layer: ForgeLinear(layer, torch.float8_e4m3fn), step=_E4M3),
    "Forge scaled fp8": Format(
        lambda layer: ForgeLinear(layer, torch.float8_e4m3fn, layer.weight.abs().max() / 448), step=_E4M3
    ),
    "Forge GGUF": Format(ForgeGGUFLinear, step=_INT8),
    "Forge nf4": Format(ForgeLinear4bit, step=0.16, needs="bitsandbytes"),
    "SD.Next GGUF": Format(wrapped_bytes, step=_INT8),
    "SDNQ int8": Format(sdnq("int8"), step=_INT8, needs="sdnq"),
    "SDNQ int8 transposed": Format(sdnq("int8", use_quantized_matmul=True), step=_INT8, needs="sdnq"),
    "SDNQ fp8": Format(sdnq("float8_e4m3fn"), step=_E4M3, needs="sdnq"),
    "SDNQ uint4": Format(sdnq("uint4"), step=_INT4, needs="sdnq"),
    "SDNQ uint4 with SVD": Format(sdnq("uint4", use_svd=True), step=_INT4, needs="sdnq"),
    "SDNQ uint4 rotated": Format(sdnq("uint4", use_hadamard=True), step=0.25, needs="sdnq"),
    "SDNQ uint4, earlier": Format(earlier_sdnq, step=_INT4, needs="sdnq"),
    "bitsandbytes int8": Format(bitsandbytes_8bit, step=_INT8, forward=0.03, needs="bitsandbytes"),
    "bitsandbytes nf4": Format(bitsandbytes_4bit("nf4"), step=0.16, forward=_BF16, needs="bitsandbytes"),
    "bitsandbytes fp4": Format(
        bitsandbytes_4bit("fp4", compress_statistics=False), step=0.18, forward=_BF16, needs="bitsandbytes"
    ),
    "bitsandbytes nf4 as floats": Format(
        bitsandbytes_4bit("nf4", training=True, quant_storage=torch.float32), step=0.16, needs="bitsandbytes"
    ),
    "GGUF Q8_0": Format(gguf("Q8_0"), step=_INT8, needs="gguf"),
    "GGUF Q4_0": Format(gguf("Q4_0"), step=0.14, needs="gguf"),
    "GGUF Q5_1": Format(gguf("Q5_1"), step=_INT4 / 2, needs="gguf"),
    "torchao int8": Format(torchao("Int8WeightOnlyConfig"), step=_INT8, needs="torchao"),
    "torchao int8 product": Format(
        torchao("Int8DynamicActivationInt8WeightConfig"), step=_INT8, forward=0.03, needs="torchao"
    ),
    "torchao int4": Format(torchao("IntxWeightOnlyConfig", weight_dtype="int4"), step=0.14, needs="torchao"),
    "torchao fp8": Format(torchao("Float8WeightOnlyConfig"), step=_E4M3, needs="torchao"),
    "quanto int8": Format(quanto("qint8"), step=_INT8, needs="optimum.quanto"),
    "quanto int4": Format(quanto("qint4"), step=_INT4, needs="optimum.quanto"),
    "quanto fp8": Format(quanto("qfloat8"), step=_E4M3, needs="optimum.quanto"),
    "quanto int8, not frozen": Format(quanto("qint8", frozen=False), step=_INT8, needs="optimum.quanto"),
}


def dense_layer() -> nn.Linear:
    """The same fp32 layer each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(INSIDE, OUT).requires_grad_(False).eval()


def made(name: str) -> Model:
    """A model of one layer in a format; the test is skipped where its library is missing."""
    one = FORMATS[name]
    if one.needs:
        pytest.importorskip(one.needs, exc_type=ImportError)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some corrections start from random vectors
        return Model(one.make(dense_layer()))


def plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what a tensor holds: itself, or the packed ones it stands for."""
    if isinstance(tensor, WrappedBytes):
        yield from ((f"{name}.codes", tensor.codes), (f"{name}.scale", tensor.scale))
    elif hasattr(tensor, "__tensor_flatten__"):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(f"{name}.{inner}", getattr(tensor, inner))
    else:
        yield name, tensor.detach()


def contents(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[torch.dtype, bytes]]:
    """Every bit of named tensors, a state dict's or a module's, by name."""
    return {
        inner: (tensor.dtype, tensor.as_subclass(Tensor).cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, value in tensors
        for inner, tensor in plain_tensors(name, value)
    }
