"""Files that Remora saves beside the files of PEFT, kohya's scripts and LyCORIS, made of the same sources.

Two LoRA of random numbers and a LoHa are for a UNet as Stable Diffusion's, a fifth as wide. They are resized, merged
and converted, and the difference of the UNet and a changed one is extracted.

error    the size of what is missing, as a share of the size of the change that is meant, over all layers that each
         program writes; sizes are roots of sums of squares
least    the least error that a LoRA of that rank has in each layer
seconds  of one core, from the sources on the disk to the new file; Remora reads that back and compares it, too

With --kinds other files are measured: every form of every kind alone on each kind of layer, and every pair of kinds on
one layer. The tests define the kinds in fp64. An error is the share of the change that is missing in the layer's
output, with the file or with the stack. The largest error of all layers or pairs is shown.

With --kohya kohya's scripts are run from a copy of github.com/kohya-ss/sd-scripts. Their model loading and their hashes
are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _common import Record, parse, parser, report, table
from _models import SD15, TINY, kohya_key, twin, write_lora
from _peers import kohya
from _saved_kinds import HEADERS as OF_KINDS
from _saved_kinds import saved_kinds
from diffusers import UNet2DConditionModel
from peft import LoHaConfig, LoraConfig, convert_to_lora, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lib_lora import Entry, combine_files, convert_file, extract_lora

NARROW = SD15 | {"block_out_channels": (64, 128, 256, 256)}
STRENGTHS = (0.8, 0.5)
NOISE = 0.05
"""The size of what else is changed of a tuned model, as a share of the two LoRA."""
HEADERS = ("task", "program", "layers", "error", "least", "seconds")
_PEFT = "base_model.model."

Changes = Mapping[str, Tensor]
"""Names of layers -> what is changed of the weight, in fp64."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=1)
    made.set_defaults(rank=16, threads=1)
    made.add_argument("--kohya", metavar="FOLDER", help="a copy of sd-scripts")
    made.add_argument("--kinds", action="store_true", help="save every kind and every pair of kinds instead")
    options = parse(made, arguments)
    if options.kinds:
        rows = saved_kinds(options)
        report("saving", options, table(OF_KINDS, _cells(rows, OF_KINDS)), rows)
        return 0
    scripts = None if options.kohya is None else kohya(Path(options.kohya))
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = [row for task in Bench(options, scripts, Path(folder)).tasks() for row in measured(task)]
    report("saving", options, table(HEADERS, _cells(rows, HEADERS)), rows)
    return 0


@dataclass(frozen=True, slots=True)
class Task:
    """A file that is made, and the ways to make it."""

    name: str
    wanted: Changes
    rank: int | None
    """Of each layer; None where the file has all of the change."""
    ways: Mapping[str, Callable[[], Changes]]
    """Programs -> makes the file, and returns what it changes."""


def measured(task: Task) -> Iterator[Record]:
    """Run each program, and compare what its file changes."""
    for program, make in task.ways.items():
        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = {name: one.detach() for name, one in make().items()}
        seconds = time.process_time() - began
        missed = sum([float((task.wanted[name] - one.reshape(task.wanted[name].shape)).square().sum())
                      for name, one in found.items()])  # fmt: skip
        own = {name: task.wanted[name] for name in found}
        size = sum([float(one.square().sum()) for one in own.values()])
        yield {
            "task": task.name,
            "program": program,
            "layers": len(found),
            "error": math.sqrt(missed / size),
            "least": least(own, task.rank) / math.sqrt(size),
            "seconds": seconds,
        }


def least(changes: Changes, rank: int | None) -> float:
    """Return the size of what a rank cannot have."""
    if rank is None:
        return 0.0
    return math.sqrt(
        sum([float(torch.linalg.svdvals(one.flatten(1))[rank:].square().sum()) for one in changes.values()])
    )


