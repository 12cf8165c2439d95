"""Files of kinds that depend on the base weight, from quantized and offloaded models; and sources in float8."""

from __future__ import annotations

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import remove_hook_from_module
from safetensors.torch import load_file

from lib_lora import Engine, Entry, Stack, load_network, save_stack
from lib_lora.saving import convert_file
from lib_lora.weights.readers.base import read_base_weight
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.kinds import SAMPLES
from tests.fakes.layers import make, weight_of
from tests.fakes.quantized import FORMATS, INSIDE, OUT, made

DORA = next(one for one in SAMPLES if one.name == "dora by rows")
GLORA = next(one for one in SAMPLES if one.name == "glora")


@pytest.mark.parametrize("name", FORMATS)
def test_the_weight_that_a_quantized_base_stands_for(tmp_path, name):
    model = made(name)
    for sample in (DORA, GLORA):
        path, tensors = sample.write(tmp_path, (OUT, INSIDE))
        engine = Engine({"unet": model})
        engine.activate(Stack([Entry(path, 0.7)]))
        saved = save_stack(engine, tmp_path / f"{sample.name}.safetensors")
        engine.close()
        base = read_base_weight(model.layer, "weight").detach().double().reshape(OUT, INSIDE)
        wanted = sample.weight(tensors, base, 0.7) - base
        delta = load_network(saved.path, {"unet": model}).delta_weight("unet", "layer", torch.float64)
        assert worst(delta, wanted) < 1e-5


@pytest.mark.parametrize("offload", ["cpu", "disk"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_weight_that_is_offloaded(tmp_path, offload):
    files = []
    for folder in (None, tmp_path / "offload"):
        base, _ = make("linear", torch.float32)
        path, _ = DORA.write(tmp_path, tuple(weight_of(base, "linear").shape), seed=len(files))
        if folder is not None:
            folder.mkdir()
            (
                cpu_offload(base, torch.device("cpu"))
                if offload == "cpu"
                else disk_offload(base, folder, torch.device("cpu"))
            )
            path = files[0][0]
        engine = Engine({"unet": base})
        engine.activate(Stack([Entry(path)]))
        files.append((path, save_stack(engine, tmp_path / f"saved {len(files)}.safetensors").path))
        engine.close()
        if folder is not None:
            remove_hook_from_module(base, recurse=True)
    (_, first), (_, second) = files
    assert all(torch.equal(one, load_file(second)[key]) for key, one in load_file(first).items())


def test_a_source_in_float8(tmp_path):
    tensors = pair("lora_unet_layer", (48, 24), 4, size=1.0)
    packed = {key: one.to(torch.float8_e4m3fn) for key, one in tensors.items()}
    saved = convert_file(save(tmp_path / "a.safetensors", packed), tmp_path / "b.safetensors")
    wide = {key: one.float() for key, one in packed.items()}
    up, down = (wide[f"lora_unet_layer.lora_{side}.weight"].double() for side in ("up", "down"))
    found = load_file(saved.path)
    got = found["lora_unet_layer.lora_up.weight"].double() @ found["lora_unet_layer.lora_down.weight"].double()
    assert worst(got, up @ down) < 1e-6
