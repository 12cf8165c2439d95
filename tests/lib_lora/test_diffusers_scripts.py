"""The scripts of docs/diffusers.md: PEFT's version, Remora's, and PEFT's with Remora behind the calls."""

from __future__ import annotations

import copy
import re
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file, save_file
from torch import Tensor

from lib_lora import ComponentError, StackError, attach, replace_lora_calls
from tests.fakes.checkpoints import tiny_pipeline
from tests.fakes.models import exact_arithmetic, kohya_lora

pytest.importorskip("peft")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "diffusers.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^## ([^\n]+)\n+```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LOADED = "from_pretrained("


class Small(StableDiffusionPipeline):
    """A pipeline that makes the same small latents each time."""

    def __call__(self, prompt: str, **kwargs: Any) -> Any:
        with exact_arithmetic():
            generator = torch.Generator().manual_seed(0)
            sizes = {"height": 32, "width": 32, "num_inference_steps": 1}
            return super().__call__(prompt, **sizes, generator=generator, output_type="latent", **kwargs)


@lru_cache(maxsize=1)
def _made() -> StableDiffusionPipeline:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return tiny_pipeline("sd1")


def pipeline() -> Small:
    parts = {name: copy.deepcopy(part) for name, part in _made().components.items()}
    made = Small(**parts, requires_safety_checker=False)
    for part in (made.unet, made.text_encoder):
        part.eval().requires_grad_(False).double()
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the files that the scripts name."""
    from peft import LoraConfig, get_peft_model

    made, folder = pipeline(), tmp_path_factory.mktemp("loras")
    both = {"unet": made.unet, "text_encoder": made.text_encoder}
    for seed, name in enumerate(("style", "character")):
        kohya_lora(folder / f"{name}.safetensors", both, seed=seed)
        kohya_lora(folder / f"unet-{name}.safetensors", {"unet": made.unet}, seed=seed)
    attention = {
        k: v for k, v in load_file(folder / "style.safetensors").items() if "resnets" not in k and "time_" not in k
    }
    save_file(attention, folder / "attention.safetensors")
    model = get_peft_model(made.unet, LoraConfig(r=4, lora_alpha=2, target_modules=["to_q", "to_v"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(folder / "trained-with-peft")
    return folder


def version(title: str, sign: str) -> str:
    return "".join(line[1:] for line in SCRIPTS[title].splitlines(keepends=True) if line[0] in (" ", sign))


def picture(source: str) -> Tensor:
    names: dict[str, Any] = {
        "DiffusionPipeline": SimpleNamespace(from_pretrained=lambda _: pipeline()),
        "device": torch.device("cpu"),
        "replace_lora_calls": replace_lora_calls,
    }
    exec(compile(source, "script", "exec"), names)
    return names["image"]


@cache
def theirs(title: str, folder: Path) -> Tensor:
    return picture(version(title, "-"))


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def marked(titles):
    """Return parameters of tests: the quick tests have two scripts, and compilation takes a minute."""
    left_out = {title: pytest.mark.full for title in titles if title not in ("One LoRA", "Several, with weights")}
    left_out["Compile"] = pytest.mark.long
    return [pytest.param(title, marks=left_out.get(title, ())) for title in titles]


@pytest.mark.filterwarnings("ignore")  # of diffusers and PEFT
@pytest.mark.parametrize("title", marked(SCRIPTS))
def test_a_script_makes_the_picture_that_it_made_with_peft(title, folder):
    want, plain = theirs(title, folder), pipeline()("a red circle").images[0]
    assert (want - plain).abs().max() > 2e-3
    torch.testing.assert_close(picture(version(title, "+")), want, rtol=0, atol=1e-6)


OWN = [title for title in SCRIPTS if title not in ("PEFT's folder", "Compile", "Offload")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", marked(OWN))
def test_a_script_runs_with_one_more_line(title, folder):
    script = re.sub(
        r"^(pipe = .*)$", r"\1\npipe = replace_lora_calls(pipe)", version(title, "-"), count=1, flags=re.MULTILINE
    )
    assert "replace_lora_calls" in script
    torch.testing.assert_close(picture(script), theirs(title, folder), rtol=0, atol=1e-6)


def test_there_are_ten_scripts():
    assert len(SCRIPTS) >= 10
    for title in SCRIPTS:
        changed = [line for line in SCRIPTS[title].splitlines() if line[0] == "+"]
        assert len(changed) <= 5, title
    assert attach


def test_lora_that_diffusers_loaded_come_off_first(folder):
    """The calls that Remora serves know nothing of them."""
    pipe = pipeline()
    path = sorted(folder.glob("*.safetensors"))[0]
    pipe.load_lora_weights(path, adapter_name="theirs")
    with pytest.raises(ComponentError, match=r"has LoRA that diffusers loaded; call pipe\.unload_lora_weights"):
        replace_lora_calls(pipe)
    assert pipe.get_list_adapters()
    pipe.unload_lora_weights()
    replace_lora_calls(pipe).load_lora_weights(path, adapter_name="ours")
    with pytest.raises(
        StackError, match="a LoRA 'ours' is loaded already; give another adapter_name, or write hotswap"
    ):
        pipe.load_lora_weights(path, adapter_name="ours")
    assert pipe.get_list_adapters()