class Bench:
    """The sources, and what is made of them."""

    def __init__(self, options: argparse.Namespace, scripts: Any, folder: Path) -> None:
        self.folder, self.rank, self.kohya = folder, options.rank, scripts
        self.unet: Any = UNet2DConditionModel(**(TINY if options.tiny else NARROW)).requires_grad_(False)
        self.unet.save_pretrained(folder / "base" / "unet")
        inside = (name for name, one in self.unet.named_modules() if isinstance(one, (nn.Linear, nn.Conv2d)))
        self.layers = [name for name in inside if ".attentions." in name or ".resnets." in name or "samplers" in name]
        self.linear = [name for name in self.layers if self.unet.get_parameter(f"{name}.weight").ndim == 2]
        self.files = [write_lora(folder, name, self.unet, self.layers, options.rank) for name in ("first", "second")]
        self.first, second = [self.read(file.kohya) for file in self.files]
        self.both = {name: STRENGTHS[0] * one + STRENGTHS[1] * second[name] for name, one in self.first.items()}

    def tasks(self) -> Iterator[Task]:
        """Yield what is measured."""
        few, half = max(self.rank // 4, 1), max(self.rank // 2, 1)
        yield Task(f"rank {self.rank} to {few}", self.first, few, self._resizing(few))
        yield Task("sum of two", self.both, None, self._merging(None))
        yield Task(f"sum of two, rank {half}", self.both, half, self._merging(half))
        yield Task(f"LoHa to LoRA, rank {half}", self._loha, half, self._converting(half))
        yield Task(f"difference, rank {half}", self._tuned, half, self._extracting(half))

    def read(self, file: Path | Mapping[str, Tensor]) -> Changes:
        """Return the changes by a LoRA in kohya's spelling."""
        tensors = load_file(file) if isinstance(file, Path) else file
        names = {kohya_key(name): name for name in self.layers}
        found = {}
        for key in {key.partition(".")[0] for key in tensors} & names.keys():
            if f"{key}.diff" in tensors:
                found[names[key]] = tensors[f"{key}.diff"].double()
                continue
            up, down = (tensors[f"{key}.lora_{part}.weight"].double().flatten(1) for part in ("up", "down"))
            weight = self.unet.get_parameter(f"{names[key]}.weight")
            found[names[key]] = (up @ down * (float(tensors[f"{key}.alpha"]) / len(down))).reshape(weight.shape)
        return found

    def _resizing(self, rank: int) -> dict[str, Callable[[], Changes]]:
        source, out = self.files[0].kohya, self.folder / "resized.safetensors"
        other = self.folder / "resized of kohya.safetensors"

        def ours() -> Changes:
            return self.read(convert_file(source, out, rank=rank, dtype=torch.float32).path)

        def of_kohya() -> Changes:
            chosen = {"new_rank": rank, "new_conv_rank": rank, "save_precision": "float", "device": "cpu"}
            dynamic = {"dynamic_method": None, "dynamic_param": None, "verbose": False}
            self.kohya.resize(argparse.Namespace(model=str(source), save_to=str(other), **chosen, **dynamic))
            return self.read(other)

        return {"Remora": ours} | ({"kohya resize_lora": of_kohya} if self.kohya else {})

    def _merging(self, rank: int | None) -> dict[str, Callable[[], Changes]]:
        out, other = self.folder / f"merged {rank}.safetensors", self.folder / "merged of kohya.safetensors"
        entries = [Entry(file.kohya, strength) for file, strength in zip(self.files, STRENGTHS, strict=True)]

        def ours() -> Changes:
            return self.read(combine_files(entries, out, "sum" if rank is None else "svd", rank=rank).path)

        def of_kohya() -> Changes:
            files = [str(file.kohya) for file in self.files]
            chosen = {"new_rank": rank, "new_conv_rank": rank, "lbws": None, "device": None, "no_metadata": True}
            dtypes = {"precision": "float", "save_precision": "float"}
            given = argparse.Namespace(models=files, ratios=list(STRENGTHS), save_to=str(other), **chosen, **dtypes)
            self.kohya.merge(given)
            return self.read(other)

        of_others = {"kohya svd_merge_lora": of_kohya} if self.kohya and rank is not None else {}
        return {"Remora": ours, "PEFT add_weighted_adapter": partial(self._of_peft, rank), **of_others}

    def _of_peft(self, rank: int | None) -> Changes:
        model: Any = twin(self.unet)
        names = ("first", "second")
        for file, name in zip(self.files, names, strict=True):
            config = LoraConfig(r=file.rank, lora_alpha=file.alpha, target_modules=list(file.layers))
            if name == "first":
                model = get_peft_model(model, config, name)
            else:
                model.add_adapter(name, config)
            state = {f"{_PEFT}{key}": tensor.float() for key, tensor in load_file(file.peft).items()}
            set_peft_model_state_dict(model, state, adapter_name=name)
        how = "cat" if rank is None else "svd"
        model.add_weighted_adapter(list(names), list(STRENGTHS), "both", how, svd_rank=rank)
        model.save_pretrained(self.folder / "merged of PEFT", selected_adapters=["both"])
        inner = model.base_model.model
        return {name: inner.get_submodule(name).get_delta_weight("both").double() for name in self.layers}

    @cached_property
    def _loha_model(self) -> Any:
        config = LoHaConfig(r=max(self.rank // 4, 1), alpha=8, target_modules=self.linear, init_weights=False)
        unet: Any = twin(self.unet)
        model = get_peft_model(unet, config)
        model.save_pretrained(self.folder / "loha")
        return model

    @property
    def _loha(self) -> Changes:
        inner = self._loha_model.base_model.model
        wanted = {name: inner.get_submodule(name).get_delta_weight("default") for name in self.linear}
        return {name: one.detach().double() for name, one in wanted.items()}

    def _converting(self, rank: int) -> dict[str, Callable[[], Changes]]:
        source, out = self.folder / "loha" / "adapter_model.safetensors", self.folder / "converted.safetensors"

        def of_peft() -> Changes:
            _, state = convert_to_lora(self._loha_model, rank)
            file = self.folder / "converted of PEFT.safetensors"
            save_file({key: one.contiguous() for key, one in state.items()}, file)
            keys = {name: f"{_PEFT}{name}.lora_%s.weight" for name in self.linear}
            return {name: state[key % "B"].double() @ state[key % "A"].double() for name, key in keys.items()}

        return {
            "Remora": lambda: self.read(convert_file(source, out, rank=rank, components={"unet": self.unet}).path),
            "PEFT convert_to_lora": of_peft,
        }

    @cached_property
    def _tuned(self) -> Changes:
        """Write a model with other weights, and return by what they differ."""
        tuned: Any = UNet2DConditionModel.from_config(self.unet.config)
        tuned.load_state_dict(self.unet.state_dict())
        tuned.requires_grad_(False)
        for name, change in self.both.items():
            weight = tuned.get_parameter(f"{name}.weight")
            noise = torch.randn(weight.shape) * (NOISE * float(change.norm()) / math.sqrt(weight.numel()))
            weight += change.reshape(weight.shape).float() + noise
        tuned.save_pretrained(self.folder / "tuned" / "unet")
        return {
            name: (tuned.get_parameter(f"{name}.weight").double() - self.unet.get_parameter(f"{name}.weight").double())
            for name in self.layers
        }

    def _extracting(self, rank: int) -> dict[str, Callable[[], Changes]]:
        base, tuned = self.folder / "base", self.folder / "tuned"
        other = self.folder / "extracted of kohya.safetensors"

        def ours() -> Changes:
            return self.read(extract_lora(base, tuned, self.folder / "extracted.safetensors", rank=rank).path)

        def of_kohya() -> Changes:
            models = {"model_org": str(base), "model_tuned": str(tuned), "save_to": str(other)}
            self.kohya.extract(**models, dim=rank, conv_dim=rank, v2=False, sdxl=False, no_metadata=True, min_diff=0.0)
            return self.read(other)

        def of_lycoris() -> Changes:
            from lycoris.utils import extract_diff

            models = [UNet2DConditionModel.from_pretrained(one, subfolder="unet") for one in (base, tuned)]
            ranks = {"linear_mode_param": rank, "conv_mode_param": rank}
            tensors = extract_diff([], [], *models, mode="fixed", small_conv=False, **ranks)
            save_file(tensors, self.folder / "extracted of LyCORIS.safetensors")
            return self.read(tensors)

        of_others = {"kohya extract_lora_from_models": of_kohya} if self.kohya else {}
        return {"Remora": ours, **of_others, "LyCORIS extract_diff": of_lycoris}


def _cells(rows: Sequence[Record], headers: Sequence[str]) -> list[list[str]]:
    return [[row[key] if isinstance(row[key], str) else _number(row[key]) for key in headers] for row in rows]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
