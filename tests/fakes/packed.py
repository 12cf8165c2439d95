"""Quantized models on disk, made by the programs that users have, or by the formulas that these publish."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from bitsandbytes import functional
from torch import Tensor

from .files import save

Packed = tuple[dict[str, Tensor], Tensor]
"""The tensors of a weight by what is behind its layer's name, and what they mean in fp64."""
GGUF_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Those that the package can make. It reads the following ones, too: where their codes are, and their lowest bits."""
K_TYPES = {
    "Q2_K": (slice(16, 80), 0x55),
    "Q3_K": (slice(32, 96), 0x55),
    "Q4_K": (slice(16, 144), 0x11),
    "Q5_K": (slice(48, 176), 0x11),
    "Q6_K": (slice(0, 128), 0x11),
}
_SCALES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
"""Where each of them has its numbers in float16."""
_FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def text(said: Mapping[str, object]) -> Tensor:
    return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)


def four_bits(weight: Tensor, kind: str = "nf4", *, nested: bool = False) -> Packed:
    """Quantize as Forge's checkpoints and diffusers' folders are."""
    codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
    parts = {f".{key}": one for key, one in state.as_dict(packed=True).items()}
    return {"": codes, **parts}, functional.dequantize_4bit(codes, state).double()


def eight_bits(weight: Tensor) -> Packed:
    codes, maxima, _ = functional.int8_vectorwise_quant(weight.half())
    parts = {"": codes, "|SCB": maxima, "|weight_format": torch.zeros((), dtype=torch.uint8)}
    return parts, codes.double() * maxima.double().unsqueeze(1) / 127


def comfy_int8(weight: Tensor, *, by_rows: bool = False) -> Packed:
    largest = weight.abs().amax(1, keepdim=True) if by_rows else weight.abs().max()
    scale = largest.float() / 127
    codes = (weight / scale.to(weight.dtype)).round().clamp(-128, 127).to(torch.int8)
    return {"": codes, "_scale": scale, "|comfy_quant": text({"format": "int8_tensorwise"})}, codes.double() * scale


def nvfp4(weight: Tensor) -> Packed:
    blocks, whole = weight.float().unflatten(1, (-1, 16)), weight.float().abs().max() / (448 * 6)
    scales = (blocks.abs().amax(-1) / 6 / whole).clamp(max=448).to(torch.float8_e4m3fn)
    steps = (scales.float() * whole).unsqueeze(-1)
    codes = (blocks / steps).nan_to_num().abs().unsqueeze(-1).sub(_FLOAT4).abs().argmin(-1)
    meant = (_FLOAT4[codes] * steps.double() * blocks.sign()).flatten(1)
    codes = (codes + 8 * (blocks < 0)).flatten(1).to(torch.uint8)
    parts = {"": codes[:, ::2] << 4 | codes[:, 1::2], "_scale": tiled(scales), "_scale_2": whole}
    return parts | {"|comfy_quant": text({"format": "nvfp4"})}, meant


def mxfp8(weight: Tensor) -> Packed:
    blocks = weight.float().unflatten(1, (-1, 32))
    exponents = (blocks.abs().amax(-1) / 448).clamp(min=2.0**-127).log2().ceil()
    codes = (blocks * (-exponents).exp2().unsqueeze(-1)).to(torch.float8_e4m3fn)
    meant = (codes.double() * exponents.double().exp2().unsqueeze(-1)).flatten(1)
    parts = {"": codes.flatten(1), "_scale": tiled((exponents + 127).to(torch.uint8))}
    return parts | {"|comfy_quant": text({"format": "mxfp8"})}, meant


def tiled(scales: Tensor) -> Tensor:
    """Put the scale of row r and column c where the manual of cuBLAS has it."""
    rows, columns = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    out = torch.zeros(rows * columns, dtype=torch.uint8)
    row, column = torch.meshgrid(*map(torch.arange, scales.shape), indexing="ij")
    tile = row // 128 * (columns // 4) + column // 4
    out[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = scales.view(torch.uint8)
    return out.view(scales.dtype).reshape(rows, columns)


FORMATS: dict[str, Callable[[Tensor], Packed]] = {
    "nf4": four_bits,
    "nf4 nested": lambda weight: four_bits(weight, nested=True),
    "fp4": lambda weight: four_bits(weight, "fp4"),
    "fp4 nested": lambda weight: four_bits(weight, "fp4", nested=True),
    "int8 of bitsandbytes": eight_bits,
    "int8": comfy_int8,
    "int8 by rows": lambda weight: comfy_int8(weight, by_rows=True),
    "nvfp4": nvfp4,
    "mxfp8": mxfp8,
}


def save_packed(path: Path, weights: Mapping[str, Tensor], name: str) -> tuple[Path, dict[str, Tensor]]:
    """Write weights in a format, and return what they mean in fp64. The path's ending is that of the format."""
    if name not in FORMATS:
        return save_gguf(path.with_suffix(".gguf"), weights, name)
    tensors, meant = {}, {}
    for key, weight in weights.items():
        parts, meant[key] = FORMATS[name](weight)
        tensors |= {_key(key, one): tensor for one, tensor in parts.items()}
    return save(path.with_suffix(".safetensors"), tensors), meant


def _key(key: str, part: str) -> str:
    return f"{key.removesuffix('weight')}{part[1:]}" if part.startswith("|") else f"{key}{part}"


def save_gguf(path: Path, weights: Mapping[str, Tensor], name: str) -> tuple[Path, dict[str, Tensor]]:
    kind = gguf.GGMLQuantizationType[name]
    codes = {key: gguf.quantize(weight.float().numpy(), kind) for key, weight in weights.items()}
    return write_gguf(path, codes, kind), {key: decoded(one, kind) for key, one in codes.items()}


def write_gguf(path: Path, codes: Mapping[str, Any], kind: Any, shapes: Any = MappingProxyType({})) -> Path:
    writer = gguf.GGUFWriter(path, "flux")
    for key, one in codes.items():
        if key in shapes:
            writer.add_array(f"comfy.gguf.orig_shape.{key}", list(shapes[key]))
        writer.add_tensor(key, one, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def decoded(codes: Any, kind: Any) -> Tensor:
    return torch.from_numpy(gguf.dequantize(codes, kind)).double()


def random_k(shape: tuple[int, int], name: str, seed: int = 0) -> tuple[Any, Tensor]:
    """Return random blocks of a K type, and numbers that are rounded to them."""
    kind, generator = gguf.GGMLQuantizationType[name], np.random.default_rng(seed)
    count, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (shape[0], shape[1] // count, size), dtype=np.uint8)
    for place in _SCALES[name]:
        scales = generator.uniform(0.001, 0.002, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, place : place + 2] = scales[..., None].view(np.uint8)
    other, (places, bits) = blocks.copy(), K_TYPES[name]
    other[:, :, places] ^= bits
    first, second = (decoded(one.reshape(shape[0], -1), kind) for one in (blocks, other))
    noise = torch.from_numpy(generator.uniform(-0.5, 0.5, shape))
    return blocks.reshape(shape[0], -1), first + noise * (second - first).abs()
