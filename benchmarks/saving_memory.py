"""Time and memory in which a model of full size is baked, and its difference extracted, in processes of their own.

The weights are random and in half precision. The LoRA is on all linear layers and convolutions. FLUX is the whole
transformer, which takes 48 GB of disk, or six of its 57 blocks at full width.

program  with --kohya also kohya's scripts, from a copy of github.com/kohya-ss/sd-scripts, for the UNet alone
seconds  of processor time, of one core if --threads is 1
wall     seconds by the clock
memory   the most that the process had, in GB
imports  the same before the work: Python, torch and the program
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _blocks import FLUX_BLOCKS, SMALL_FLUX
from _common import DTYPES, ROOT, Record, parse, parser, report, table
from _models import SD15, TINY, write_lora
from _sdxl import Sdxl, sdxl_key
from diffusers import FluxTransformer2DModel, ModelMixin, UNet2DConditionModel
from torch import Tensor, nn

from lib_lora.saving.writing import PlannedTensor, header_of, write_tensors

MODELS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "sd15": lambda tiny: {"unet": UNet2DConditionModel(**(TINY if tiny else SD15))},
    "sdxl": lambda tiny: dict(Sdxl(tiny=tiny).named_children()),
    "flux-blocks": lambda tiny: {"transformer": FluxTransformer2DModel(**(SMALL_FLUX if tiny else FLUX_BLOCKS))},
    "flux": lambda tiny: {"transformer": FluxTransformer2DModel(**(SMALL_FLUX if tiny else {}))},
}
CHILD = """
import json, resource, sys, time
import torch
what, folder, rank, threads, scripts = sys.argv[1:]
if scripts:
    from pathlib import Path
    sys.path.insert(0, "benchmarks")
    from _peers import kohya
    tools = kohya(Path(scripts))
else:
    from lib_lora import Entry, Stack, bake_stack, extract_lora
torch.set_num_threads(int(threads))

def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    try:  # what a process has since it began; getrusage also counts what its parent had
        lines = open("/proc/self/status").read().splitlines()
        memory = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except OSError:
        memory = found.ru_maxrss
    return found.ru_utime + found.ru_stime, memory * 1024

(began, imports), started = used(), time.monotonic()
if scripts:
    getattr(tools, f"{what}_model")(f"{folder}/model", f"{folder}/baked", f"{folder}/{what}.safetensors",
                                    f"{folder}/style.safetensors", 0.8, int(rank))
    made = {"layers": None, "error": None}
else:
    if what == "bake":
        saved = bake_stack(Stack([Entry(f"{folder}/style.safetensors", 0.8)]), f"{folder}/model", f"{folder}/baked")
    else:
        saved = extract_lora(f"{folder}/model", f"{folder}/baked", f"{folder}/out.safetensors", rank=int(rank))
    made = {"layers": len(saved.layers), "error": saved.error}
ended, memory = used()
print(json.dumps({**made, "seconds": ended - began, "wall": time.monotonic() - started, "memory": memory,
                  "imports": imports}))
"""
HEADERS = ("model", "GB", "what", "program", "layers", "error", "seconds", "wall", "memory", "imports")
KOHYA = ("sd15", "sdxl")
"""Models whose UNet kohya's scripts get."""
_POOL = 1 << 20
_GB = 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    made = parser(__doc__, rounds=1)
    made.set_defaults(rank=16, dtype="bfloat16", threads=1)
    made.add_argument("--model", nargs="+", choices=list(MODELS), default=["sd15", "sdxl", "flux-blocks"])
    made.add_argument("--kohya", metavar="FOLDER", help="a copy of sd-scripts")
    made.add_argument("--folder", help="where the models are written, twice; a temporary folder if absent")
    options = parse(made, arguments)
    rows: list[Record] = []
    for name in options.model:
        with TemporaryDirectory(ignore_cleanup_errors=True, dir=options.folder) as folder, torch.device("meta"):
            size = write_model(Path(folder), MODELS[name](options.tiny), DTYPES[options.dtype], options.rank)
            if name in KOHYA:
                MODELS[name](options.tiny)["unet"].save_config(Path(folder, "model", "unet"))
            for program in ["Remora", *(["kohya"] if options.kohya and name in KOHYA else [])]:
                scripts = str(options.kohya) if program == "kohya" else ""
                rows += [{"model": name, "size": size, "what": what, "program": program,
                          **run(what, folder, options.rank, options.threads, scripts)}
                         for what in ("bake", "extract")]  # fmt: skip
    report("saving_memory", options, table(HEADERS, [cells(row) for row in rows]), rows)
    return 0


def write_model(folder: Path, components: dict[str, nn.Module], dtype: torch.dtype, rank: int) -> int:
    """Write a model and a LoRA for it, and return the bytes of the model."""
    total = 0
    for name, component in components.items():
        (folder / "model" / name).mkdir(parents=True)
        planned = {key: PlannedTensor(dtype, tuple(one.shape)) for key, one in component.named_parameters()}
        file_name = "diffusion_pytorch_model" if isinstance(component, ModelMixin) else "model"
        with torch.device("cpu"), (folder / "model" / name / f"{file_name}.safetensors").open("wb") as stream:
            write_tensors(stream, header_of(planned, {"format": "pt"}), numbers(planned.values()))
        total += sum([one.nbytes for one in planned.values()])
    whole = nn.ModuleDict(components)
    layers = [name for name, one in whole.named_modules() if isinstance(one, (nn.Linear, nn.Conv2d))]
    with torch.device("cpu"):
        file = write_lora(folder, "style", whole, layers, rank, key_of)
    file.peft.unlink()
    return total


def key_of(path: str) -> str:
    """Return the key of a layer: a component, a dot and its name there."""
    component, _, name = path.partition(".")
    return f"lora_transformer_{name.replace('.', '_')}" if component == "transformer" else sdxl_key(path)


def numbers(planned: Iterable[PlannedTensor]) -> Iterator[Tensor]:
    """Yield random weights, the same few again and again, as drawing billions takes minutes."""
    pool = torch.randn(_POOL, generator=torch.Generator().manual_seed(0))
    for one in planned:
        count = math.prod(one.shape)
        scale = (count / one.shape[0]) ** -0.5 if len(one.shape) > 1 else 1.0
        yield (pool * scale).to(one.dtype).repeat(-(-count // _POOL))[:count]


def run(what: str, folder: str, rank: int, threads: int, scripts: str) -> Record:
    """Bake or extract in a new process, and say what it took.

    Args:
        scripts: a folder of kohya's scripts, or empty for Remora.
    """
    command = [sys.executable, "-c", CHILD, what, folder, str(rank), str(threads), scripts]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: Record = json.loads(done.stdout.splitlines()[-1])
    print(f"{what} {scripts and 'by kohya'}: {done.stdout.splitlines()[-1]}", file=sys.stderr, flush=True)
    return found


def cells(row: Record) -> list[str]:
    """One line of the table."""
    gigabytes = [f"{row[key] / _GB:.2f}" for key in ("size", "memory", "imports")]
    known = ["", ""] if row["error"] is None else [str(row["layers"]), f"{row['error']:.2e}"]
    seconds = [f"{row[key]:.1f}" for key in ("seconds", "wall")]
    return [row["model"], gigabytes[0], row["what"], row["program"], *known, *seconds, *gigabytes[1:]]


if __name__ == "__main__":
    sys.exit(main())
