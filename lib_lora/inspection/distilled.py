"""The settings that a distilled LoRA was made for, by its name: such a LoRA replaces most steps of a model.

Few files have such settings in their header. For the others the published name tells them. A LoRA *for* a
distilled model, as "Z-Image Turbo style", is none. Each entry of `_KNOWN` has its sources; what none of them says is
left out. Model cards write the guidance scale of diffusers, where 0 is none; `timestep_spacing="trailing"` is the
scheduler SGM Uniform, by the card of ByteDance/SDXL-Lightning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

_STEPS = re.compile(r"(?<!\d)(\d{1,2})(?:[ _-]?to[ _-]?\d+)?[ _-]?steps?(?![a-z])")
_MOST_STEPS = 24
_OF_SAMPLING = ("num_inference_steps", "inference_steps", "sampling_steps", "sample_steps", "distill_steps", "nfe")
_HEADER = {
    "steps": (*_OF_SAMPLING, "steps"),
    "shift": ("shift", "flow_shift", "sample_shift", "scheduler_shift", "inference_shift", "video_shift"),
    "cfg": ("guidance_scale", "cfg_scale", "guidance", "cfg", "sample_guide_scale"),
}
"""What a header says -> the names that scripts give it, the one that counts first in front."""
_FAR = 2.0
"""How many times as many steps, or as few, are said to be far off."""
_OR_MORE = frozenset({"TCD", "Turbo", "Hyper-SD Unified"})
"""Methods whose sources say that any larger number of steps will do."""


@dataclass(frozen=True, slots=True)
class Distillation:
    """How many steps, and what else, a distilled LoRA was made for."""

    method: str
    steps: tuple[int, int]
    """The fewest and the most."""
    cfg: tuple[float, float]
    """Of the CFG scale of web UIs, where 1 is none."""
    sampler: str = ""
    scheduler: str = ""
    shift: float | None = None

    def __str__(self) -> str:
        return f"{self.method}, {_span(*self.steps)} steps, CFG scale {_span(*self.cfg)}"

    def warning(self, steps: int | None, cfg: float | None) -> str:
        """Return what is far from the settings it was made for, as one sentence without its subject; empty if nothing.

        Args:
            steps: of the picture; None if unknown.
            cfg: the CFG scale; None if unknown.
        """
        low, high = self.steps
        least, most = self.cfg
        found = []
        most_steps = math.inf if self.method in _OR_MORE else high * _FAR
        if steps is not None and not low / _FAR <= steps <= most_steps:
            found.append(f"{_span(low, high)} steps, not {steps}")
        if cfg is not None and not (least - 1 <= cfg <= most + 1):
            found.append(f"a CFG scale of {_span(least, most)}, not {cfg:g}")
        return f"was made for {' and for '.join(found)}" if found else ""


_HYPER = r"(?:hyper[ _-]?(?:sd|xl)|sd(?:xl|15)[ _-]hyper)"
_PCM = r"(?<![a-z])pcm(?![a-z])(?![ _-]deterministic)"  # PCM for Stable Diffusion 3 needs its own scheduler
_NO_CFG = (1.0, 1.0)

# the first that the name has; FLUX.1's guidance, 3.5, is the CFG scale of some web UIs
_KNOWN: Sequence[tuple[str, Distillation]] = (
    # ByteDance/Hyper-SD, README.md
    (r"hyper[ _-]?(sd[ _-]?)?flux|flux.*hyper[ _-]?(sd|\d)", Distillation("Hyper-SD", (8, 16), (1.0, 3.5))),
    (rf"{_HYPER}3", Distillation("Hyper-SD", (4, 16), (3.0, 7.0))),
    (rf"^(?=.*(?<!no)[ _-]cfg).*{_HYPER}", Distillation("Hyper-SD", (8, 12), (5.0, 8.0))),
    (rf"^(?=.*(?<!\d)1[ _-]?step).*{_HYPER}", Distillation("Hyper-SD Unified", (1, 1), _NO_CFG, "TCD")),
    (_HYPER, Distillation("Hyper-SD", (2, 8), _NO_CFG, "DDIM", "SGM Uniform")),
    # tianweiy/DMD2, README.md
    (r"dmd2", Distillation("DMD2", (4, 4), _NO_CFG, "LCM")),
    # jabir-zheng/TCD, README.md: 4 and 8 steps, "NFEs can be varied at will"
    (r"(?<![a-z])tcd(?![a-z])", Distillation("TCD", (4, 8), _NO_CFG, "TCD")),
    # wangfuyun/PCM_Weights, README.md
    (rf"{_PCM}.*lcm[ _-]?like", Distillation("PCM", (2, 8), (1.0, 2.0), "LCM")),
    (rf"^(?=.*normal[ _-]?cfg).*{_PCM}", Distillation("PCM", (4, 16), (2.0, 9.0), "DDIM", "SGM Uniform")),
    (_PCM, Distillation("PCM", (2, 16), (1.0, 2.0), "DDIM", "SGM Uniform")),
    # deepbeepmeep/Wan2GP docs/LORAS.md; Comfy-Org/workflow_templates templates/video_wan_vace_14B_t2v.json
    (r"causvid", Distillation("CausVid", (4, 12), _NO_CFG, "UniPC", "Simple", 8.0)),
    # ModelTC/LightX2V configs/distill: wan21/wan_t2v_distill_lora_4step_cfg.json, wan22/wan_moe_t2v_distill_lora.json
    (r"light[ _-]?x2v|(step|cfg)[ _-]?distill", Distillation("LightX2V", (4, 4), _NO_CFG, shift=5.0)),
    # lightx2v/Qwen-Image-Lightning and ModelTC/Qwen-Image-Lightning, README.md
    (r"qwen.*lightning", Distillation("Lightning", (4, 8), _NO_CFG, "Euler", shift=3.0)),
    # ModelTC/Wan2.2-Lightning, README.md
    (r"wan.*lightning", Distillation("Lightning", (4, 4), _NO_CFG)),
    # ByteDance/SDXL-Lightning, README.md
    (r"(sd)?xl[ _-]?lightning", Distillation("Lightning", (2, 8), _NO_CFG, "Euler", "SGM Uniform")),
    # alimama-creative/FLUX.1-Turbo-Alpha, README.md
    (r"flux(\W?1)?[ _-]?turbo[ _-]?alpha", Distillation("Turbo Alpha", (8, 8), (1.0, 3.5))),
    # shiroppo/sd_xl_turbo_lora and its page on Civitai: 4 steps or more
    (r"sd[ _-]?xl[ _-]?turbo[ _-]?lora", Distillation("Turbo", (4, 4), (1.0, 2.5), "LCM", "SGM Uniform")),
    # gojasper/flash-diffusion, README.md; that of Stable Diffusion 3 needs a scheduler of its own
    (r"(?<![a-z])flash[ _-]?(sd(?!3)|pixart)", Distillation("Flash Diffusion", (4, 4), _NO_CFG, "LCM", "SGM Uniform")),
    # latent-consistency/lcm-lora-sdxl and lcm-lora-sdv1-5, README.md
    (r"(?<![a-z])lcm[ _-]?lora|lora[ _-]?lcm|^lcm([ _-]|$)", Distillation("LCM", (2, 8), (1.0, 2.0), "LCM")),
)
_PATTERNS = tuple((re.compile(pattern), made_for) for pattern, made_for in _KNOWN)


def distilled(*names: str, header: Mapping[str, str] = MappingProxyType({})) -> Distillation | None:
    """Return the settings that a LoRA was made for; None if it is no distilled one that is known or says so.

    Args:
        names: of the file, and the one its trainer gave it.
        header: what the file says of itself, which counts more than a name.
    """
    named = _by_name(names)
    steps, shift, cfg = (_said(header, _HEADER[what]) for what in ("steps", "shift", "cfg"))
    if steps is not None and not (1 <= steps <= _MOST_STEPS and steps == int(steps)):
        steps = None  # of the training
    if named is None and (steps is None or (cfg is None and shift is None and not _is_of_sampling(header))):
        return None
    found = named or Distillation("its header", (int(steps or 1), int(steps or 1)), _NO_CFG)
    return replace(
        found,
        steps=found.steps if steps is None else (int(steps), int(steps)),
        cfg=found.cfg if cfg is None or cfg < 0 else (max(cfg, 1.0), max(cfg, 1.0)),  # diffusers' 0 is none
        shift=found.shift if shift is None else shift,
    )


def _said(header: Mapping[str, str], spellings: Sequence[str]) -> float | None:
    """Return the first finite number that a header has under one of these names; None without one."""
    for text in (header[name] for name in spellings if name in header):
        try:
            number = float(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    return None


def _is_of_sampling(header: Mapping[str, str]) -> bool:
    """Return whether the header names its steps as steps of sampling, and not of training."""
    return any(name in header for name in _OF_SAMPLING)


def _by_name(names: Sequence[str]) -> Distillation | None:
    for name in filter(None, (one.rpartition("/")[2].lower() for one in names)):
        for pattern, found in _PATTERNS:
            if pattern.search(name):
                counts = [int(count) for count in _STEPS.findall(name) if 0 < int(count) <= _MOST_STEPS]
                steps = (counts[0], counts[0]) if len(set(counts)) == 1 else found.steps
                return replace(found, steps=steps)
    return None


def _span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
